"""The settings of a job: the sections of a job file, the arguments of ``em.Job``, their schema.

``--set`` overrides are applied to the YAML before it is read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from elasticml.data.source import (
    FILE_FORMATS,
    Source,
    format_named,
    how_to_give_again,
    infer_format,
    listed_once,
    unlisted,
)
from elasticml.data.storage.filesystem import is_url
from elasticml.errors import ConfigError, one_line, shown
from elasticml.ids import parse_size
from elasticml.jobs.run_checkpoints import CheckpointSetting, checkpoint_setting, job_file_entry
from elasticml.jobs.yaml_text import TEXT_BYTES_MAX, load_yaml
from elasticml.protocol.job_record import JobRecord
from elasticml.sim.preemption_trace import options_from_section
from elasticml.specification.algorithms import (
    LOCAL_WORK,
    NAMED,
    Absent,
    AnyAlgorithm,
    AsyncSGD,
    BatchGradient,
    CoCoA,
    ImportedAlgorithm,
    Linear,
    LocalSGD,
    PrimalCoCoA,
    absent_rule,
    certifies_gap,
    require_torch,
    resolved,
)
from elasticml.specification.sections import (
    CLUSTERS,
    Address,
    Checkpoint,
    Cluster,
    ClusterFactory,
    Collective,
    Evaluate,
    Fault,
    Holders,
    LocalWorkers,
    Members,
    Placement,
    Stop,
    Validate,
    check_faults,
    default_stop,
    read_faults,
)
from elasticml.specification.settings_model import (
    AS_IT_IS,
    IS_PATH,
    Count,
    Index,
    SettingsModel,
    Threads,
    documented,
    keys_of,
    names_by_key,
    read_settings,
    unknown_choice,
    unknown_key,
)
from elasticml.specification.simulator import WorldOptions
from elasticml.specification.user_objects import path_of

#: The settings that a job file has in its section ``data``, besides the options of the reader.
OF_DATA = ("test", "chunk_size", "cache")


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Read the sections of a job file.

    Raises
    ------
    ConfigError
        When the file does not exist, is not YAML, or is not a mapping.
    """
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_BYTES_MAX + 1).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"job file {str(path)!r}: byte {error.start} is not UTF-8; name a YAML file"
        ) from None
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ConfigError(f"job file {str(path)!r}: {why}; name a YAML file") from None
    raw = load_yaml(text, f"job file {str(path)!r}")
    if not isinstance(raw, dict):
        raise ConfigError(
            f"job file {str(path)!r}: wanted sections such as data: and algorithm:, got "
            f"{'nothing' if raw is None else type(raw).__name__}"
        )
    return raw


def apply_override(raw: dict[str, Any], setting: str) -> None:
    """Apply one ``section.key=value`` override to a job file's mapping, in place.

    Parameters
    ----------
    setting : str
        A number in the path is a list index, from 0. The value is parsed as YAML.

    Raises
    ------
    ConfigError
        When it has no ``=``, the value is not YAML, or the path does not exist.
    """
    path, sign, text = setting.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise ConfigError(
            f"--set {setting[:100]}: wanted section.key=value, such as --set stop.rounds=50"
        )
    try:
        value = load_yaml(text, "the value")
    except ConfigError as error:
        raise ConfigError(
            f"--set {setting[:100]}: the value is not YAML; quote it ({error.message})"
        ) from None
    place: Any = raw
    for key in keys[:-1]:
        at = _key_in(place, key, setting)
        if isinstance(place, dict) and place.get(at) is None:
            place[at] = {}
        place = place[at]
    place[_key_in(place, keys[-1], setting)] = value


def _key_in(place: Any, key: str, setting: str) -> str | int:
    """Return the key of a mapping or the index in a list."""
    if isinstance(place, dict):
        return key
    wrong = f"{shown(key)} is below {shown(place)}, which has no keys"
    if isinstance(place, list):
        if key.isdigit() and int(key) < len(place):
            return int(key)
        wrong = f"wanted a number below {len(place)}, got {shown(key)}"
    raise ConfigError(f"--set {setting[:100]}: {wrong}")


def data_section(path: Path) -> Mapping[str, Any]:
    """Return a job file's ``data`` section.

    Raises
    ------
    ConfigError
        When the file cannot be read, or has no such section.
    """
    section = read_yaml_mapping(path).get("data")
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"job file '{path}': data is {shown(section)}, wanted a mapping with format and path"
        )
    return section


def readers_part(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of the reader in a section ``data``, with absolute paths.

    Raises
    ------
    ConfigError
        When it neither names a format nor implies one.
    """
    spec = {key: value for key, value in section.items() if key not in OF_DATA}
    spec = with_path(spec, folder)
    if spec.get("format") is None:
        spec["format"] = infer_format(str(spec.get("path", "")))
    if spec["format"] is None:
        raise ConfigError(
            f"data.format: left out, and the name {shown(spec.get('path'))} does not imply one; "
            f"wanted one of {', '.join(FILE_FORMATS)}"
        )
    return spec


def with_path(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make a spec's paths absolute, with environment variables expanded."""
    resolved = dict(spec)
    for key in ("path", "labels"):
        if isinstance(spec.get(key), str):
            resolved[key] = absolute_path(spec[key], f"data.{key}", folder)
    return resolved


def absolute_path(path: str, key: str, folder: Path) -> str:
    """Expand environment variables and ``~`` in a path, and make it absolute; URLs stay.

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
            f"export {unset[1]}=..."
        )
    if path.startswith("$") and "://" not in expanded:
        # Relative paths from variables are relative to the working directory, as in a shell.
        expanded = os.path.abspath(expanded)
    return expanded if "://" in expanded else str(folder / expanded)


def absolute_paths(kind: Any, section: Any, path: str, folder: Path) -> Any:
    """Make the paths of a section absolute, and those of the sections in it.

    Parameters
    ----------
    kind : type
        The class of its settings, some of which are marked as paths.
    section : mapping or other value
    path : str
        What messages call the section.
    """
    if not isinstance(section, Mapping):
        return section
    made = dict(section)
    for key, name in names_by_key(kind).items():
        setting, where = kind.__pydantic_fields__[name], f"{path}.{key}"
        if IS_PATH in setting.metadata and isinstance(made.get(key), str):
            made[key] = absolute_path(made[key], where, folder)
        for inner in get_args(setting.annotation):
            if hasattr(inner, "__pydantic_fields__") and key in made:
                made[key] = absolute_paths(inner, made[key], where, folder)
    return made


#: Examples of the required sections, for error messages.
_EXAMPLES = {"data": "format: svmlight, path: train.svm", "algorithm": "name: batch_gradient"}
#: Policies that decide by the certified gap; without one they never act.
NEED_GAP = ("knee", "gap_per_container_second", *LOCAL_WORK)
#: Policies that use the members' times per round.
NEED_ROUNDS = ("rebalance", "straggler")
#: Least memory limit of a member; its process takes most of that without data.
MEMBER_BYTES_MIN = 2**28


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
    raise ConfigError(f"{path}: got {got}, wanted a source: {wanted}")


def policy_entries(policies: Any) -> list[dict[str, Any]]:
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

    if isinstance(policies, Iterable) and not isinstance(policies, str | Mapping):
        policies = [_written(policy, f"policies[{i}]") for i, policy in enumerate(policies)]
    return check_entries(policies)


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
            "own names"
        ) from None
    if kind not in POLICIES.values():
        entry[NAME] = path_of(kind)
    return entry


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
        return absolute_path(str(cache), "data.cache", folder or Path.cwd())
    raise ConfigError(
        f"data.cache: got {shown(cache)}, wanted true, false or a directory on the workers' hosts"
    )


def _size(size: int | str, least: int, path: str, wanted: str) -> int:
    try:
        nbytes = 0 if isinstance(size, bool) else parse_size(size)
    except (ValueError, TypeError):
        nbytes = 0
    if least <= nbytes < math.inf:
        return nbytes
    raise ConfigError(f"{path}: got {shown(size)}, wanted {wanted}")


def parse_chunk_size(size: int | str | None) -> int | None:
    """Parse ``data.chunk_size``; None if it is to be derived from the data and the members.

    Raises
    ------
    ConfigError
        When it is not a size.
    """
    if size is None or size == "auto":
        return None
    return _size(size, 1, "data.chunk_size", "'auto' or a size such as '1 MiB'")


def _memory_limit(size: int | str | None) -> int | None:
    if size is None:
        return None
    wanted = (
        "a size from 256 MiB on, such as '1 GiB': a member takes about 200 MiB without any data"
    )
    return _size(size, MEMBER_BYTES_MIN, "memory_limit", wanted)


def _read(parse: Callable[[Any], Any], accepted: Any = ...) -> BeforeValidator:
    """Return what makes a setting of a value; the schema has the types that are accepted."""
    known = {} if accepted is ... else {"json_schema_input_type": accepted}
    return BeforeValidator(parse, **known)


def _section(kind: Any) -> BeforeValidator:
    """Return what makes a section of a mapping."""

    def read(value: Any, info: ValidationInfo) -> Any:
        return read_settings(kind, value, str(info.field_name))

    return BeforeValidator(read, json_schema_input_type=kind | None)


def _evaluate(value: Any) -> Any:
    if isinstance(value, bool):
        return None if value else False
    return read_settings(Evaluate, value, "evaluate")


def _validate(value: Any) -> Validate | None:
    if isinstance(value, bool):
        return None if not value else read_settings(Validate, {}, "validate")
    if isinstance(value, int | float):
        value = {"share": value}
    elif not isinstance(value, Validate | Mapping):
        value = {"data": value}
    validate = read_settings(Validate, value, "validate")
    if validate.data is not None:
        check_source(validate.data, "validate.data")
    return validate


def _simulate(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"simulate: got {shown(value)}, wanted a mapping such as {{latency_s: 0.001}}"
        )
    options_from_section(value)
    return value


def _read_cluster(value: Any) -> Cluster:
    if isinstance(value, Cluster):
        return value
    if isinstance(value, str):
        return Address(address=value)
    kind = value.get("kind", "local") if isinstance(value, Mapping) else "local"
    if not isinstance(kind, str) or kind not in CLUSTERS:
        raise unknown_choice(kind, CLUSTERS, "cluster.kind")
    return read_settings(CLUSTERS[kind], value, "cluster")


def _algorithm(value: Any) -> AnyAlgorithm:
    if isinstance(value, AnyAlgorithm | Linear):
        return resolved(value)
    if not isinstance(value, Mapping):
        wanted = "em.CoCoA(...) or another algorithm: em.Job(algorithm, data), in this order"
        raise ConfigError(f"algorithm: got {shown(value)}, wanted {wanted}")
    name = value.get("name")
    if isinstance(name, str) and ":" in name:
        return read_settings(ImportedAlgorithm, value, "algorithm")
    if not isinstance(name, str) or name not in NAMED:
        raise unknown_choice(name, sorted(NAMED), "algorithm.name")
    rest = {key: setting for key, setting in value.items() if key != "name"}
    return resolved(read_settings(NAMED[name], rest, "algorithm"))


@documented
class JobSpec(SettingsModel):
    """Everything that is said of a job; nothing has been read and nothing was started.

    Parameters
    ----------
    algorithm : Linear, AsyncSGD, BatchGradient, CoCoA, LocalSGD, PrimalCoCoA or ImportedAlgorithm
        What trains the model, with its settings.
    data : Source
        The training data: what ``em.read_csv``, ``em.read_svmlight``, ``em.from_dask``,
        ``em.from_arrays`` and similar functions return.
    test : Source, optional
        Test rows. Members load them beside the training data, never train on them, and score the
        model on them.
    name : str
        A label, by default that of the job file; the name of the run directory starts with it.
    absent : {"auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload", "freeze"}
        What to do about the examples of lost members. "reload": other members read them again.
        "taylor": an estimate from their last gradient replaces them. "ignore": continue without
        them. "stall": wait for them. "freeze": keep their dual variables as they are. "auto": for
        batch gradient "taylor" with curvature, otherwise "reload".
    policies : sequence of policies, names or mappings
        Rules that change the job between rounds, such as ``em.policies.ScaleInAtKnee()`` or
        ``{"name": "rebalance"}``; at most one of ``tune_local_work`` and ``inner_iterations``.
    stop : Stop or mapping, optional
        When the job ends at the latest, by default after 1000 rounds (local SGD and asynchronous
        SGD: 100). It ends earlier if its model is good enough, see ``tolerance`` of the algorithm.
    seed : int, not negative
        Seed of all random choices.
    faults : sequence of mappings
        Planned faults: ``{"round": 9, "lose": 7}``, ``{"round": 20, "return": 7}``; LocalCluster
        only.
    chunk_size : size, optional
        Bytes; by default ``min(1 MiB, total / (64 members))``, for local SGD ``"200 KiB"``.
    cache : path, bool or None
        Directory for parsed blocks of text; False for none; by default ``~/.cache/elasticml``.
    collective : Collective or mapping, optional
        Tree and transport of models and partials; by default chosen by members and hosts.
    partitions : int, optional
        Number of fixed partitions of the examples, several per member, as in the papers.
    holders : "auto", 1 or 2
        On how many members each chunk is stored. With 2, a lost chunk need not be read again.
        "auto" is 2 for both CoCoAs if everything fits in memory twice, otherwise 1.
    placement : "auto", "contiguous" or "random"
        How chunks are first assigned to members. "auto" is contiguous for batch gradient, otherwise
        random.
    warm_start : model, mapping or path, optional
        Initial model for both CoCoAs, asynchronous and local SGD: ``result.model``, a mapping of
        arrays such as ``coef`` and ``intercept``, ``centres``, or a module's ``state_dict()``; a
        run directory or its ``model.npz``, which may be at a URL.
    members : Members or mapping, optional
        ``start``: members before round 0, by default as many as the cluster has workers.
    evaluate : Evaluate, mapping, None or False
        ``Evaluate(every=10)`` keeps the model of every tenth round and scores it on the test rows;
        None scores only the last model, on training and test rows; False scores nothing.
    validate : float, Source, Validate or mapping, optional
        Rows that members score while the job trains: a share of the training rows, or other data.
        ``Validate(share=0.1, metric="accuracy", patience=5)``: the job ends after five scores
        without improvement; the result has the model with the best score.
    checkpoint : Checkpoint, path, bool or None
        Where to write checkpoints, from which another process can resume the job. True: in the run
        directory; None: no checkpoints; of a job file whose cluster is local or YARN, as True.
        The scheduler writes them, so it must be able to access the path.
    threads : int, optional
        Compute threads of a member; by default those of its worker.
    memory_limit : size, optional
        Memory limit of a member, such as ``"1 GiB"``; data beyond it are streamed from its disk.
    simulate : mapping, optional
        Options of ``elasticml simulate``; other commands ignore it.
    cluster : mapping, optional
        Where ``elasticml run`` runs the job, by default in 4 worker processes on this machine;
        :meth:`Job.run` and :meth:`Job.start` take a client.

    Raises
    ------
    ConfigError
        When a setting is invalid.
    """

    name: str = "job"
    algorithm: Annotated[AnyAlgorithm, AS_IT_IS, _read(_algorithm)] = Field(kw_only=False)
    data: Annotated[Source, AS_IT_IS] = Field(kw_only=False)
    test: Annotated[Source | None, AS_IT_IS] = None
    chunk_size: Annotated[int | None, _read(parse_chunk_size, int | str | None)] = None
    cache: Annotated[str | bool | None, _read(parse_cache)] = None
    cluster: Annotated[Cluster | None, AS_IT_IS, _read(_read_cluster)] = None
    absent: Absent = "auto"
    policies: Annotated[list[dict[str, Any]], _read(policy_entries)] = Field(default_factory=list)
    stop: Stop = Field(default=None, validate_default=True)
    seed: Index = 0
    faults: Annotated[tuple[Fault, ...], _read(read_faults)] = ()
    collective: Annotated[Collective, _section(Collective)] = Field(default_factory=Collective)
    partitions: Count | None = None
    holders: Holders = "auto"
    placement: Placement = "auto"
    warm_start: Annotated[Any, _read(lambda given: given, str | None)] = None
    members: Annotated[Members, _section(Members)] = Field(default_factory=Members)
    evaluate: Annotated[Evaluate | Literal[False] | None, _read(_evaluate)] = None
    validation: Annotated[Validate | None, _read(_validate, Validate | float | str | None)] = Field(
        default=None, alias="validate"
    )
    checkpoint: Annotated[
        CheckpointSetting | None, _read(checkpoint_setting, Checkpoint | bool | str | None)
    ] = None
    threads: Threads | None = None
    memory_limit: Annotated[int | None, _read(_memory_limit, int | str | None)] = None
    simulate: Annotated[Mapping[str, Any] | None, _read(_simulate, WorldOptions | None)] = None

    if not TYPE_CHECKING:  # which derives the arguments from the settings

        def __init__(self, **settings: Any) -> None:
            super().__init__(**{k: value for k, value in settings.items() if value is not None})

    @classmethod
    def path_in_messages(cls) -> str:
        """Return nothing: the settings are at the top of the job file."""
        return ""

    @field_validator("data", "test", mode="before")
    @classmethod
    def _check_source(cls, value: Any, info: ValidationInfo) -> Any:
        check_source(value, "data" if info.field_name == "data" else "data.test")
        return value

    @field_validator("stop", mode="before", json_schema_input_type=Stop | None)
    @classmethod
    def _read_stop(cls, value: Any, info: ValidationInfo) -> Stop:
        return read_settings(Stop, value, "stop") if value else default_stop(info.data["algorithm"])

    @classmethod
    def from_file(
        cls, path: str | Path, settings: Sequence[str] = (), default_kind: str = "local"
    ) -> Self:
        """Read a job file.

        Parameters
        ----------
        path : path
            Paths in the file are relative to its folder; ``~`` and ``$NAME`` are expanded.
        settings : sequence of str
            Overrides such as ``"stop.rounds=50"`` or ``"faults.0.lose=3"``, applied before
            validation.
        default_kind : str
            The kind of cluster if the file does not set one.

        Raises
        ------
        ConfigError
            When the file does not exist, is not YAML, or has an invalid setting.

        Examples
        --------
        >>> with open("job.yaml", "w") as file:
        ...     print("data: {format: svmlight, path: a.svm}", file=file)
        ...     print("algorithm: {name: cocoa}", file=file)
        >>> job = em.Job.from_file("job.yaml", ["stop.rounds=50"])
        >>> job.name, job.algorithm, job.stop
        ('job', CoCoA(), Stop(rounds=50))
        """
        path = Path(path)
        raw = read_yaml_mapping(path)
        for setting in settings:
            apply_override(raw, setting)
        if default_kind != "local":
            if raw.get("cluster") is None:
                raw["cluster"] = {}
            if isinstance(raw["cluster"], dict):
                raw["cluster"].setdefault("kind", default_kind)
        return cls.from_sections(raw, folder=path.resolve().parent, name=path.stem)

    @classmethod
    def from_sections(cls, raw: Mapping[str, Any], *, folder: Path, name: str) -> Self:
        """Read the sections of a job file.

        Parameters
        ----------
        raw : mapping
            The parsed YAML.
        folder : Path
            The base of relative paths.
        name : str
            The job's name if the file does not set one.

        Raises
        ------
        ConfigError
            When a setting is invalid.
        """
        for key in raw:
            if key not in SECTIONS:
                raise unknown_key(key, SECTIONS, "")
        for key in ("data", "algorithm"):
            if not isinstance(raw.get(key), Mapping):
                example = f"{key}: {{{_EXAMPLES[key]}}}"
                raise ConfigError(f"{key} is missing; such as {example}")
        data, test = _sources(raw["data"], folder)
        members = read_settings(Members, raw.get("members"), "members")
        cluster = _cluster(raw.get("cluster"), members, folder)
        if isinstance(cluster, ClusterFactory):
            most = cluster.workers_max or cluster.workers
            members = members.model_copy(
                update={"start": members.start or cluster.workers, "max": members.max or most}
            )
        label = raw.get("name") or name
        own = {
            "name": label if isinstance(label, Mapping | list) else str(label),
            "data": data,
            "test": test,
            "chunk_size": raw["data"].get("chunk_size"),
            "cache": parse_cache(raw["data"].get("cache"), folder),
            "cluster": cluster,
            "warm_start": _file(raw.get("warm_start"), folder, "warm_start"),
            "members": members,
            "validate": _validation(raw.get("validate"), raw["data"], folder),
            "checkpoint": _checkpoint(raw.get("checkpoint"), folder, cluster),
            "simulate": absolute_paths(WorldOptions, raw.get("simulate"), "simulate", folder),
        }
        return cls(**{**raw, **own})

    def check(self) -> None:
        """Check constraints between sections."""
        self._check_algorithm()
        cluster, members = self.cluster, self.members
        if not isinstance(cluster, LocalWorkers | None) and self.faults:
            raise ConfigError(
                f"faults: cluster.kind is {cluster.kind}, and elasticml cannot stop processes "
                "there; use cluster.kind: local, or leave faults out"
            )
        if cluster is None or isinstance(cluster, Address):
            if members.start is not None:
                check_faults(self.faults, members.start)
            return
        most = cluster.workers_max or cluster.workers
        if isinstance(cluster, ClusterFactory) and (members.max or most) > most:
            raise ConfigError(
                f"members.max: got {members.max}, wanted at most {most}, the most workers that the "
                "cluster may have; lower it or raise cluster.workers_max"
            )
        if members.min > most:
            raise ConfigError(
                f"members.min: got {members.min}, wanted at most {most}, the most workers that "
                "the cluster may have; lower it or raise cluster.workers"
            )
        if members.start is not None and members.start > cluster.workers:
            raise ConfigError(
                f"members.start: got {members.start}, wanted at most cluster.workers, "
                f"{cluster.workers}: the job would wait forever for the others"
            )
        check_faults(self.faults, members.start or cluster.workers)

    def _check_algorithm(self) -> None:
        """Check the settings that not every algorithm supports."""
        algorithm, stop = self.algorithm, self.stop
        require_torch(algorithm)
        absent_rule(algorithm.name, self.absent)
        is_local_sgd = isinstance(algorithm, LocalSGD)
        if is_local_sgd and stop.objective is not None:
            raise ConfigError(
                "stop.objective: local_sgd computes only the mean loss of the last samples; use "
                "stop.epochs, rounds or seconds"
            )
        if stop.epochs is not None and not is_local_sgd:
            raise ConfigError(
                f"stop.epochs: local_sgd counts epochs, {algorithm.name} does not; use stop.rounds"
            )
        for index, entry in enumerate(
            self.policies if isinstance(algorithm, BatchGradient) else ()
        ):
            if entry["name"] in LOCAL_WORK and not entry.get("off"):
                raise ConfigError(
                    f"policies[{index}]: {entry['name']} sets local_epochs, which "
                    f"{algorithm.name} does not have; use algorithm cocoa, or leave it out"
                )
        if certifies_gap(algorithm):
            return
        named, certified = algorithm.name, _certified(algorithm)
        if isinstance(algorithm, BatchGradient):
            named += f" with loss {algorithm.loss} and l2 {algorithm.l2:g}"
        elif isinstance(algorithm, PrimalCoCoA):
            named += f" with penalty {algorithm.penalty}, which has no method conjugate,"
        if stop.gap is not None:
            others = "stop.epochs, rounds or seconds" if is_local_sgd else "stop.objective"
            raise ConfigError(
                f"stop.gap: {named} certifies no duality gap; use {certified}{others}"
            )
        for index, entry in enumerate(self.policies):
            name, path = entry["name"], f"policies[{index}]"
            if entry.get("off"):
                continue
            if isinstance(algorithm, AsyncSGD) and name in NEED_ROUNDS:
                raise ConfigError(
                    f"{path}: {name} relieves members that others wait for, and in "
                    f"{algorithm.name} no member waits; leave it out"
                )
            if name in NEED_GAP:
                # Local work is of CoCoA alone.
                is_local = certified and name in LOCAL_WORK
                use = "use algorithm cocoa, or " if is_local else certified and f"use {certified}"
                raise ConfigError(
                    f"{path}: {name} decides by the duality gap, which {named} does not certify; "
                    f"{use}leave it out"
                )


#: The sections of a job file, in the order in which ``job.yaml`` has them.
SECTIONS = [key for key in keys_of(JobSpec) if key not in OF_DATA]


def _certified(algorithm: AnyAlgorithm) -> str:
    """Return which algorithm certifies a gap for this one's loss, with "or"; "" if none does."""
    if not isinstance(algorithm, BatchGradient | AsyncSGD):
        return ""
    if isinstance(algorithm, AsyncSGD) and algorithm.problem != "linear":
        return ""
    name = BatchGradient.name if algorithm.terms.is_smooth() else CoCoA.name
    needs = [] if algorithm.l2 > 0.0 else ["with l2 above 0"]
    if isinstance(algorithm, BatchGradient) and algorithm.step != "line_search":
        needs.append("with step line_search")
    if isinstance(algorithm, BatchGradient) and algorithm.mode == "paper":
        needs.append("without an intercept")
    return f"algorithm {' '.join([name, *needs])}, or "


def _sources(section: Mapping[str, Any], folder: Path) -> tuple[Source, Source | None]:
    spec = readers_part(section, folder)
    test = section.get("test")
    beside = None if test is None else _beside(spec, test, folder, "data.test")
    return _file_source(spec, "data"), beside


def _beside(spec: Mapping[str, Any], other: object, folder: Path, key: str) -> Source:
    """Return a source of other data, which has the training data's options for all it leaves out.

    Parameters
    ----------
    spec : mapping
        The options of the training data.
    other : str or mapping
        A path, or options.
    key : str
        Its key in messages.
    """
    if isinstance(other, str):
        other = {"path": other}
    if not isinstance(other, Mapping):
        raise ConfigError(f"{key}: got {shown(other)}, wanted a path or a mapping")
    inherits = other.get("format", spec["format"]) == spec["format"]
    shared = {name: value for name, value in spec.items() if inherits and name != "labels"}
    return _file_source({**shared, **with_path(other, folder)}, key)


def _file_source(spec: Mapping[str, Any], path: str) -> Source:
    """Return a source of files, or of generated rows."""
    call = how_to_give_again(spec["format"])
    if call:
        raise ConfigError(
            f"{path}.format: data in memory have no file; write them to one and name it, or start "
            f"the job from Python with {call}"
        )
    return listed_once(format_named(spec["format"], path).of_spec(spec, path))


def _validation(value: Any, section: Mapping[str, Any], folder: Path) -> Any:
    """Return the section with its data as a source: they may be a path, or options."""
    data = value.get("data") if isinstance(value, Mapping) else value
    if data is None or (isinstance(data, bool | int | float) and data is value):
        return value
    beside = _beside(readers_part(section, folder), data, folder, "validate.data")
    return {**(value if isinstance(value, Mapping) else {}), "data": beside}


def _file(path: object, folder: Path, key: str) -> str | None:
    """Resolve the path of a local file."""
    if path is None or isinstance(path, str):
        return None if path is None else absolute_path(path, key, folder)
    raise ConfigError(f"{key}: got {shown(path)}, wanted the path or URL of a model.npz")


def _cluster(section: Any, members: Members, folder: Path) -> Cluster:
    """Read the section; paths are relative to the folder of the job file."""
    if section is None:
        section = {} if members.start is None else {"workers": members.start}
    if isinstance(section, Mapping):
        kind = str(section.get("kind", "local"))
        section = absolute_paths(CLUSTERS.get(kind, LocalWorkers), section, "cluster", folder)
        if kind in ("yarn", "factory") and section.get("workers") is None and members.start:
            section["workers"] = members.start
    return _read_cluster(section)


def _checkpoint(section: Any, folder: Path, cluster: Cluster) -> CheckpointSetting:
    """Validate the section; without it, checkpoints go into the run directory.

    For a cluster given by its address or by a function the default is no checkpoints: its scheduler
    may not be able to access the run directory.
    """
    if section is None:
        return False if isinstance(cluster, (Address, ClusterFactory)) else Checkpoint()
    section = {"path": section} if isinstance(section, str) else section
    return checkpoint_setting(absolute_paths(Checkpoint, section, "checkpoint", folder))


#: Sections that the record has in another form, or not at all.
_CONVERTED = ("name", "data", "algorithm", "cluster", "checkpoint")


def job_file_from_record(record: JobRecord) -> dict[str, Any]:
    """Return the sections of the job file for a record, without the cluster.

    Parameters
    ----------
    record : JobRecord
        Keys whose value is None or empty are omitted.
    """
    data = _given(unlisted(record.data))
    scored = data.pop("scored", None) or {}  # the section validate says the rest of it
    if "test" in scored:
        data["test"] = _given(scored["test"])
    if record.chunk_bytes:
        data["chunk_size"] = record.chunk_bytes
    if record.cache is not None:
        data["cache"] = record.cache
    job: dict[str, Any] = {
        "name": record.name,
        "data": data,
        "algorithm": _algorithm_entry(record),
    }
    for key in SECTIONS:
        if key in _CONVERTED:
            continue
        value = record.json.get(key)
        value = _given(value) if isinstance(value, Mapping) else value
        if value is not None and value != [] and value != {}:
            job[key] = value
    if "checkpoint" in record.json:
        job["checkpoint"] = job_file_entry(record.checkpoint)
    return job


def _algorithm_entry(record: JobRecord) -> dict[str, Any]:
    """Return the section without the keys that other sections set: seed, epochs, warm start."""
    is_local_sgd = record.algorithm_name == LocalSGD.name
    left_out = {"warm_start", "epochs"} if is_local_sgd else {"warm_start"}
    section = _given(record.algorithm)
    return {
        name: value
        for name, value in section.items()
        if name not in left_out and (name != "seed" or value != record.seed)
    }


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}
