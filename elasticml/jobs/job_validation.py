"""Validate a job's settings against each other, and resolve those that are "auto"."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticml.data.scored_rows import with_scored_rows
from elasticml.data.source import Source, infer_format, unlisted
from elasticml.data.storage.filesystem import is_url
from elasticml.errors import ConfigError, one_line, shown
from elasticml.ids import format_size, parse_size
from elasticml.runtime.worker_limits import BODIES_SHARE
from elasticml.specification.algorithms import (
    DEALT_ANEW,
    Absent,
    AnyAlgorithm,
    AsyncSGD,
    BatchGradient,
    CoCoA,
    ImportedAlgorithm,
    LocalSGD,
    absent_rule,
    certifies_gap,
    record_section,
    require_torch,
)
from elasticml.specification.linear import NAMED
from elasticml.specification.sections import Holders, Stop, Validate
from elasticml.specification.settings_model import read_settings
from elasticml.specification.user_objects import path_of

#: Policies that decide by the certified gap; without one they never act.
NEED_GAP = ("knee", "gap_per_container_second", "tune_local_work", "inner_iterations")
#: Policies that use the members' times per round.
NEED_ROUNDS = ("rebalance", "straggler")
#: Least memory limit of a member; its process takes most of that without data.
MEMBER_BYTES_MIN = 2**28
#: Default chunk size for local SGD, as in the uni-task paper.
LOCAL_SGD_CHUNK_BYTES = 200 * 2**10


def check_source(given: Any, path: str) -> None:
    """Check that a job's data are a source, not a path or the rows themselves.

    Raises
    ------
    ConfigError
        When they are something else; the message says which function makes a source of it.
    """
    if hasattr(given, "fingerprint") and hasattr(given, "blocks"):
        return
    if isinstance(given, str | Path):
        format = infer_format(str(given)) or "svmlight"
        rest = ", label=..." if format in ("csv", "parquet") else ""
        read = f"em.read_{format}({str(given)!r}{rest})"
        wanted = "em.from_arrays(X, y) of its arrays" if format == "npz" else read
        got = repr(str(given))
    else:
        kind = type(given)
        wanted, got = "em.from_arrays(X, y)", f"{kind.__module__}.{kind.__qualname__}"
        if kind in NAMED.values() or kind is ImportedAlgorithm:
            wanted = "em.Job(algorithm, data), in this order"
        elif hasattr(given, "__arrow_c_stream__"):
            wanted = "em.from_frame(frame, label=...)"
    raise ConfigError(f"{path}: got {got}, wanted a source: {wanted}", path=path)


def policy_entries(policies: Sequence[Any]) -> list[dict[str, Any]]:
    """Validate a job's policies and return them as entries: mappings with a name.

    Parameters
    ----------
    policies : sequence of policies, names or mappings

    Raises
    ------
    ConfigError
        When a policy or one of its settings is unknown or out of range.
    """
    if not policies:
        return []
    from elasticml.policies.registry import check_entries

    if isinstance(policies, str | Mapping) or not isinstance(policies, Iterable):
        return check_entries(policies)  # raises: a list is required
    return check_entries([_written(p, f"policies[{i}]") for i, p in enumerate(policies)])


def _written(policy: object, path: str) -> object:
    """Return the entry of a policy object; a user-defined policy is named by its import path."""
    from elasticml.policies.registry import POLICIES
    from elasticml.policies.validation import NAME, entry_of

    kind = type(policy)
    if isinstance(policy, type) or not callable(getattr(policy, "suggest", None)):
        return policy
    try:
        entry = entry_of(policy)
    except AttributeError as error:
        raise ConfigError(
            f"{path}: {one_line(error)}; a policy has a name and keeps its settings under their "
            "own names",
            path=path,
        ) from None
    if kind not in POLICIES.values():
        entry[NAME] = path_of(kind)
    return entry


def check_together(
    algorithm: AnyAlgorithm,
    absent: Absent,
    stop: Stop,
    policies: Sequence[Mapping[str, Any]],
) -> None:
    """Check settings against the algorithm.

    Raises
    ------
    ConfigError
        When the algorithm does not support a setting.
    """
    require_torch(algorithm)
    absent_rule(algorithm.name, absent)
    _check_stop(algorithm, stop)
    if certifies_gap(algorithm):
        return
    for index, entry in enumerate(policies):
        is_void = isinstance(algorithm, AsyncSGD) and entry["name"] in NEED_ROUNDS
        if is_void and not entry.get("off"):
            raise ConfigError(
                f"policies[{index}]: {entry['name']} relieves members that others wait for, and in "
                f"{algorithm.name} no member waits; leave it out",
                path=f"policies[{index}]",
            )
    named = algorithm.name
    if isinstance(algorithm, BatchGradient):
        named += f" with loss {algorithm.loss} and l2 {algorithm.l2:g}"
    certified = _certified(algorithm)
    if stop.gap is not None:
        others = "stop.epochs, rounds or seconds"
        others = others if isinstance(algorithm, LocalSGD) else "stop.objective"
        raise ConfigError(
            f"stop.gap: {named} certifies no duality gap; use {certified}{others}", path="stop.gap"
        )
    for index, entry in enumerate(policies):
        if entry["name"] in NEED_GAP and not entry.get("off"):
            raise ConfigError(
                f"policies[{index}]: {entry['name']} decides by the duality gap, which "
                f"{named} does not certify; {certified and f'use {certified}'}leave it out",
                path=f"policies[{index}]",
            )


def _certified(algorithm: AnyAlgorithm) -> str:
    """Return which algorithm certifies a gap for this one's loss, with "or"; "" if none does."""
    if not isinstance(algorithm, BatchGradient | AsyncSGD):
        return ""
    if isinstance(algorithm, AsyncSGD) and algorithm.problem != "linear":
        return ""
    needs = [] if algorithm.l2 > 0.0 else ["l2 above 0"]
    name = BatchGradient.name if algorithm.terms.link == "log" else CoCoA.name
    return f"algorithm {name}{' with ' if needs else ''}{' and '.join(needs)}, or "


def _check_stop(algorithm: AnyAlgorithm, stop: Stop) -> None:
    """Reject stop rules that the algorithm cannot evaluate."""
    if isinstance(algorithm, LocalSGD):
        if stop.objective is not None:
            raise ConfigError(
                "stop.objective: local_sgd computes only the mean loss of the last samples; use "
                "stop.epochs, rounds or seconds",
                path="stop.objective",
            )
    elif stop.epochs is not None:
        raise ConfigError(
            f"stop.epochs: local_sgd counts epochs, {algorithm.name} does not; use stop.rounds",
            path="stop.epochs",
        )


def resolve_scored_rows(
    algorithm: AnyAlgorithm,
    data: Source,
    seed: int,
    *,
    validate: Any,
    test: Source | None,
    metrics: Sequence[str] = (),
) -> tuple[Source, dict[str, Any] | None]:
    """Resolve ``validate`` and ``test``: the data with such rows, and the section ``validate``.

    Parameters
    ----------
    validate : Validate, mapping, float, Source or None
        A number is a share of the training rows.
    metrics : sequence of str
        Of the test rows.

    Raises
    ------
    ConfigError
        When a setting is invalid, or a metric or the algorithm does not fit.
    """
    is_validated = validate is not None and validate is not False
    if not is_validated and test is None:
        return data, None
    from elasticml.evaluation.scoring import resolve_metrics  # here: it imports numba

    algorithm_section = record_section(algorithm, seed)
    if test is not None:
        resolve_metrics(algorithm_section, metrics, "data.test")
    if not is_validated:
        return with_scored_rows(data, test=test), None
    if isinstance(validate, int | float) and not isinstance(validate, bool):
        validate = {"share": validate}
    elif not isinstance(validate, Validate | Mapping):
        validate = {"data": validate}
    validate = read_settings(Validate, validate, "validate")
    if validate.data is not None:
        check_source(validate.data, "validate.data")
    section: dict[str, Any] = {
        "metric": list(resolve_metrics(algorithm_section, validate.metrics)),
        "every": validate.every,
        "patience": validate.patience,
        "min_delta": validate.min_delta,
    }
    if validate.share is not None:
        section["share"] = validate.share
    else:
        section["data"] = unlisted(validate.data.spec())
    held = {"share": validate.share, "seed": seed, "validation": validate.data}
    return with_scored_rows(data, **held, test=test), section


def resolve_holders(
    setting: Holders,
    algorithm: AnyAlgorithm,
    total_bytes: int,
    limits_bytes: Sequence[int],
) -> int | None:
    """Resolve how many members hold each chunk's body; None if the driver decides.

    Parameters
    ----------
    setting : "auto", 1 or 2
        "auto" is 2 for both CoCoAs if everything fits twice, else 1: only their policies profit
        from second copies, so other algorithms do not pay for them.
    total_bytes : int
        Estimated bytes of all chunk bodies, before they are read.
    limits_bytes : sequence of int
        Bytes that each member may use for bodies; 0 for no limit. With fewer than two the cluster
        may still grow, and the driver decides when it has the data.
    """
    if setting != "auto":
        return int(setting)
    if algorithm.name not in DEALT_ANEW:
        return 1
    if len(limits_bytes) < 2:
        return None
    fits = 0 in limits_bytes or 2 * total_bytes <= sum(limits_bytes)
    return 2 if fits else 1


def expand_path(path: str, key: str) -> str:
    """Expand environment variables and ``~`` in a path.

    Raises
    ------
    ConfigError
        When it names a variable that is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise ConfigError(
            f"{key}: {path!r} names the environment variable {unset[1]}, which is not set; "
            f"export {unset[1]}=...",
            path=key,
        )
    if path.startswith("$") and "://" not in expanded:
        # Relative paths from variables are relative to the working directory, as in a shell.
        expanded = os.path.abspath(expanded)
    return expanded


def parse_cache(cache: Any, folder: Path | None = None) -> str | bool | None:
    """Parse ``data.cache``: a directory, False for none, None for the environment's default.

    ``folder`` is the base of a relative path; by default the working directory.

    Raises
    ------
    ConfigError
        When it is neither a bool nor a path.
    """
    if cache is None or isinstance(cache, bool):
        return False if cache is False else None
    if isinstance(cache, str | Path) and str(cache) and not is_url(str(cache)):
        return str((folder or Path.cwd()) / expand_path(str(cache), "data.cache"))
    raise ConfigError(
        f"data.cache: got {shown(cache)}, wanted true, false or a directory on the workers' hosts",
        path="data.cache",
    )


def default_chunk_bytes(algorithm: AnyAlgorithm) -> int | None:
    """Return the algorithm's default chunk size; None: derive it from the data and the members."""
    return LOCAL_SGD_CHUNK_BYTES if isinstance(algorithm, LocalSGD) else None


def parse_memory_limit(size: int | str | None) -> int | None:
    """Parse ``memory_limit``; None means the limit of the worker.

    Raises
    ------
    ConfigError
        When it is not a size, or less than a process needs without data.
    """
    if size is None:
        return None
    nbytes = _bytes_of(size)
    if nbytes < MEMBER_BYTES_MIN:
        raise ConfigError(
            f"memory_limit: got {shown(size)}, wanted a size from 256 MiB on, such as '1 GiB': a "
            "member takes about 200 MiB without any data",
            path="memory_limit",
        )
    return nbytes


def check_chunk_fits(chunk_bytes: int | None, worker_bytes: int | None) -> None:
    """Check that a chunk fits into a worker's memory; None and 0 mean no limit.

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
    """Return the bytes of a size; 0 if it is not a size."""
    try:
        nbytes = parse_size(size)
    except (ValueError, TypeError):
        return 0
    return 0 if isinstance(size, bool) or not math.isfinite(nbytes) else nbytes


def parse_chunk_size(size: int | str | None) -> int | None:
    """Parse ``data.chunk_size``; None if it is to be derived from the data and the members.

    Raises
    ------
    ConfigError
        When it is not a size.
    """
    if size is None or size == "auto":
        return None
    nbytes = _bytes_of(size)
    if nbytes < 1:
        raise ConfigError(
            f"data.chunk_size: got {shown(size)}, wanted 'auto' or a size such as '1 MiB'",
            path="data.chunk_size",
        )
    return nbytes
