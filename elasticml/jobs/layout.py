"""Where a job's chunks are and who has them, and what several settings must agree on."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from elasticml.data.places import is_url
from elasticml.errors import ConfigError
from elasticml.jobs.algorithms import (
    AnyAlgorithm,
    AsyncSGD,
    CoCoA,
    LocalSGD,
    PrimalCoCoA,
    absent_rule,
    certifies_gap,
)
from elasticml.jobs.schema import unknown_choice
from elasticml.jobs.settings import Stop
from elasticml.runtime.budget import BODIES_SHARE
from elasticml.terms import format_size, parse_size

Holders = Literal["auto", 1, 2]
Placement = Literal["auto", "contiguous", "random"]

#: Policies that decide by the certified gap, and would never do anything without one.
NEED_GAP = ("knee", "gap_per_container_second", "tune_local_work", "inner_iterations")
#: Policies that look at how long members take for their rounds.
NEED_ROUNDS = ("rebalance", "straggler")
#: Least memory of a member that a job may ask for: its process takes most of that without data.
MEMBER_BYTES_MIN = 2**28
#: Bytes of a chunk for local SGD, as in the uni-task paper.
LOCAL_SGD_CHUNK_BYTES = 200 * 2**10


def policy_entries(policies: Sequence[Any]) -> list[dict[str, Any]]:
    """Check a job's policies and write them down in full, as mappings with a name.

    Parameters
    ----------
    policies : sequence of policies, names or mappings

    Raises
    ------
    ConfigError
        When one is unknown, or a setting of it is, or is out of its range.
    """
    if not policies:
        return []
    from elasticml.policies.registry import check_entries

    if isinstance(policies, str | Mapping):
        return check_entries(policies)  # which says that a list is wanted
    return check_entries([_written(p, f"policies[{i}]") for i, p in enumerate(policies)])


def _written(policy: object, path: str) -> object:
    """Write a policy object as its entry; one of the user's own is named by where it is defined."""
    from elasticml.policies.registry import POLICIES
    from elasticml.policies.settings import NAME, entry_of

    kind = type(policy)
    if isinstance(policy, type) or not callable(getattr(policy, "suggest", None)):
        return policy
    if kind.__module__ == "__main__":
        raise ConfigError(
            f"{path}: {kind.__qualname__} is defined in the script itself, which workers and "
            "scheduler cannot import; put it into a module of its own",
            path=path,
        )
    try:
        entry = entry_of(policy)
    except AttributeError as error:
        raise ConfigError(
            f"{path}: {error}; a policy has a name and keeps its settings under their own names",
            path=path,
        ) from None
    if kind not in POLICIES.values():
        entry[NAME] = f"{kind.__module__}:{kind.__qualname__}"
    return entry


def check_together(
    algorithm: AnyAlgorithm,
    absent: object,
    stop: Stop,
    policies: Sequence[Mapping[str, Any]],
    holders: object,
    placement: object,
) -> None:
    """Check settings against their algorithm, and those of which there are a few words.

    Raises
    ------
    ConfigError
        When one is none of its words, or needs what the algorithm does not have.
    """
    absent_rule(algorithm, absent)
    if isinstance(holders, bool) or holders not in get_args(Holders):
        raise ConfigError(f"holders: got {holders!r}, wanted auto, 1 or 2", path="holders")
    if placement not in get_args(Placement):
        raise unknown_choice(placement, get_args(Placement), "placement")
    _check_stop(algorithm, stop)
    if certifies_gap(algorithm):
        return
    for index, entry in enumerate(policies):
        is_void = isinstance(algorithm, AsyncSGD) and entry["name"] in NEED_ROUNDS
        if is_void and not entry.get("off"):
            raise ConfigError(
                f"policies[{index}]: {entry['name']} relieves members that others wait for, and in "
                f"{algorithm.name} nobody waits; leave it out",
                path=f"policies[{index}]",
            )
    if stop.gap is not None:
        raise ConfigError(
            f"stop.gap: {algorithm.name} certifies no duality gap; use algorithm cocoa, or "
            "stop.objective",
            path="stop.gap",
        )
    for index, entry in enumerate(policies):
        if entry["name"] in NEED_GAP and not entry.get("off"):
            raise ConfigError(
                f"policies[{index}]: {entry['name']} decides by the duality gap, which "
                f"{algorithm.name} does not certify; use algorithm cocoa, or leave it out",
                path=f"policies[{index}]",
            )


def _check_stop(algorithm: AnyAlgorithm, stop: Stop) -> None:
    """Check rules that would never be met, or are not known."""
    if isinstance(algorithm, LocalSGD):
        if stop.objective is not None:
            raise ConfigError(
                "stop.objective: local_sgd knows the mean loss of the last samples only; use "
                "stop.epochs, rounds or seconds",
                path="stop.objective",
            )
    elif stop.epochs is not None:
        raise ConfigError(
            f"stop.epochs: local_sgd counts epochs, {algorithm.name} does not; use stop.rounds",
            path="stop.epochs",
        )


def placement_of(setting: Placement, algorithm: AnyAlgorithm) -> str:
    """Say what "auto" stands for: random for what trains locally, which file order slows down."""
    if setting != "auto":
        return setting
    return (
        "random"
        if isinstance(algorithm, AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA)
        else "contiguous"
    )


def holders_of(
    setting: Holders,
    algorithm: AnyAlgorithm,
    total_bytes: int,
    limits_bytes: Sequence[int],
) -> int:
    """Say how many members shall have each chunk's body.

    Parameters
    ----------
    setting : "auto", 1 or 2
        "auto" is 2 for both CoCoAs where everything fits twice, else 1: of what only their policies
        make use, the others shall not pay for.
    total_bytes : int
        Of all chunk bodies, as far as is known before they are read.
    limits_bytes : sequence of int
        What each member may use for them; 0 is without limit.
    """
    if setting != "auto":
        return int(setting)
    if not isinstance(algorithm, CoCoA | PrimalCoCoA) or len(limits_bytes) < 2:
        return 1
    fits = 0 in limits_bytes or 2 * total_bytes <= sum(limits_bytes)
    return 2 if fits else 1


def expand_path(path: str, key: str) -> str:
    """Put the environment's and the user's folders into a path.

    Raises
    ------
    ConfigError
        When it names a variable that is not set.
    """
    found = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", found)
    if unset:
        raise ConfigError(
            f"{key}: {path!r} names the environment variable {unset[1]}, which is not set; "
            f"export {unset[1]}=...",
            path=key,
        )
    if path.startswith("$") and "://" not in found:
        # A folder that the environment names is seen from where the command runs, as a shell would.
        found = os.path.abspath(found)
    return found


def cache_of(given: Any, folder: Path | None = None) -> str | bool | None:
    """Read ``data.cache``: a directory, False for none, None for what the environment says.

    ``folder`` is what a relative path is relative to; by default the present directory.

    Raises
    ------
    ConfigError
        When it is neither a truth value nor a path.
    """
    if given is None or isinstance(given, bool):
        return False if given is False else None
    if isinstance(given, str | Path) and str(given) and not is_url(str(given)):
        return str((folder or Path.cwd()) / expand_path(str(given), "data.cache"))
    raise ConfigError(
        f"data.cache: got {given!r}, wanted true, false or a directory on the workers' hosts",
        path="data.cache",
    )


def default_chunk_bytes(algorithm: AnyAlgorithm) -> int | None:
    """Return the bytes of a chunk where a job says nothing; None: by the data and the members."""
    return LOCAL_SGD_CHUNK_BYTES if isinstance(algorithm, LocalSGD) else None


def memory_limit_of(size: int | str | None) -> int | None:
    """Read ``memory_limit``; None where a member may take what its worker has.

    Raises
    ------
    ConfigError
        When it is no size, or less than a process takes without data.
    """
    if size is None:
        return None
    nbytes = _bytes_of(size)
    if nbytes < MEMBER_BYTES_MIN:
        raise ConfigError(
            f"memory_limit: got {size!r}, wanted a size from 256 MiB on, such as '1 GiB': a member "
            "takes about 200 MiB without any data",
            path="memory_limit",
        )
    return nbytes


def check_chunk_fits(chunk_bytes: int | None, worker_bytes: int | None) -> None:
    """Prove that a chunk fits into a worker; None and 0 are a worker without a limit.

    Raises
    ------
    ConfigError
        When a chunk is larger than 60 % of the worker's memory.
    """
    if not worker_bytes or chunk_bytes is None:
        return
    if chunk_bytes > BODIES_SHARE * worker_bytes:
        raise ConfigError(
            f"data.chunk_size: got {format_size(chunk_bytes)}, wanted at most "
            f"{format_size(BODIES_SHARE * worker_bytes)}, which is 60 % of a worker's memory; "
            "make chunks smaller or workers larger",
            path="data.chunk_size",
        )


def _bytes_of(size: int | str) -> int:
    """Return the bytes of a size; 0 where it is none."""
    try:
        nbytes = parse_size(size)
    except (ValueError, TypeError):
        return 0
    return 0 if isinstance(size, bool) or not math.isfinite(nbytes) else nbytes


def chunk_bytes_of(size: int | str | None) -> int | None:
    """Read ``data.chunk_size``; None where it follows from the data and the members.

    Raises
    ------
    ConfigError
        When it is no size.
    """
    if size is None or size == "auto":
        return None
    nbytes = _bytes_of(size)
    if nbytes < 1:
        raise ConfigError(
            f"data.chunk_size: got {size!r}, wanted 'auto' or a size such as '1 MiB'",
            path="data.chunk_size",
        )
    return nbytes
