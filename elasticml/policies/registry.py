"""The policies by the names that a job gives them, and the list that a job runs with."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from elasticml.control.policy import Policy
from elasticml.control.settings import DEALT_ANEW
from elasticml.errors import ConfigError
from elasticml.policies.absence import Reload, WholeGroup, absence_policy
from elasticml.policies.elastic import ElasticScaling
from elasticml.policies.gap_per_second import GapPerContainerSecond
from elasticml.policies.inner_iterations import ChooseInnerIterations
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.rebalance import Rebalance
from elasticml.policies.redeal import Redeal
from elasticml.policies.replicas import Replicas
from elasticml.policies.settings import NAME, check_keys, nearest, settings_of
from elasticml.policies.shuffle import GlobalShuffle
from elasticml.policies.straggler import Straggler
from elasticml.policies.tuning import TuneLocalWork

#: Most urgent first, the order in which they are asked: where two want the same chunk, or the same
#: member, the first has its way.
POLICIES: dict[str, type] = {
    "whole_group": WholeGroup,
    "reload": Reload,
    "elastic_scaling": ElasticScaling,
    "knee": ScaleInAtKnee,
    "gap_per_container_second": GapPerContainerSecond,
    "straggler": Straggler,
    "rebalance": Rebalance,
    "redeal": Redeal,
    "shuffle": GlobalShuffle,
    "replicas": Replicas,
    "tune_local_work": TuneLocalWork,
    "inner_iterations": ChooseInnerIterations,
}
#: Either of them says how absent chunks come back.
ABSENCE = ("whole_group", "reload")
#: Either of them sets ``local_epochs``; both at once would measure one another.
LOCAL_WORK = ("tune_local_work", "inner_iterations")
#: A policy that is on by itself is off with ``{name: none}``.
OFF = "none"


def kind_of(name: str, path: str = "policies") -> type:
    """Find a policy by its name, or a user's own by ``module:Class``.

    Raises
    ------
    ConfigError
        When there is none of that name.
    """
    if name in POLICIES:
        return POLICIES[name]
    if ":" not in name:
        raise ConfigError(f"{path}: there is no policy {name!r}{nearest(name, POLICIES)}", key=name)
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{path}: policy {name!r} cannot be imported: {error}; "
            "give module:Class of one that every process can import",
            key=name,
        ) from None
    if not isinstance(kind, type) or not callable(getattr(kind, "suggest", None)):
        raise ConfigError(
            f"{path}: {name!r} is no class with a method suggest(view), which a policy must be",
            key=name,
        )
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(
            f"{path}: {name!r} has no name, by which the story calls it; give the class one, such "
            f"as name = {attribute.lower()!r}",
            key=name,
        )
    return kind


def read_entry(entry: object, path: str = "policies") -> dict[str, Any]:
    """Write an entry of a job's ``policies`` in full: a mapping with a name.

    ``rebalance`` alone stands for ``{name: rebalance}``, and ``{redeal: none}`` for
    ``{name: redeal, off: true}``.

    Raises
    ------
    ConfigError
        When it is neither, its policy is unknown, or a setting of it is.
    """
    if isinstance(entry, str):
        entry = {NAME: entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"{path}: got {entry!r}, wanted a name or a mapping such as {{name: rebalance}}",
            path=path,
        )
    found = dict(entry)
    if NAME not in found and len(found) == 1:
        ((name, value),) = found.items()
        if value == OFF or value is None or value is False:
            kind_of(str(name), path)
            return {NAME: str(name), "off": True}
    if not isinstance(found.get(NAME), str):
        raise ConfigError(
            f"{path}: got {dict(entry)!r}, wanted a mapping with a name{nearest('', POLICIES)}",
            path=path,
        )
    if found.get("off") is True and len(found) == 2:
        kind_of(found[NAME], path)
        return found
    check_keys(found, settings_of(kind_of(found[NAME], path)), path)
    return found


def make_policy(entry: object, path: str = "policies") -> Policy:
    """Make a policy from its entry in a job.

    Raises
    ------
    ConfigError
        As :func:`read_entry`, and when a value is out of its range.
    """
    found = read_entry(entry, path)
    kind = kind_of(found.pop(NAME), path)
    try:
        made: Policy = kind(**found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", **error.fields) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", path=path) from None
    return made


def check_entries(entries: Sequence[object], path: str = "policies") -> list[dict[str, Any]]:
    """Check a job's ``policies`` and return them written in full.

    Raises
    ------
    ConfigError
        For the first that is wrong, and when one stands there twice.
    """
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Sequence):
        raise ConfigError(
            f"{path}: got {entries!r}, wanted a list such as [{{name: rebalance}}]", path=path
        )
    found = [read_entry(entry, f"{path}[{i}]") for i, entry in enumerate(entries)]
    names: list[str] = []
    for i, entry in enumerate(found):
        if entry[NAME] in names:
            raise ConfigError(f"{path}[{i}]: {entry[NAME]!r} stands there twice", path=path)
        names.append(entry[NAME])
        if not entry.get("off"):
            make_policy(entry, f"{path}[{i}]")
    if {entry[NAME] for entry in found if not entry.get("off")} >= {*LOCAL_WORK}:
        raise ConfigError(
            f"{path}: got {' and '.join(LOCAL_WORK)}, which both set local_epochs; leave one out",
            path=path,
        )
    return found


def make_policies(
    entries: Sequence[object],
    *,
    absent: str,
    holders: int | None = 1,
    algorithm: str = "",
    gap_target: float | None = None,
    members_min: int = 1,
    local_epochs: float | None = None,
    is_paper: bool = False,
) -> list[Policy]:
    """Make the policies that a job runs with, in the order in which they are asked.

    By themselves there are the rule for absent chunks that goes with ``absent``, elastic scaling,
    replicas where chunks may have two holders, and with them re-dealing for both CoCoAs, unless
    absent chunks are frozen. An entry takes the place of the one of its name.

    Parameters
    ----------
    entries : sequence
        The job's ``policies``: names or mappings.
    absent : str
        The job's setting.
    holders : int, optional
        Members that have a chunk's body: 1 or 2; None when that is settled later.
    algorithm : str
        The name of the job's algorithm.
    gap_target : float, optional
        Where the job stops, for predictions.
    members_min : int
        With fewer members than these the job waits; policies do not go below by themselves.
    local_epochs : float, optional
        The algorithm's setting, with which tuning begins.
    is_paper : bool
        Whether the algorithm goes by the papers' letter; absent groups then wait for newcomers.

    Returns
    -------
    list of Policy

    Raises
    ------
    ConfigError
        As :func:`check_entries`.
    """
    found: dict[str, dict[str, Any]] = {"elastic_scaling": {}}
    given = check_entries(entries)
    if not {e[NAME] for e in given} & set(ABSENCE):
        found[absence_policy(absent).name] = {}
    if holders != 1:
        found["replicas"] = {}
        # With "freeze" it is known what those that vanish had only while they still have what they
        # had at the last certificate; dealt anew, all of their dual variables would be void.
        if algorithm in DEALT_ANEW and absent != "freeze":
            found["redeal"] = {}
    for entry in given:
        settings = {k: v for k, v in entry.items() if k != NAME}
        if settings.pop("off", False):
            found.pop(entry[NAME], None)
        else:
            found[entry[NAME]] = settings
    if found.get("knee", {}).get("redeal_first"):
        # Somebody must deal when the knee says how much.
        found.setdefault("redeal", {"share": 0})
    dealt = make_policy({NAME: "redeal", **found["redeal"]}) if "redeal" in found else None
    draws_all = isinstance(dealt, Redeal) and dealt.draws_all and holders != 1
    context = {
        "minimum": members_min,
        "target": gap_target,
        "start": local_epochs,
        "redeal_share": 1.0 if draws_all else None,
        "alone_s": math.inf if is_paper else None,
    }
    made: list[Policy] = []
    for name, settings in found.items():
        known = settings_of(kind_of(name)) if name in POLICIES else {}
        extra = {k: v for k, v in context.items() if k in known and v is not None}
        policy = make_policy({NAME: name, **extra, **settings})
        if isinstance(policy, Rebalance):
            policy.gives_way = draws_all
        if isinstance(policy, GlobalShuffle):
            # Two that drop copies of one chunk at one boundary would leave too few.
            policy.discards = "replicas" not in found
        made.append(policy)
    order = list(POLICIES)
    return sorted(made, key=lambda p: order.index(p.name) if p.name in order else len(order))
