"""The policy registry: names, job-file entries, and the list of policies that a job runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.policy import Policy
from elasticml.errors import ConfigError, one_line, shown
from elasticml.policies.background_shuffle import GlobalShuffle
from elasticml.policies.elastic_scaling import ElasticScaling
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from elasticml.policies.inner_iterations import ChooseInnerIterations
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.readmission import Reload, WholeGroup, readmission_policy
from elasticml.policies.rebalance import Rebalance
from elasticml.policies.replication import ChunkReplication
from elasticml.policies.reshuffle import Redeal
from elasticml.policies.straggler import Straggler
from elasticml.policies.tune_local_work import TuneLocalWork
from elasticml.policies.validation import NAME, check_keys, settings_of
from elasticml.protocol.job_record import JobRecord
from elasticml.specification.algorithms import DEALT_ANEW, LOCAL_WORK
from elasticml.specification.settings_model import choices_of
from elasticml.specification.user_objects import imported

#: In the order in which they are asked, most urgent first. When two policies suggest different
#: things for a chunk or a member, the first one wins.
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
    "replicas": ChunkReplication,
    "tune_local_work": TuneLocalWork,
    "inner_iterations": ChooseInnerIterations,
}
#: Readmission policies; a job has one of them.
READMISSION = ("whole_group", "reload")
#: ``{name: none}`` switches off a default policy.
OFF = "none"


def kind_of(name: str, path: str = "policies") -> type:
    """Return the class of a policy by its name, or a user's class by ``module:Class``.

    Raises
    ------
    ConfigError
        When no policy has that name, or the class cannot be imported or is not a policy.
    """
    if name in POLICIES:
        return POLICIES[name]
    if ":" not in name:
        raise ConfigError(f"{path}: there is no policy {shown(name)}{choices_of(name, POLICIES)}")
    kind = imported(path, name)
    if not isinstance(kind, type) or not callable(getattr(kind, "suggest", None)):
        raise ConfigError(
            f"{path}: {shown(name)} is not a class with a method suggest(view), which a policy "
            "must be"
        )
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(
            f"{path}: {shown(name)} has no name for the story; give the class one, such as "
            f"name = {kind.__name__.lower()!r}"
        )
    return kind


def read_entry(entry: object, path: str = "policies") -> dict[str, Any]:
    """Normalize an entry of a job's ``policies`` to a mapping with a name.

    ``rebalance`` is short for ``{name: rebalance}``, and ``{redeal: none}`` for
    ``{name: redeal, off: true}``.

    Raises
    ------
    ConfigError
        When it is neither a name nor a mapping, or its policy or one of its settings is unknown.
    """
    if isinstance(entry, str):
        entry = {NAME: entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"{path}: got {shown(entry)}, wanted a name or a mapping such as {{name: rebalance}}"
        )
    fields = dict(entry)
    if NAME not in fields and len(fields) == 1:
        ((name, value),) = fields.items()
        if value == OFF or value is None or value is False:
            kind_of(str(name), path)
            return {NAME: str(name), "off": True}
    if not isinstance(fields.get(NAME), str):
        raise ConfigError(
            f"{path}: got {shown(dict(entry))}, wanted a mapping with a name"
            f"{choices_of('', POLICIES)}"
        )
    if fields.get("off") is True and len(fields) == 2:
        kind_of(fields[NAME], path)
        return fields
    check_keys(fields, settings_of(kind_of(fields[NAME], path)), path)
    return fields


def make_policy(entry: object, path: str = "policies") -> Policy:
    """Make a policy from its entry in a job.

    Raises
    ------
    ConfigError
        As :func:`read_entry`, and when a value is out of range.
    """
    fields = read_entry(entry, path)
    kind = kind_of(fields.pop(NAME), path)
    try:
        policy: Policy = kind(**fields)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {one_line(error)}") from None
    return policy


def check_entries(entries: Sequence[object], path: str = "policies") -> list[dict[str, Any]]:
    """Check a job's ``policies`` and return the normalized entries.

    Raises
    ------
    ConfigError
        For the first invalid entry, and when a policy is listed twice.
    """
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Sequence):
        raise ConfigError(
            f"{path}: got {shown(entries)}, wanted a list such as [{{name: rebalance}}]"
        )
    checked = [read_entry(entry, f"{path}[{i}]") for i, entry in enumerate(entries)]
    names: list[str] = []
    for i, entry in enumerate(checked):
        if entry[NAME] in names:
            raise ConfigError(f"{path}[{i}]: {shown(entry[NAME])} is listed twice")
        names.append(entry[NAME])
        if not entry.get("off"):
            make_policy(entry, f"{path}[{i}]")
    if {entry[NAME] for entry in checked if not entry.get("off")} >= {*LOCAL_WORK}:
        raise ConfigError(
            f"{path}: got {' and '.join(LOCAL_WORK)}, which both set local_epochs; leave one out"
        )
    return checked


def make_policies(
    entries: Sequence[object],
    *,
    absent: str,
    holders: int | None = 1,
    algorithm: Mapping[str, Any] | None = None,
    gap_target: float | None = None,
    members_min: int = 1,
) -> list[Policy]:
    """Make the policies that a job runs, in the order in which they are asked.

    The defaults are the readmission policy for ``absent`` and elastic scaling; if chunks may have
    two holders also replication, and, for both CoCoAs unless absent chunks are frozen, reshuffling.
    An entry replaces the default of the same name.

    Parameters
    ----------
    entries : sequence
        The job's ``policies``: names or mappings.
    absent : str
        The job's setting ``absent``.
    holders : int, optional
        Members that hold a chunk's body: 1 or 2; None if decided later.
    algorithm : mapping, optional
        The job's ``algorithm`` section. Tuning starts from its ``local_epochs``. With ``mode:
        paper`` absent groups wait for newcomers.
    gap_target : float, optional
        The gap at which the job stops, for predictions.
    members_min : int
        The job waits with fewer members than this; policies do not scale in below it.

    Returns
    -------
    list of Policy

    Raises
    ------
    ConfigError
        As :func:`check_entries`.
    """
    algorithm = algorithm or {}
    settings_by_name: dict[str, dict[str, Any]] = {"elastic_scaling": {}}
    checked = check_entries(entries)
    if not {e[NAME] for e in checked} & set(READMISSION):
        is_paper = algorithm.get("mode") == "paper"
        readmission, defaults = readmission_policy(absent, is_paper=is_paper)
        settings_by_name[readmission] = {**defaults}
    if holders != 1:
        settings_by_name["replicas"] = {}
        # "freeze" needs the chunks that lost members owned at the last certificate. A reshuffle
        # since then would void all of their dual variables.
        if algorithm.get("name") in DEALT_ANEW and absent != "freeze":
            settings_by_name["redeal"] = {}
    for entry in checked:
        settings = {k: v for k, v in entry.items() if k != NAME}
        if settings.pop("off", False):
            settings_by_name.pop(entry[NAME], None)
        else:
            settings_by_name[entry[NAME]] = settings
    if settings_by_name.get("knee", {}).get("redeal_first"):
        # The knee policy only sets the share; the reshuffle policy must exist to apply it.
        settings_by_name.setdefault("redeal", {"share": 0})
    reshuffle = (
        make_policy({NAME: "redeal", **settings_by_name["redeal"]})
        if "redeal" in settings_by_name
        else None
    )
    draws_all = isinstance(reshuffle, Redeal) and reshuffle.draws_all and holders != 1
    context = {
        "minimum": members_min,
        "target": gap_target,
        "start": algorithm.get("local_epochs"),
        "redeal_share": 1.0 if draws_all else None,
        "alone_s": math.inf if algorithm.get("mode") == "paper" else None,
    }
    made: list[Policy] = []
    for name, settings in settings_by_name.items():
        accepted = settings_of(kind_of(name)) if name in POLICIES else {}
        extra = {k: v for k, v in context.items() if k in accepted and v is not None}
        policy = make_policy({NAME: name, **extra, **settings})
        if isinstance(policy, Rebalance):
            policy.defers_to_reshuffle = draws_all
        if isinstance(policy, GlobalShuffle):
            # Two policies dropping copies of one chunk at the same boundary would leave too few.
            policy.discards = "replicas" not in settings_by_name
        made.append(policy)
    order = list(POLICIES)
    return sorted(made, key=lambda p: order.index(p.name) if p.name in order else len(order))


def policies_of_job(record: JobRecord, settings: DriverSettings) -> list[Policy]:
    """Make the policies that a job's record lists, and those that every job has.

    If the number of holders is decided later by the members' memory, the policies for two holders
    are made: with a view that asks for one holder they copy nothing.

    Raises
    ------
    ConfigError
        When an entry is invalid.
    """
    return make_policies(
        record.policies,
        absent=settings.absent,
        holders=2 if settings.holders is None else settings.holders,
        algorithm=record.algorithm,
        gap_target=settings.gap_target,
        members_min=settings.members_min,
    )
