"""The driver's session for one job: dataset statistics, trainer and journal.

The runtime, the simulator and the tests share it. They decide where the work runs and what time it
is; this session decides what is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from elasticml.algorithms.base import Arrays, Model, Scalar
from elasticml.algorithms.registry import algorithm
from elasticml.control.checkpoint_state import snapshot
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.data.chunks.checksums import as_text, digest_of_arrays
from elasticml.data.dataset_stats import (
    BlockSummary,
    DatasetStats,
    column_warnings,
    merge_summaries,
    single_row_warnings,
)
from elasticml.data.source import Source
from elasticml.errors import (
    ConfigError,
    DataError,
    ElasticmlError,
    JobFailedError,
    error_to_dict,
)
from elasticml.evaluation.scoring import (
    is_classification,
    make_trainer,
    summary_scores,
    validation_summary,
)
from elasticml.ids import MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.chunk_ranges import format_chunk_ranges
from elasticml.protocol.job_record import JobRecord
from elasticml.story import records as story
from elasticml.story.history import HistoryRow
from elasticml.story.journal import Journal
from elasticml.training.checkpoint import (
    Checkpoint,
    ResumePoint,
    check_same_data,
    check_same_job,
)
from elasticml.training.fingerprint import blas_threads, cpu_class, versions
from elasticml.training.shortfall import shortfall
from elasticml.training.trainer_runner import TrainerRunner, row_of_model

#: Sizes of columns beyond this ratio slow down solvers that do not scale them.
SIZE_RATIO_MAX: Final = 1e4


class DriverSession:
    """The records of a running job and access to its trainer, for a driver adapter.

    Parameters
    ----------
    record : JobRecord
    source : Source
        The training data.
    resumed : Checkpoint, optional
        The checkpoint from which to resume.
    tells_chunks : bool
        Whether the story records the location of each chunk.

    Raises
    ------
    ConfigError, DataError
        When the checkpoint belongs to another job or to other data.
    """

    def __init__(
        self,
        record: JobRecord,
        source: Source,
        resumed: Checkpoint | None = None,
        *,
        tells_chunks: bool = True,
    ) -> None:
        self.record = record
        #: The source; after a survey, the one with the vocabularies.
        self.source = source
        self.journal = Journal(record.json)
        self.training: TrainerRunner | None = None
        self.facts: DatasetStats | None = None
        #: "loading", "running", "done", "failed" or "cancelled".
        self.state = "loading"
        self.error: dict[str, Any] | None = None
        self.summary: dict[str, Any] = {}
        #: The most columns that fit the machines' memory; None if unknown.
        self.columns_max: int | None = None
        self.resumed = resumed
        self._tells_chunks = tells_chunks
        #: Fingerprint of the data; empty unless the job has checkpoints.
        self.fingerprint = ""
        if resumed is not None or record.checkpoint is not None:
            self.fingerprint = source.fingerprint()
        if resumed is not None:
            check_same_job(resumed, record, self.fingerprint)
            if source.needs_survey:
                # The data are the same, and so are their vocabularies.
                self.source = source.with_stats(replace(resumed.facts, n_columns=0))
            kept = resumed.resume_point
            self.journal.go_on(kept.counts, resumed.story, resumed.rows, resumed.snapshots)
            # The journal holds them now, in less memory.
            self.resumed = replace(resumed, story=(), rows=())

    def open(self, now_s: float) -> None:
        """Write the story's first record: ``JobStarted``, or ``JobResumed`` after a checkpoint."""
        begun: dict[str, Any] = {
            "cause": "submitted",
            "job": self.record.job,
            "name": self.record.name,
            # The initial model is left out: stories hold no arrays.
            "spec": self.record.without_arrays(),
            "warm_start_digest": _warm_start_digest(self.record),
            "versions": versions(),
            "cpu": cpu_class(),
            "blas_threads": blas_threads(),
        }
        if self.resumed is None:
            self.journal.write(now_s, story.JobStarted(**begun))
        else:
            self.journal.write(now_s, self._job_resumed(self.resumed, begun))

    def record_message(self, message: ev.Event | cmd.Command, now_s: float) -> None:
        """Record where chunks were, and what the trainer was sent.

        Call it with every event before the event is handled, and with every command.
        """
        if self._tells_chunks and self.state in ("loading", "running"):
            record = _record_of(message)
            if record is not None:
                self.journal.write(now_s, record)

    def digest(self) -> str:
        """Return the digest of all the trainer's inputs and outputs so far, as 16 hex digits."""
        return as_text(0 if self.training is None else self.training.digest)

    def _job_resumed(self, resumed: Checkpoint, begun: Mapping[str, Any]) -> story.JobResumed:
        """Say where the job resumes, and how much work of the former attempt is repeated."""
        rounds, seconds = self.record.reached.round, self.record.reached.seconds
        return story.JobResumed(
            **begun,
            attempt=self.journal.attempts,
            round=resumed.round,
            checkpoint=resumed.number,
            members=tuple(sorted(resumed.owners)),
            repeated_rounds=None if rounds is None else max(0, rounds - resumed.round),
            repeated_s=None if seconds is None else max(0.0, seconds - resumed.seconds),
            notes=tuple(resumed.notes),
        )

    def resume_point(
        self, machine: Driver, now_s: float, tuned: Mapping[str, Scalar]
    ) -> ResumePoint | None:
        """Return the job's state between two rounds; None if its trainer cannot resume.

        Parameters
        ----------
        tuned : mapping
            The settings that the trainer is about to receive with the reply to the round's end.
        """
        resume = None if self.training is None else self.training.resume(tuned)
        if self.training is None or resume is None:
            return None
        kept = self.training.kept
        return ResumePoint(
            round=machine.state.round,
            seconds=now_s,
            resume=resume,
            model=self.training.result_arrays(),
            model_round=None if kept is None else kept.round,
            machine=snapshot(machine),
            counts=self.journal.counts(),
            story=len(self.journal.story),
            rows=len(self.journal.rows),
            progress=len(machine.history.progress),
            kept=tuple(sorted(self.journal.snapshots)),
        )

    # --- facts and trainer ------------------------------------------------------------------

    def set_facts(self, summaries: Iterable[BlockSummary], survey: bool, now_s: float) -> ev.Event:
        """Merge the summaries of the blocks, after a survey or after all blocks were read."""
        try:
            facts = merge_summaries(sorted(summaries, key=lambda s: s.block))
            if self.columns_max is not None and facts.n_columns > self.columns_max:
                raise DataError(
                    f"the data have {facts.n_columns} columns, wanted at most {self.columns_max}, "
                    "which is what fits the memory; check the indices in the data, or use machines "
                    "with more memory"
                )
            if survey or self.source.needs_survey:
                self.source = self.source.with_stats(facts)
            if not survey and self.resumed is not None:
                check_same_data(self.resumed, facts)
        except ElasticmlError as error:
            return self.fail(error)
        if not survey:
            self.facts = facts
            self.journal.write(
                now_s,
                story.DataLoaded(
                    cause="all blocks read",
                    rows=facts.n_rows,
                    features=facts.n_columns,
                    chunks=facts.n_chunks,
                    bytes=facts.nbytes,
                    notes=(*facts.notes, *self._warnings(facts)),
                    parsed_bytes=self.journal.newly_parsed_bytes,
                ),
            )
        again = survey and self.source.needs_survey
        return ev.FactsFixed(cause="blocks", survey=survey, surveys_again=again)

    def _warnings(self, facts: DatasetStats) -> list[str]:
        warnings = column_warnings(facts.moments)
        is_auto = self.record.algorithm_settings.get("scale") == "auto"
        if is_auto and facts.encoder is None and facts.size_ratio > SIZE_RATIO_MAX:
            warnings.append(
                f"columns differ in size by a factor of {facts.size_ratio:.1g}, and sparse "
                "rows are not scaled by default: set algorithm.scale: maxabs"
            )
        if is_classification(self.record.algorithm):
            warnings += single_row_warnings(facts)
        return warnings

    def make_trainer(self, absent: str) -> ev.Event | None:
        """Create the trainer without starting it; return an event only if it rejects the job."""
        name, record = self.record.algorithm_name, self.record
        assert self.facts is not None
        try:
            resume = None if self.resumed is None else self.resumed.resume_point.resume
            factory = algorithm(name).trainer
            if resume is not None and "resume" not in inspect.signature(factory).parameters:
                raise ConfigError(
                    f"resume: algorithm {name} cannot resume from a checkpoint: its trainer has no "
                    "argument resume; run the job from its start"
                )
            trainer = make_trainer(
                record.algorithm,
                self.facts,
                absent,
                resume,
                record.validate,
                record.evaluate,
            )
        except ElasticmlError as error:
            return self.fail(error)
        self.state = "running"
        first_round = 0 if self.resumed is None else self.resumed.resume_point.round
        self.training = TrainerRunner(trainer, first_round)
        return None

    def fail(self, error: ElasticmlError) -> ev.Event:
        """Store the error that ends the job and return the event for it."""
        self.error = error_to_dict(error)
        return ev.Failed(cause="driver", reason=error.message)

    # --- rows and the end ---------------------------------------------------------------------

    def add_row(self, now_s: float, row: HistoryRow, sent_bytes: int, waited: bool) -> None:
        """Append a row to the history, and keep its model if the job evaluates this round.

        Parameters
        ----------
        waited : bool
            Whether the round was idle; then its model is the one with which the next round starts.
        """
        self.journal.add_row(now_s, row, sent_bytes)
        training = self.training
        if training is not None:
            arrays = training.last_arrays() if waited else training.round_arrays()
            self.journal.snapshot(row.round, arrays)

    def result_arrays(self) -> Arrays:
        """Return the model with which the job ends; empty if there is none.

        That of the checkpoint if no round has ended since the job resumed.
        """
        former = self._former
        if former is not None:
            return former.model
        return {} if self.training is None else self.training.result_arrays()

    @property
    def _former(self) -> ResumePoint | None:
        """The end of the former attempt if no round has ended since the job resumed."""
        has_own = self.training is not None and bool(self.training.result_arrays())
        return None if has_own or self.resumed is None else self.resumed.resume_point

    def _add_final_row(
        self, machine: Driver, now_s: float, sent_bytes: int, model_round: int | None
    ) -> float | None:
        """Append the row of the returned model, and return its objective.

        A job that was cut short ends with its best model, if it is validated, else with the model
        of its last completed round. ``model_round`` is that of an earlier model.
        """
        model = None if self.training is None else self.training.result()
        final = machine.rounds.waiting_row()
        if model is not None:
            final = {"step": None, "stand_ins": 0, **row_of_model(model)}
        if model is None and model_round is not None:
            final = dict.fromkeys(("objective", "objective_kind", "gap", "step"))
        rounds, absent_examples = machine.state.round, machine.state.ledger.absent_rows()
        counted = {"members": machine.members_at_end, "absent_examples": absent_examples}
        row = HistoryRow({**final, "round": rounds, **counted})
        self.journal.add_row(now_s, row, sent_bytes)
        self.journal.snapshot(rounds, self.result_arrays())
        return row.objective

    def _convergence(self, command: cmd.EndJob, machine: Driver) -> tuple[bool, str]:
        """Return whether the job has converged, and what it says if it missed its goal."""
        training = self.training
        model = None if training is None else training.result()
        if model is not None and training is not None and training.trained is not None:
            if has_converged(model, machine.state.settings):
                return True, ""
            if model.stopped_early:
                return False, ""
        if command.state != "done" or self.record.is_cost_only:
            return False, ""
        rounds, rows = machine.state.round, self.journal.rows
        return False, shortfall(self.record, rows, rounds=rounds, reason=command.reason)

    def close(
        self,
        command: cmd.EndJob,
        machine: Driver,
        now_s: float,
        *,
        sent_bytes: int,
        computations: Mapping[str, int],
    ) -> None:
        """Write the final model's row, the last record and the summary.

        Parameters
        ----------
        computations : mapping
            Number of computations of each member.
        """
        training = self.training
        model = None if training is None else training.result()
        self.state = command.state
        if command.state == "failed" and self.error is None:
            self.error = error_to_dict(command.error or JobFailedError(command.reason))
        rounds, members, objective = machine.state.round, machine.members_at_end, None
        kept = None if training is None else training.kept
        model_round = None if kept is None else kept.round
        if (former := self._former) is not None:
            model_round = former.model_round
        if self.facts is None and self.resumed is not None:
            self.facts = self.resumed.facts
        if model is not None or self.journal.rows:
            objective = self._add_final_row(machine, now_s, sent_bytes, model_round)
        converged, unconverged = self._convergence(command, machine)
        if kept is not None:
            self.journal.write(
                now_s,
                story.EarlierModelKept(
                    cause=command.cause,
                    round=kept.round,
                    objective=kept.objective,
                    is_bound=kept.is_bound,
                ),
            )
        ended = story.JobEnded(
            cause=command.cause,
            state=command.state,
            reason=command.reason,
            converged=converged,
            round=rounds,
            unconverged=unconverged,
            computations=dict(computations),
            digest=self.digest(),
            traceback=str(((self.error or {}).get("fields") or {}).get("traceback", "")),
        )
        self.journal.write(now_s, ended)
        facts = self.facts
        summary = self.journal.summary(
            reason=command.reason,
            converged=converged,
            unconverged=unconverged,
            rounds=rounds,
            seconds=now_s,
            objective=objective,
            examples=None if facts is None else facts.n_rows,
            features=None if facts is None else facts.n_columns,
            members=members,
        )
        if self.record.validate:
            rows = [dict(row) for row in self.journal.rows]
            n_rows = 0 if facts is None else facts.scored_rows.get("validation", 0)
            validation = validation_summary(self.record.validate, rows, n_rows)
            summary = replace(summary, validation=validation)
        last = self.journal.last_row().columns
        train, test = summary_scores(last, "train"), summary_scores(last, "test")
        summary = replace(summary, model_round=model_round, train=train, test=test)
        self.summary = summary.to_json()


def has_converged(model: Model, settings: DriverSettings) -> bool:
    """Whether the trainer reports convergence, or the model reached the job's gap or objective."""
    gap, objective = settings.gap_target, settings.objective_target
    return (
        model.converged
        or (gap is not None and model.gap is not None and model.gap <= gap)
        or (objective is not None and model.objective is not None and model.objective <= objective)
    )


def _warm_start_digest(record: JobRecord) -> str | None:
    """Return the digest of the job's initial model, if it has one."""
    arrays = record.initial_model
    return None if arrays is None else as_text(digest_of_arrays(arrays))


#: Records of chunk locations and of the trainer's input, by their messages. Only changes are
#: recorded; a steady round has none.
_RECORDED: Final[Mapping[type, type[story.StoryRecord]]] = {
    ev.BlockRead: story.BlockRead,
    ev.ChunksLoaded: story.ChunksLoaded,
    ev.ChunksDropped: story.ChunksDropped,
    cmd.GiveChunks: story.ChunksGiven,
    cmd.Own: story.ChunksOwned,
}


def _record_of(message: ev.Event | cmd.Command) -> story.StoryRecord | None:
    """Return the record of a message, with the fields that both have; None for most messages."""
    if isinstance(message, cmd.Continue):
        if not message.go_on:
            return story.RoundsStopped(cause=message.cause, reason=message.reason)
        if not message.tuned:
            return None
        return story.SettingsTuned(cause=message.cause, settings=dict(message.tuned))
    kind = _RECORDED.get(type(message))
    if kind is None or (isinstance(message, ev.BlockRead) and not message.chunks):  # a survey
        return None
    names = [each.name for each in fields(kind) if hasattr(message, each.name)]
    values = {name: getattr(message, name) for name in names}
    if "chunks" in values:
        values["chunks"] = format_chunk_ranges(values["chunks"])
    if isinstance(message, ev.ChunksLoaded) and message.source is None:
        values["order"] = None
    ids = {name: str(value) for name, value in values.items() if isinstance(value, MemberId)}
    return kind(**values | ids)
