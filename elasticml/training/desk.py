"""A job's papers on the driver: facts, trainer, journal; the same ones for every shell.

A shell decides where the work runs and what time it is; what is written down is decided here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from elasticml.algorithms.base import Model, Scalar
from elasticml.algorithms.registry import algorithm
from elasticml.control import commands as cmd
from elasticml.control import events as ev
from elasticml.control.driver import Driver
from elasticml.control.resuming import remember
from elasticml.control.settings import Settings
from elasticml.data.digests import as_text, digest_of_arrays
from elasticml.data.facts import BlockSummary, DataFacts, merge_summaries
from elasticml.data.source import Source
from elasticml.errors import ConfigError, DataError, ElasticmlError, error_to_dict
from elasticml.training.checkpoint import (
    Checkpoint,
    Standing,
    check_same_data,
    check_same_job,
    without_arrays,
)
from elasticml.training.journal import Journal, final_model, loaded_record
from elasticml.training.run import Training
from elasticml.training.surroundings import blas_threads, cpu_class, versions
from elasticml.training.telling import told_of


class Desk:
    """What a driver shell writes and asks while a job runs.

    Parameters
    ----------
    record : mapping
        The job record.
    source : Source
        The data to train on.
    resumed : Checkpoint, optional
        Where another process has left the job.
    tells_chunks : bool
        Whether the story says where each chunk was, so that the run can be replayed.

    Raises
    ------
    ConfigError, DataError
        When the checkpoint is of another job, or of other data.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        source: Source,
        resumed: Checkpoint | None = None,
        *,
        tells_chunks: bool = True,
    ) -> None:
        self.record = record
        #: The source; once surveyed, the one that knows the vocabularies.
        self.source = source
        self.journal = Journal(record)
        self.training: Training | None = None
        self.facts: DataFacts | None = None
        #: "loading", "running", "done", "failed" or "cancelled".
        self.state = "loading"
        self.error: dict[str, Any] | None = None
        self.summary: dict[str, Any] = {}
        #: More columns than these do not fit the machines' memory; None where that is unknown.
        self.columns_max: int | None = None
        self.resumed = resumed
        self._tells_chunks = tells_chunks
        #: What tells the data from others; empty where nobody asks.
        self.fingerprint = ""
        if resumed is not None or record.get("checkpoint"):
            self.fingerprint = source.fingerprint()
        if resumed is not None:
            check_same_job(resumed, record, self.fingerprint)
            kept = resumed.standing
            self.journal.go_on(kept.counts, resumed.story, resumed.rows, resumed.snapshots)
            # The journal has them from now on, in less memory.
            self.resumed = replace(resumed, story=(), rows=())

    def open(self, now_s: float) -> None:
        """Write the story's first record, or the first one of another process that goes on."""
        fields = {
            "job": self.record["job"],
            "name": self.record.get("name"),
            # A model to start from is an array: the story has none.
            "spec": without_arrays(self.record),
            **_warm_start_digest(self.record),
            "versions": versions(),
            "cpu": cpu_class(),
            "blas_threads": blas_threads(),
        }
        if self.resumed is None:
            self.journal.tell(now_s, "JobStarted", fields, "submitted")
        else:
            told = {**fields, **self._resumed_fields(self.resumed)}
            self.journal.tell(now_s, "JobResumed", told, "submitted")

    def witness(self, message: ev.Event | cmd.Command, now_s: float) -> None:
        """Tell of what a replay must know: which chunks were where, what the trainer was told.

        To be called with every event before it is handled, and with every command.
        """
        told = told_of(message) if self._tells_chunks else None
        if told is not None and self.state in ("loading", "running"):
            self.journal.tell(now_s, *told, message.cause)

    def digest(self) -> str:
        """Digest all that the trainer has been given and has asked for, as 16 hex digits."""
        return as_text(0 if self.training is None else self.training.digest)

    def _resumed_fields(self, resumed: Checkpoint) -> dict[str, Any]:
        """Say from where the job goes on, and what of the former process's work is done again."""
        reached = self.record.get("reached") or {}
        rounds, seconds = reached.get("round"), reached.get("seconds")
        return {
            "attempt": self.journal.attempts,
            "round": resumed.round,
            "checkpoint": resumed.number,
            "members": sorted(resumed.owners),
            "repeated_rounds": None if rounds is None else max(0, rounds - resumed.round),
            "repeated_s": None if seconds is None else max(0.0, seconds - resumed.seconds),
            "notes": list(resumed.notes),
        }

    def standing(
        self, machine: Driver, now_s: float, tuned: Mapping[str, Scalar]
    ) -> Standing | None:
        """Say where the job stands between two rounds; None where its trainer cannot go on.

        Parameters
        ----------
        tuned : mapping
            What the trainer is about to be told in answer to the round's end.
        """
        resume = None if self.training is None else self.training.resume(tuned)
        if resume is None:
            return None
        return Standing(
            round=machine.state.round,
            seconds=now_s,
            resume=resume,
            machine=remember(machine),
            counts=self.journal.counts(),
            story=len(self.journal.story),
            rows=len(self.journal.rows),
            progress=len(machine.history.progress),
            kept=tuple(sorted(self.journal.snapshots)),
        )

    # --- facts and trainer ------------------------------------------------------------------

    def fix_facts(self, summaries: Iterable[BlockSummary], survey: bool, now_s: float) -> ev.Event:
        """Merge what was read of the blocks: after a survey, or after all have been read."""
        try:
            facts = merge_summaries(sorted(summaries, key=lambda s: s.block))
            if self.columns_max is not None and facts.n_columns > self.columns_max:
                raise DataError(
                    f"the data have {facts.n_columns} columns, wanted at most {self.columns_max}, "
                    "which is what fits the memory; check the indices in the data, or use machines "
                    "with more memory"
                )
            if survey or self.source.needs_survey:
                self.source = self.source.with_facts(facts)
            if not survey and self.resumed is not None:
                check_same_data(self.resumed, facts)
        except ElasticmlError as error:
            return self.fail(error)
        if not survey:
            self.facts = facts
            self.journal.tell(now_s, "DataLoaded", loaded_record(facts), "all blocks read")
        return ev.FactsFixed(cause="blocks", survey=survey)

    def make_trainer(self, absent: str) -> ev.Event | None:
        """Make the trainer, ready to be started; an event only when it refuses the job."""
        settings = dict(self.record["algorithm"])
        assert self.facts is not None
        try:
            name = settings.pop("name")
            factory = algorithm(name).trainer
            if self.resumed is None:
                made = factory(settings, self.facts, absent)
            elif "resume" in inspect.signature(factory).parameters:
                made = factory(settings, self.facts, absent, resume=self.resumed.standing.resume)
            else:
                raise ConfigError(
                    f"resume: algorithm {name} cannot go on from a checkpoint: its trainer takes "
                    "no argument resume; run the job anew"
                )
        except ElasticmlError as error:
            return self.fail(error)
        self.state = "running"
        self.training = Training(made)
        return None

    def fail(self, error: ElasticmlError) -> ev.Event:
        """Keep the error that ends the job."""
        self.error = error_to_dict(error)
        return ev.Failed(cause="driver", reason=error.message)

    # --- rows and the end ---------------------------------------------------------------------

    def add_row(
        self, now_s: float, fields: Mapping[str, Any], sent_bytes: int, waited: bool
    ) -> None:
        """Append a row to the history, and keep its model where the job asks for it.

        Parameters
        ----------
        waited : bool
            The round did nothing but wait: its model is the one the next round begins with.
        """
        self.journal.add_row(now_s, fields, sent_bytes)
        training = self.training
        if training is not None:
            arrays = training.last_arrays() if waited else training.round_arrays()
            self.journal.snapshot(int(fields["round"]), arrays)

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
            How often each member has computed.
        """
        model = None if self.training is None else self.training.model
        self.state = command.state
        if command.state == "failed" and self.error is None:
            self.error = {"kind": "JobFailedError", "message": command.reason, "fields": {}}
        rounds, members, objective = machine.state.round, machine.members_at_end, None
        if model is not None or self.journal.rows:
            # A job that was cut short ends with the model of its last whole round.
            known = final_model(model) if model is not None else machine.rounds.waiting_row()
            absent_examples = machine.state.ledger.absent_rows()
            row = {**known, "round": rounds, "members": members, "absent_examples": absent_examples}
            self.add_row(now_s, row, sent_bytes, waited=True)
            objective = row["objective"]
        converged = model is not None and has_converged(model, machine.state.settings)
        ended = {
            "state": command.state,
            "reason": command.reason,
            "converged": converged,
            "round": rounds,
            "computations": dict(computations),
            "digest": self.digest(),
        }
        self.journal.tell(now_s, "JobEnded", ended, command.cause)
        self.summary = self.journal.summary(
            reason=command.reason,
            converged=converged,
            rounds=rounds,
            seconds=now_s,
            objective=objective,
            facts=None if self.facts is None else self.facts.to_json(),
            members=members,
        )


def has_converged(model: Model, settings: Settings) -> bool:
    """Whether the trainer says so, or the model is where the job wanted it."""
    gap, objective = settings.gap_target, settings.objective_target
    return (
        model.converged
        or (gap is not None and model.gap is not None and model.gap <= gap)
        or (objective is not None and model.objective is not None and model.objective <= objective)
    )


def _warm_start_digest(record: Mapping[str, Any]) -> dict[str, str]:
    """Digest the model that a job starts from, where there is one."""
    given = record["algorithm"].get("warm_start")
    return {} if given is None else {"warm_start_digest": as_text(digest_of_arrays(given))}
