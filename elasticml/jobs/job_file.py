"""Read job files: YAML and ``--set`` overrides in, validated settings out.

Every error names the key, its place in the file and the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from elasticml.data.source import (
    FILE_FORMATS,
    Source,
    format_named,
    how_to_give_again,
    infer_format,
    listed_once,
)
from elasticml.data.storage.filesystem import is_url
from elasticml.errors import ConfigError, shown
from elasticml.jobs.job_record import SECTIONS
from elasticml.jobs.job_validation import (
    check_together,
    expand_path,
    parse_cache,
    policy_entries,
)
from elasticml.jobs.run_checkpoints import CheckpointSetting, checkpoint_setting
from elasticml.jobs.yaml_text import TEXT_BYTES_MAX, load_yaml
from elasticml.sim.preemption_trace import options_from_section
from elasticml.specification.algorithms import (
    Absent,
    AnyAlgorithm,
    ImportedAlgorithm,
    Scale,
)
from elasticml.specification.linear import NAMED, resolved
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
    JobOptions,
    LocalWorkers,
    Members,
    Placement,
    Stop,
    TLSFiles,
    Validate,
    default_stop,
)
from elasticml.specification.settings_model import (
    keys_of,
    read_settings,
    unknown_choice,
    unknown_key,
)

# Validate the list of planned faults: every lost member exists, every returning one was lost.


def read_faults(raw: object, path: str = "faults") -> tuple[Fault, ...]:
    """Validate a list of faults.

    Returns
    -------
    tuple of Fault
        Sorted by round; faults of one round keep their order.

    Raises
    ------
    ConfigError
        When it is not a list, or an entry is invalid.
    """
    if raw is None:
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ConfigError(
            f"{path}: got {shown(raw)}, wanted a list such as [{{round: 100, lose: 7}}]", path=path
        )
    entries: list[Any] = list(raw)
    faults = [
        read_settings(Fault, entry, f"{path}[{index}]") for index, entry in enumerate(entries)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.round))


def check_faults(faults: Sequence[Fault], workers: int) -> None:
    """Check that each fault is possible: members to lose are present, members to return are lost.

    Parameters
    ----------
    faults : sequence of Fault, by round
    workers : int
        Members at round 0, in slots 0 to ``workers - 1``.

    Raises
    ------
    ConfigError
        When a fault removes more members than there are, names an empty slot, or returns more
        members than were lost.
    """
    here = set(range(workers))
    gone: set[int] = set()
    unnamed = 0
    for fault in faults:
        where = f"faults: round {fault.round}"
        n_here = workers - len(gone) - unnamed
        if fault.returned is not None:
            n_gone = len(gone) + unnamed
            if fault.returned > n_gone:
                raise ConfigError(
                    f"{where}: return: {fault.returned}, but {n_gone} of {workers} members have "
                    f"gone by then; lose them in an earlier round",
                    path="faults",
                )
            # The driver chooses which slots return first, so the named ones are unknown from here.
            unnamed += len(gone) - fault.returned
            gone = set()
        elif isinstance(fault.lose, list):
            wrong = [slot for slot in fault.lose if slot not in here or slot in gone]
            if wrong or len(fault.lose) > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but slot {(wrong or fault.lose)[0]} holds no "
                    f"member then; slots are 0 to {workers - 1}",
                    path="faults",
                )
            gone |= set(fault.lose)
        elif fault.lose is not None:
            if fault.lose > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but {n_here} of {workers} members are there "
                    f"then; lose fewer or set cluster.workers",
                    path="faults",
                )
            unnamed += fault.lose


# Read a job file's YAML and apply ``--set`` overrides to it before validation.


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
            f"job file {str(path)!r}: byte {error.start} is not UTF-8; name a YAML file",
            path=str(path),
        ) from None
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ConfigError(
            f"job file {str(path)!r}: {why}; name a YAML file", path=str(path)
        ) from None
    return _mapping(text, str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    raw = load_yaml(text, f"job file {where!r}")
    if not isinstance(raw, dict):
        raise ConfigError(
            f"job file {where!r}: wanted sections such as data: and algorithm:, got "
            f"{'nothing' if raw is None else type(raw).__name__}",
            path=where,
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
        place = _step(place, key, setting)
    if isinstance(place, list):
        _step(place, keys[-1], setting)
        place[int(keys[-1])] = value
    elif isinstance(place, dict):
        place[keys[-1]] = value
    else:
        raise ConfigError(f"--set {setting[:100]}: {keys[-2]} is {shown(place)}, which has no keys")


def _step(place: Any, key: str, setting: str) -> Any:
    if isinstance(place, list):
        if not key.isdigit() or int(key) >= len(place):
            raise ConfigError(
                f"--set {setting[:100]}: wanted a number below {len(place)}, got {shown(key)}"
            )
        return place[int(key)]
    if not isinstance(place, dict):
        raise ConfigError(
            f"--set {setting[:100]}: {shown(key)} is below {shown(place)}, which has no keys"
        )
    if place.get(key) is None:
        place[key] = {}
    return place[key]


#: Keys of ``data`` that are not options of the reader.
_NOT_THE_READERS = ("test", "chunk_size", "cache", "scale")
#: Examples of the required sections, for error messages.
_EXAMPLES = {"data": "format: svmlight, path: train.svm", "algorithm": "name: batch_gradient"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """The validated sections of a job file; no data have been read and nothing was started.

    Examples
    --------
    >>> with open("job.yaml", "w") as file:
    ...     print("data: {format: svmlight, path: a.svm}", file=file)
    ...     print("algorithm: {name: cocoa}", file=file)
    >>> em.read_job_file("job.yaml").name
    'job'
    """

    name: str
    data: Source
    test: Source | None
    chunk_size: int | str | None
    #: Cache directory for parsed blocks; False for none.
    cache: str | bool | None
    algorithm: AnyAlgorithm
    cluster: Cluster
    absent: Absent
    #: Entries in full form: mappings with a name.
    policies: tuple[Mapping[str, Any], ...]
    stop: Stop
    seed: int
    faults: tuple[Fault, ...]
    collective: Collective
    partitions: int | None
    holders: Holders
    placement: Placement
    #: Path of the initial model.
    warm_start: Path | None
    members: Members
    evaluate: Evaluate | bool | None
    validate: Validate | None
    checkpoint: CheckpointSetting
    threads: int | None
    memory_limit: int | str | None
    #: Options of ``elasticml simulate``; other commands ignore them.
    simulate: Mapping[str, Any] | None


def read_job_file(
    path: str | Path, settings: Sequence[str] = (), default_kind: str = "local"
) -> JobFile:
    """Read a job file.

    Parameters
    ----------
    path : path
        Paths in the file are relative to its folder; ``~`` and ``$NAME`` are expanded.
    settings : sequence of str
        Overrides such as ``"stop.rounds=50"`` or ``"faults.0.lose=3"``, applied before validation.
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
    >>> em.read_job_file("job.yaml").algorithm
    CoCoA()
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
    return parse_job(raw, folder=path.resolve().parent, name=path.stem)


def parse_job(raw: Mapping[str, Any], *, folder: Path, name: str) -> JobFile:
    """Validate the sections of a job file.

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
            raise ConfigError(f"{key} is missing; such as {key}: {{{_EXAMPLES[key]}}}", path=key)
    data, test = _sources(raw["data"], folder)
    algorithm = _algorithm(raw["algorithm"], raw["data"].get("scale"))
    members = read_settings(Members, raw.get("members"), "members")
    cluster = _cluster(raw.get("cluster"), members, folder)
    options = read_settings(
        JobOptions, {key: raw[key] for key in keys_of(JobOptions) if key in raw}, ""
    )
    if isinstance(cluster, ClusterFactory):
        most = cluster.workers_max or cluster.workers
        members = members.model_copy(
            update={"start": members.start or cluster.workers, "max": members.max or most}
        )
    parsed = JobFile(
        name=str(raw.get("name") or name),
        data=data,
        test=test,
        chunk_size=raw["data"].get("chunk_size"),
        cache=parse_cache(raw["data"].get("cache"), folder),
        algorithm=algorithm,
        cluster=cluster,
        policies=tuple(policy_entries(raw.get("policies") or ())),
        stop=read_settings(Stop, raw["stop"], "stop")
        if raw.get("stop")
        else default_stop(algorithm),
        faults=read_faults(raw.get("faults")),
        collective=read_settings(Collective, raw.get("collective"), "collective"),
        warm_start=_file(raw.get("warm_start"), folder, "warm_start"),
        members=members,
        evaluate=_evaluate(raw.get("evaluate")),
        validate=_validate(raw.get("validate"), raw["data"], folder),
        checkpoint=_checkpoint(raw.get("checkpoint"), folder, cluster),
        memory_limit=raw.get("memory_limit"),
        simulate=_world(raw.get("simulate"), folder),
        **options.model_dump(),
    )
    _check_together(parsed)
    return parsed


def _check_together(job: JobFile) -> None:
    """Check constraints between sections."""
    check_together(job.algorithm, job.absent, job.stop, job.policies)
    if not isinstance(job.cluster, LocalWorkers) and job.faults:
        raise ConfigError(
            f"faults: cluster.kind is {job.cluster.kind}, and elasticml cannot stop processes "
            "there; use cluster.kind: local, or leave faults out",
            path="faults",
        )
    if isinstance(job.cluster, Address):
        return
    workers, start = job.cluster.workers, job.members.start
    most = job.cluster.workers_max or workers
    if isinstance(job.cluster, ClusterFactory) and (job.members.max or most) > most:
        raise ConfigError(
            f"members.max: got {job.members.max}, wanted at most {most}, the most workers that the "
            "cluster may have; lower it or raise cluster.workers_max",
            path="members.max",
        )
    if job.members.min > most:
        raise ConfigError(
            f"members.min: got {job.members.min}, wanted at most {most}, the most workers that "
            "the cluster may have; lower it or raise cluster.workers",
            path="members.min",
        )
    if start is not None and start > workers:
        raise ConfigError(
            f"members.start: got {start}, wanted at most cluster.workers, {workers}: the job would "
            "wait forever for the others",
            path="members.start",
        )
    check_faults(job.faults, start or workers)


def _sources(section: Mapping[str, Any], folder: Path) -> tuple[Source, Source | None]:
    spec = _readers_part(section, folder)
    if spec.get("format") is None:
        raise ConfigError(
            f"data.format: left out, and the name {shown(spec.get('path'))} does not imply one; "
            f"wanted one of {', '.join(FILE_FORMATS)}",
            path="data.format",
        )
    test = section.get("test")
    beside = None if test is None else _beside(spec, test, folder, "data.test")
    return _file_source(spec, "data"), beside


def _file_source(spec: Mapping[str, Any], path: str) -> Source:
    """Return a source of files, or of generated rows."""
    call = how_to_give_again(spec["format"])
    if call:
        raise ConfigError(
            f"{path}.format: data in memory have no file; write them to one and name it, or start "
            f"the job from Python with {call}",
            path=f"{path}.format",
        )
    return listed_once(format_named(spec["format"], path).of_spec(spec, path))


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
        raise ConfigError(f"{key}: got {shown(other)}, wanted a path or a mapping", path=key)
    inherits = other.get("format", spec["format"]) == spec["format"]
    shared = {name: value for name, value in spec.items() if inherits and name != "labels"}
    return _file_source({**shared, **_with_path(other, folder)}, key)


def _validate(value: object, section: Mapping[str, Any], folder: Path) -> Validate | None:
    """Read the section: a share, a path of the validation data, or a mapping."""
    if value is None or isinstance(value, bool):
        return None if value is not True else read_settings(Validate, {}, "validate")
    if isinstance(value, int | float):
        value = {"share": value}
    if isinstance(value, str):
        value = {"data": value}
    if isinstance(value, Mapping) and value.get("data") is not None:
        spec = _readers_part(section, folder)
        value = {**value, "data": _beside(spec, value["data"], folder, "validate.data")}
    return read_settings(Validate, value, "validate")


def data_section(path: Path) -> dict[str, Any]:
    """Return the reader's options in a job file's ``data`` section, with absolute paths.

    Raises
    ------
    ConfigError
        When the file cannot be read, or has no such section.
    """
    section = read_yaml_mapping(path).get("data")
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"job file '{path}': data is {shown(section)}, wanted a mapping with format and path",
            path=str(path),
        )
    return _readers_part(section, path.absolute().parent)


def _readers_part(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    spec = {key: value for key, value in section.items() if key not in _NOT_THE_READERS}
    spec = _with_path(spec, folder)
    if spec.get("format") is None and (format := infer_format(str(spec.get("path", "")))):
        spec["format"] = format
    return spec


def _with_path(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make a spec's paths absolute, with environment variables expanded."""
    resolved = dict(spec)
    for key in ("path", "labels"):
        if isinstance(spec.get(key), str):
            expanded = expand_path(spec[key], f"data.{key}")
            resolved[key] = expanded if is_url(expanded) else str(folder / expanded)
    return resolved


def _file(path: object, folder: Path, key: str) -> Path | None:
    """Resolve the path of a local file."""
    if path is None or isinstance(path, str):
        return None if path is None else folder / expand_path(path, key)
    raise ConfigError(f"{key}: got {shown(path)}, wanted the path of a model.npz", path=key)


def _algorithm(section: Mapping[str, Any], scale: object) -> AnyAlgorithm:
    name = section.get("name")
    rest = {key: value for key, value in section.items() if key != "name"}
    if isinstance(name, str) and ":" in name:
        return read_settings(ImportedAlgorithm, section, "algorithm")
    if not isinstance(name, str) or name not in NAMED:
        raise unknown_choice(name, sorted(NAMED), "algorithm.name")
    if scale is not None:
        if scale not in get_args(Scale):
            raise unknown_choice(scale, get_args(Scale), "data.scale")
        if "scale" not in NAMED[name].model_fields:
            raise ConfigError(
                f"data.scale: got {shown(scale)}, and {name} does not scale columns one by one; "
                "leave it out, and see algorithm.normalize",
                path="data.scale",
            )
        if rest.setdefault("scale", scale) != scale:
            raise ConfigError(
                f"data.scale is {shown(scale)} but algorithm.scale is {shown(rest['scale'])}; "
                "give one",
                path="data.scale",
            )
    return resolved(read_settings(NAMED[name], rest, "algorithm"))


def _cluster(section: object, members: Members, folder: Path) -> Cluster:
    if section is None and members.start is not None:
        return LocalWorkers(workers=members.start)
    if isinstance(section, str):
        return Address(address=section)
    kind = section.get("kind", "local") if isinstance(section, Mapping) else "local"
    if not _is_one_of(kind, CLUSTERS):
        raise unknown_choice(kind, CLUSTERS, "cluster.kind")
    if isinstance(section, Mapping):
        section = {**section, **_local_paths(section, kind, folder)}
        if kind in ("yarn", "factory") and section.get("workers") is None and members.start:
            section["workers"] = members.start
    return read_settings(CLUSTERS[kind], section, "cluster")


#: The settings of each kind of cluster that are paths.
_PATHS = {
    "yarn": ("keytab", "specification", "result"),
    "address": ("scheduler_file",),
    "tls": ("ca", "cert", "key"),
}


def _local_paths(section: Mapping[str, Any], kind: str, folder: Path) -> dict[str, Any]:
    """Return the paths of a cluster's section, local ones made absolute; only strings."""
    resolved: dict[str, Any] = {}
    for key in _PATHS.get(kind, ()):
        if isinstance(section.get(key), str):
            expanded = expand_path(section[key], f"cluster.{key}")
            resolved[key] = expanded if "://" in expanded else str(folder / expanded)
    tls = section.get("tls")
    if kind == "address" and isinstance(tls, Mapping):
        files = {**tls, **_local_paths(tls, "tls", folder)}
        resolved["tls"] = read_settings(TLSFiles, files, "cluster.tls")
    return resolved


def _world(section: object, folder: Path) -> Mapping[str, Any] | None:
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(
            f"simulate: got {shown(section)}, wanted a mapping such as {{latency_s: 0.001}}",
            path="simulate",
        )
    preemption = None if section is None else section.get("preemption")
    if section is not None and isinstance(preemption, Mapping):
        file = preemption.get("trace")
        if isinstance(file, str):
            absolute = str(folder / expand_path(file, "simulate.preemption.trace"))
            section = {**section, "preemption": {**preemption, "trace": absolute}}
    options_from_section(section)
    return section


def _is_one_of(word: object, words: Collection[str]) -> bool:
    return isinstance(word, str) and word in words


def _checkpoint(section: object, folder: Path, cluster: Cluster) -> CheckpointSetting:
    """Validate the section; without it, checkpoints go into the run directory.

    For a cluster given by its address or by a function the default is no checkpoints: its scheduler
    may not be able to access the run directory.
    """
    if section is None:
        return False if isinstance(cluster, (Address, ClusterFactory)) else Checkpoint()
    if isinstance(section, bool):
        return checkpoint_setting(section)
    setting = read_settings(
        Checkpoint, {"path": section} if isinstance(section, str) else section, "checkpoint"
    )
    if setting.path is None:
        return setting
    path = expand_path(setting.path, "checkpoint.path")
    return setting.model_copy(update={"path": path if is_url(path) else str(folder / path)})


def _evaluate(section: object) -> Evaluate | bool | None:
    if section is None or section is False:
        return section
    return read_settings(Evaluate, section, "evaluate")
