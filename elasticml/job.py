"""A job: an algorithm and its data, run by the members of a Dask cluster."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import PrivateAttr

from elasticml.data.readers.arrays import chunks_in_memory
from elasticml.data.readers.dask_partitions import has_partitions
from elasticml.data.readers.files import absolute
from elasticml.data.scored_rows import scored_as, with_scored_rows
from elasticml.data.source import (
    Source,
    listed_once,
    resolve_chunk_bytes,
    source_from_spec,
    unlisted,
)
from elasticml.data.storage.filesystem import is_url, join
from elasticml.errors import ConfigError, JobFailedError, one_line
from elasticml.ids import RECORD_VERSION, VERSION, format_size
from elasticml.jobs import run_checkpoints
from elasticml.jobs.callbacks import check_callbacks
from elasticml.jobs.job_spec import JobSpec, read_yaml_mapping
from elasticml.jobs.preflight import first_summary, preflight_data
from elasticml.jobs.rpc import unwrap_reply
from elasticml.jobs.run_directory import check_free
from elasticml.jobs.warm_start import load_warm_start
from elasticml.protocol.job_record import GATHER_S, CheckpointPlace, JobRecord, job_record
from elasticml.runtime.cluster_demand import cluster_of, follow_demand
from elasticml.runtime.worker_limits import BODIES_SHARE
from elasticml.specification.algorithms import (
    DEALT_ANEW,
    AnyAlgorithm,
    Linear,
    LocalSGD,
    absent_rule,
    is_deterministic,
    record_section,
    resolve_placement,
)
from elasticml.specification.sections import Holders, check_faults
from elasticml.specification.settings_model import documented
from elasticml.specification.user_objects import give_again, pickled_objects

if TYPE_CHECKING:
    from distributed import Client

    # Imported where they are used: the command line first checks the data and starts workers.
    from elasticml.jobs.cluster_client import Target
    from elasticml.jobs.handle import Handle
    from elasticml.jobs.result import Result


#: Default chunk size for local SGD, as in the uni-task paper.
LOCAL_SGD_CHUNK_BYTES = 200 * 2**10
#: The settings that a record has in another form, or not at all.
_CONVERTED = {"data", "test", "chunk_size", "algorithm", "cluster", "validation", "checkpoint"}


@documented
class Job(JobSpec):
    """Describe a training job: the algorithm, the data, and what to do when workers are lost.

    :meth:`run` runs the job on a Dask cluster and returns its result. :meth:`start` returns at
    once. Before that, nothing is read or started. A *member* is a worker that takes part in the
    job. The rows are split into *chunks*, which members own. A *round* is one step of the training.

    Raises
    ------
    ConfigError
        When a setting is invalid.

    Examples
    --------
    >>> job = em.Job(em.CoCoA(loss="hinge", l2=1e-2), em.from_arrays(X, y), stop=em.Stop(gap=1e-3))
    >>> result = job.run(client)
    >>> bool(result.summary["gap"] <= 1e-3)
    True
    """

    _source: Any = PrivateAttr(default=None)
    #: The section ``validate`` of the record.
    _scored: dict[str, Any] | None = PrivateAttr(default=None)
    _initial: dict[str, Any] | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # which derives the arguments from the settings

        def __init__(self, algorithm: AnyAlgorithm | Linear, data: Source, **settings: Any) -> None:
            super().__init__(algorithm=algorithm, data=data, **settings)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def check(self) -> None:
        """Check constraints between settings, and load the initial model."""
        super().check()
        self._source = self._with_scored_rows()
        self._initial = load_warm_start(self.warm_start, self.algorithm)

    def _with_scored_rows(self) -> Source:
        """Return the data with the validation and test rows; resolve their metrics."""
        validate, test = self.validation, None if self.evaluate is False else self.test
        if validate is None and test is None:
            return self.data
        from elasticml.evaluation.scoring import resolve_metrics  # here: it imports numba

        algorithm = record_section(self.algorithm, self.seed)
        if test is not None:
            metrics = self.evaluate.metrics if self.evaluate else ()
            resolve_metrics(algorithm, metrics, "data.test")
        if validate is None:
            return with_scored_rows(self.data, test=test)
        self._scored = {
            "metric": list(resolve_metrics(algorithm, validate.metrics)),
            "every": validate.every,
            "patience": validate.patience,
            "min_delta": validate.min_delta,
        }
        if validate.share is not None:
            self._scored["share"] = validate.share
        else:
            self._scored["data"] = unlisted(validate.data.spec())
        held = {"share": validate.share, "seed": self.seed, "validation": validate.data}
        return with_scored_rows(self.data, **held, test=test)

    @property
    def source(self) -> Source:
        """The training data, with the validation and test rows if there are any."""
        source: Source = self._source
        return source

    @property
    def chunk_bytes(self) -> int | None:
        """The bytes of a chunk; None if they follow from the data and the members."""
        is_local_sgd = isinstance(self.algorithm, LocalSGD)
        return self.chunk_size or (LOCAL_SGD_CHUNK_BYTES if is_local_sgd else None)

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.algorithm!r}, {self.data!r}, {self.stop!r})"

    def check_data(self) -> tuple[str, str] | None:
        """List the blocks of all data, and read a small first block and the first test block.

        Returns
        -------
        (str, str) or None
            The layout of the first block's chunks, kind and type of values; None if it was not
            read.

        Raises
        ------
        ConfigError, DataError
            When a file is missing, empty, or not in the declared format.
        """
        preflight_data(self.algorithm, self.source, self.cache)
        first = first_summary(self.source, self.cache)
        return None if first is None else (first.layout.kind, first.layout.dtype)

    def check_memory(self, worker_bytes: int | None) -> None:
        """Check that a chunk fits into a worker's memory; None and 0 mean no limit.

        Raises
        ------
        ConfigError
            When a chunk is larger than 60 % of the worker's memory.
        """
        most = BODIES_SHARE * (worker_bytes or math.inf)
        if (self.chunk_bytes or 0) > most:
            raise ConfigError(
                f"data.chunk_size: got {format_size(self.chunk_bytes or 0)}, wanted at most "
                f"{format_size(most)}, which is 60 % of a worker's memory; make chunks smaller or "
                "workers larger"
            )

    def record(
        self,
        job_id: str,
        members: int,
        limits_bytes: Sequence[int] | None = None,
        run_dir: str | Path | None = None,
    ) -> dict[str, Any]:
        """Return the job record: the job as plain values, for the scheduler.

        Parameters
        ----------
        members : int
            Number of members that the job waits for before round 0.
        limits_bytes : sequence of int, optional
            Memory limit of each worker, 0 for none; by default no worker has a limit.
        run_dir : path, optional
            The run directory, which holds the checkpoints unless the job sets another path.
        """
        limit = self.memory_limit or math.inf
        worker_bytes = [min(n or math.inf, limit) for n in limits_bytes or [0] * members]
        limits = [int(BODIES_SHARE * n) if n < math.inf else 0 for n in worker_bytes]
        is_dask = has_partitions(self.data)
        needs_size = self.holders == "auto" and 0 not in limits
        source = listed_once(self.source)  # what is listed here travels with the record
        total = sum(block.nbytes for block in source.blocks()) if needs_size else 0
        place = run_checkpoints.checkpoint_place(self.checkpoint, run_dir)
        first = self.warm_start
        return {
            "version": RECORD_VERSION,
            "package": VERSION,
            "job": job_id,
            **self.model_dump(mode="json", exclude={*_CONVERTED, "warm_start"}),
            "data": source.spec(),
            "chunk_bytes": self.chunk_bytes,
            "algorithm": record_section(
                self.algorithm,
                self.seed,
                epochs=self.stop.epochs,
                has_target=self.stop.has_target,
                warm_start=self._initial,
            ),
            "absent": absent_rule(self.algorithm.name, self.absent),
            "deterministic": is_deterministic(self.algorithm),
            # The sizes of Dask's partitions are known when they are read: the driver decides.
            "holders": None
            if is_dask and self.holders == "auto"
            else resolve_holders(self.holders, self.algorithm, total, limits),
            "placement": resolve_placement(
                self.placement,
                self.algorithm.name,
                lies_on_workers=is_dask and self.partitions is None,
            ),
            "warm_start": absolute(str(first)) if isinstance(first, str | Path) else None,
            "members": {**self.members.model_dump(), "start": members},
            **({} if self._scored is None else {"validate": self._scored}),
            "checkpoint": None if place is None else place.fields_json(),
        }

    def start(
        self,
        client: Target = None,
        *,
        run_dir: str | Path | None = None,
        resume: str | Path | None = None,
    ) -> Handle:
        """Submit the job to the cluster's scheduler and return immediately.

        Parameters
        ----------
        client : distributed.Client, cluster or str, optional
            Any Dask cluster whose workers have elasticml installed: a client, a cluster object, or
            the scheduler's address; by default Dask's current client. A cluster object is scaled
            for the job, also one from which the client was made; an adaptive one scales itself.
        run_dir : path, optional
            The directory that the run will have; nothing is written there yet.
        resume : path, optional
            Directory with checkpoints of the same job; it resumes from the last one.

        Raises
        ------
        ConfigError, DataError
            When the cluster or the data do not fit the job.

        Notes
        -----
        For a client with ``asynchronous=True`` await it, and what the handle's methods return.
        """
        from elasticml.jobs.on_cluster import handle_on

        return handle_on(client, lambda client: self._submitted(client, run_dir, resume))

    def _submitted(
        self,
        client: Client,
        run_dir: str | Path | None,
        resume: str | Path | CheckpointPlace | None,
    ) -> Handle:
        """Check the job against the cluster and submit it."""
        from elasticml.jobs.handle import Handle, prepare_scheduler, workers_of

        with _reaching(client):
            workers = workers_of(client)
        members = self.members.start or len(workers)
        if members < 1 and (resume is not None or cluster_of(client) is not None):
            # The client's cluster starts them, or those of a lost scheduler are on their way.
            members = self.members.min
        if members < 1:
            raise ConfigError(
                "the cluster has no workers, and members.start is not set; start workers or set it"
            )
        if self.members.min > members:
            raise ConfigError(
                f"members.min: got {self.members.min}, wanted at most {members}, the workers that "
                "the job starts with; lower it, add workers or set members.start"
            )
        check_faults(self.faults, members)
        limits = [worker.get("memory_limit") or 0 for worker in workers.values()]
        self.check_memory(min(limits, default=0))
        preflight_data(self.algorithm, self.source, reads=False)
        job_id = new_job_id(self.name)
        record = self.record(job_id, members, limits, run_dir)
        if self.members.start is None and workers:
            # A worker that does not answer, such as a stopped one, joins when it does.
            record |= {"starts_with_present": True, "gather_s": GATHER_S}
        if isinstance(resume, CheckpointPlace):
            reached = run_checkpoints.reached(Path(run_dir or "."))
            record |= {"resume": resume.path, "reached": reached}
        elif resume is not None:
            record["resume"] = str(resume)
        with _reaching(client):
            prepare_scheduler(client, list(workers))
            _submit(client, record, self.source)
        return Handle(client, job_id, job_record(record))

    def run(
        self,
        client: Target = None,
        *,
        progress: bool = False,
        run_dir: str | Path | None = None,
        cluster: Mapping[str, Any] | None = None,
        resume: bool = False,
        callbacks: Sequence[Any] = (),
    ) -> Result:
        """Run the job to its end. Ctrl-C cancels it and leaves partial results in the directory.

        Parameters
        ----------
        client : distributed.Client, cluster or str, optional
            As of :meth:`start`; for a client with ``asynchronous=True`` await it:
            ``result = await job.run(client)``.
        progress : bool
            Whether to show the job's progress in the terminal.
        run_dir : path, optional
            Where to write story, history, model, summary and report while the job runs.
        cluster : mapping, optional
            The ``cluster`` section for ``job.yaml``.
        resume : bool
            Whether to resume the interrupted run of this job in the directory.
        callbacks : sequence of Callback or callable
            What to do with each round and with the result, such as
            ``em.callbacks.MLflowCallback()``; a function is called with each row of the history.
            One that raises is not called again.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            When the model missed the tolerance of the algorithm, or the target of ``stop``.

        Raises
        ------
        ConfigError, DataError
            When the cluster, the data or the interrupted run do not fit the job.
        JobFailedError
            When the job failed at run time.
        """
        from elasticml.jobs.on_cluster import with_handle

        check_callbacks(callbacks)
        interrupted = None
        if resume:
            interrupted = run_checkpoints.interrupted_run(run_dir or ".", self.checkpoint)
        elif run_dir is not None:
            check_free(Path(run_dir))  # fail before starting a job whose story cannot be written
        return with_handle(
            client,
            lambda client: self._submitted(client, run_dir, interrupted),
            lambda handle: handle.result(
                progress=progress,
                run_dir=run_dir,
                cluster=cluster,
                cancels=True,
                continues=resume,
                callbacks=callbacks,
            ),
        )

    @classmethod
    def attach(
        cls, client: Target, job_id: str | None = None, *, objects: Sequence[Any] = ()
    ) -> Handle:
        """Return a handle to a job that another client started on this cluster.

        Parameters
        ----------
        client : distributed.Client, cluster or str
            As of :meth:`Job.start`; may be omitted: ``em.Job.attach(job_id)`` uses Dask's
            current client.
        job_id : str
            ``handle.job_id`` of the client that started it.
        objects : sequence, optional
            As of :func:`load_model`, for the scores of a network.

        Raises
        ------
        ConfigError
            When the scheduler does not know the job; it keeps results for 24 hours.

        Examples
        --------
        >>> handle = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop).start(client)
        >>> again = em.Job.attach(client, handle.job_id)  # in another process, for example
        >>> again.result().summary["job"] == handle.job_id
        True
        """
        from elasticml.jobs.handle import attach_handle
        from elasticml.jobs.on_cluster import handle_on

        target, job = (None, str(client)) if job_id is None else (client, job_id)
        return handle_on(target, lambda client: attach_handle(client, job, objects))

    @classmethod
    def resume(
        cls,
        client: Target | Path,
        path: str | Path | None = None,
        *,
        data: Source | None = None,
        validate: Source | None = None,
        test: Source | None = None,
        objects: Sequence[Any] = (),
    ) -> Handle:
        """Resume an interrupted job from its last checkpoint, on this cluster.

        The checkpoint describes the whole job. The job waits until the cluster has a worker, and
        then at most three seconds for as many as it had.

        Parameters
        ----------
        client : distributed.Client, cluster or str
            As of :meth:`Job.start`; may be omitted: ``em.Job.resume(path)`` uses Dask's current
            client. The scheduler and the workers may be others than before.
        path : path or URL
            A run directory, or the directory of the checkpoints as the scheduler sees it
            (``checkpoint.path`` of the job).
        data, validate, test : Source, optional
            The training, validation and test data again, each if it was in memory; they must be the
            same.
        objects : sequence, optional
            The job's classes, functions and algorithms that its script or notebook defined: they
            travelled with the submission only, and are in no file.

        Returns
        -------
        Handle
            ``handle.result()`` continues the run directory if ``path`` is one.

        Raises
        ------
        ConfigError
            When there is no such checkpoint, another process is writing the run, or data were in
            memory and are not given again.
        DataError
            When the data have changed.

        Examples
        --------
        >>> em.Job.resume(client, "runs/none")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        elasticml.errors.ConfigError: there is no run
        """
        from elasticml.jobs.on_cluster import handle_on

        target, place = (None, client) if path is None else (client, path)
        sources = {"data": data, "validate": validate, "test": test}
        given = {name: source for name, source in sources.items() if source is not None}
        return handle_on(
            cast("Target", target),
            lambda client: _resumed(client, cast("str | Path", place), given, objects),
        )


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


def _resumed(
    client: Client,
    path: str | Path,
    given: Mapping[str, Source],
    objects: Sequence[Any],
) -> Handle:
    """Submit an interrupted job again."""
    from elasticml.jobs.handle import Handle, prepare_scheduler, workers_of

    run_dir = Path(path) if not is_url(str(path)) and (Path(path) / "job.yaml").is_file() else None
    reached: dict[str, Any] = {}
    interrupted: dict[str, Any] = {}
    places = [str(path) if is_url(str(path)) else str(Path(path).absolute())]
    in_run_dir = False
    if run_dir is None:
        places.append(join(places[0], run_checkpoints.FOLDER))
    else:
        sections = read_yaml_mapping(run_dir / "job.yaml")
        setting = run_checkpoints.checkpoint_setting(sections.get("checkpoint"))
        run = run_checkpoints.interrupted_run(run_dir, setting)
        places, reached = [run.path], run_checkpoints.reached(run_dir)
        in_run_dir = run.in_run_dir
        interrupted = {"run_dir": run_dir, "continues": True, "cluster": sections.get("cluster")}
    prepare_scheduler(client, list(workers_of(client)))
    place, former = _interrupted_job(client, places)
    give_again(former.fields_json(), objects)
    lost = run_checkpoints.lost_data(former)
    if lost.keys() - given.keys():
        raise ConfigError(
            f"resume: {' and '.join(lost)} of job {former.job} were in memory, which is lost; give "
            f"them again: {run_checkpoints.resume_call(path, former)}"
        )
    # The driver lists the files again: the job resumes only if they are the same.
    spec = unlisted(former.data)
    source = source_from_spec(spec)
    if given:
        beside = {"validation": given.get("validate"), "test": given.get("test")}
        source = scored_as(given.get("data", source), spec, **beside)
    job_id = new_job_id(former.name or "job")
    every_s = 0.0 if former.checkpoint is None else former.checkpoint.every_s
    kept = CheckpointPlace(path=place, every_s=every_s, in_run_dir=in_run_dir)
    record = {
        **former.fields_json(),
        "job": job_id,
        "data": source.spec(),
        "checkpoint": kept.fields_json(),
        "resume": place,
        "reached": reached,
    }
    with _reaching(client):
        _submit(client, record, source)
    return Handle(client, job_id, job_record(record), interrupted)


def _interrupted_job(client: Client, places: Sequence[str]) -> tuple[str, JobRecord]:
    """Return the first of these places with checkpoints, and the record of their job."""
    for place in places:
        answer = unwrap_reply(client.sync(client.scheduler.em_checkpoint, place=place))
        values = answer["record"]
        if values is not None:
            return place, job_record(values)
    raise ConfigError(
        f"resume: the scheduler finds no readable checkpoint in {' or '.join(places)}; name a "
        "directory or URL that it can read, or start the job again"
    )


@contextmanager
def _reaching(client: Client) -> Iterator[None]:
    """Say in one line that the scheduler was lost while a job was submitted."""
    address = getattr(client.scheduler, "address", "the client")
    try:
        yield
    except OSError as error:  # as Dask raises when a connection closes
        raise JobFailedError(
            f"the scheduler at {address} was lost before the job had started "
            f"({one_line(error) or 'it is gone'}); start it again, then the job"
        ) from error


def _submit(client: Client, record: dict[str, Any], data: Source) -> None:
    """Send a job to the scheduler, with its data if they are in memory, or their Dask graph."""
    extras: dict[str, Any] = {}
    if getattr(data, "is_in_memory", False):
        sent = job_record(record)
        members = sent.members.start
        size = resolve_chunk_bytes(data, sent.chunk_bytes, members)
        chunks, summaries = chunks_in_memory(data, size, members)
        record["chunk_bytes"] = size
        extras = {
            "ids": [str(chunk.id) for chunk in chunks],
            "bodies": [bytes(chunk.body) for chunk in chunks],
            "summaries": [summary.to_json() for summary in summaries],
        }
    elif has_partitions(data):
        from distributed.protocol.pickle import dumps

        extras = {"graph": dumps(data.partition_graph())}
    objects = pickled_objects(record)
    if objects:
        extras["objects"] = objects
    unwrap_reply(client.sync(client.scheduler.em_submit, record=record, **extras))
    follow_demand(client)


def new_job_id(name: str) -> str:
    """Return a unique job id that starts with the job's name."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "job"
    return f"{stem[:40]}-{secrets.token_hex(4)}"
