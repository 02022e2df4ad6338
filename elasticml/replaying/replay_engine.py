"""Replay of a run from its story, with the same solvers, chunks and order of additions.

The real trainer requests its exchanges. For each, the story contains the members, their chunks and
threads, and the parenthesised order in which their partials were added. Nothing is decided here:
the story contains the decisions of policies and clocks. After each exchange the digest of all sums
and models so far is compared with that of the run.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Resume, Scalar, Work
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.digests import as_text
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.source import Source, survey_all
from elasticml.errors import ConfigError, DataError, ElasticmlError, JobFailedError
from elasticml.evaluation.validation import make_solver, make_trainer
from elasticml.ids import ExchangeId, GroupId, Mask
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.job_record import job_record
from elasticml.replaying.replay_members import ReplayMember, ReplayMembers, computed_before
from elasticml.runtime.checkpoints import checkpoint_format
from elasticml.runtime.executors import ThreadParallel, parallel
from elasticml.sim.block_cache import BlockCache
from elasticml.story.records import (
    DataLoaded,
    ExchangeEnded,
    JobBegun,
    JobEnded,
    JobResumed,
    MemberJoined,
    RoundEnded,
    RoundsStopped,
    SettingsTuned,
    StoryRecord,
    WentOutOfCore,
)
from elasticml.training.array_buffers import Vector, merge, n_values, pack, unpack
from elasticml.training.fingerprint import BlasThreadLimit, cpu_class, versions
from elasticml.training.trainer_runner import TrainerRunner


def check_devices(records: Iterable[StoryRecord]) -> None:
    """Check that no member computed on a device whose sums are not reproducible.

    Raises
    ------
    ConfigError
        When members computed on CUDA; it names the first round.
    """
    ended = (record for record in records if isinstance(record, RoundEnded))
    first = next((record for record in ended if record.row.on_cuda), None)
    if first is not None:
        raise ConfigError(
            f"members computed on CUDA, first in round {first.round}, where kernels add in an "
            "order that changes from run to run, so no replay gets the same bits; to replay a "
            "job, run it with algorithm.device: cpu"
        )


def check_start(record: JobBegun) -> None:
    """Check that versions and processor are those of the driver that wrote a record.

    Raises
    ------
    ConfigError
        When something differs on this machine; it names the difference.
    """
    job = job_record(record.spec)
    if not job.deterministic:
        raise ConfigError("the job has deterministic: false: no two runs of it are the same")
    if job.is_cost_only:
        raise ConfigError(
            "the run was simulated from its costs alone, without data: there is no model to "
            "compute again"
        )
    if not record.cpu:
        raise ConfigError(
            "the story does not contain the run's processor: an older version of elasticml wrote "
            "it; run the job again"
        )
    installed = versions()
    for name, version in record.versions.items():
        if installed.get(name) != version:
            raise ConfigError(
                f"{name} is {installed.get(name)} here, the run had {version}: results may differ "
                f"in their last bits; install {name} {version}"
            )
    _check_cpu(record.cpu, "the driver")


def check_member(record: MemberJoined) -> None:
    """Check that a member's processor has this machine's class.

    Raises
    ------
    ConfigError
        When it has another class.
    """
    _check_cpu(record.cpu, f"member {record.member} on {record.host}")


def check_order(record: WentOutOfCore, algorithm: str) -> None:
    """Check that an algorithm's results do not depend on the memory of a member out of core.

    Only the passes of both CoCoAs visit rows in the order in which they are read from disk.

    Raises
    ------
    ConfigError
        When the results depend on it.
    """
    if algorithm in ("cocoa", "primal_cocoa"):
        raise ConfigError(
            f"member {record.member} went out of core: the order of its passes depended on the "
            "memory that it had; run the job with more memory or members"
        )


def _check_cpu(recorded: str, whose: str) -> None:
    cpu = cpu_class()
    if cpu != recorded:
        raise ConfigError(
            f"the processor is {cpu} here, that of {whose} was {recorded}: compiled loops may "
            "round differently; replay on a machine of that class"
        )


@dataclass(slots=True)
class Sums:
    """The sums of an exchange, by the mask of their slots.

    Sums of the same members in the same order have the same bits, wherever in the tree they were
    computed.
    """

    #: None if the exchange has no partials.
    total: Vector | None = None
    by_mask: dict[Mask, Vector] = field(default_factory=dict)


def add_up(order: str, partials: Mapping[int, Vector], reduce: str) -> Sums:
    """Add partials in a parenthesised order such as ``((0+2)+1)``, from left to right.

    Parameters
    ----------
    order : str
        Slots, ``+`` and parentheses; empty if there is nothing to add.
    partials : mapping of ndarray
        By slot; not changed.
    reduce : {"sum", "max"}

    Raises
    ------
    DataError
        When the order cannot be parsed, or names a slot without a partial.
    """
    sums = Sums()
    if order:
        reader = _Reader(order, partials, reduce, sums.by_mask)
        _, sums.total = reader.group()
        reader.finish()
    return sums


class _Reader:
    """Parses an order from left to right and adds at the same time."""

    def __init__(
        self, order: str, partials: Mapping[int, Vector], reduce: str, sums: dict[Mask, Vector]
    ) -> None:
        self._order = order
        self._partials = partials
        self._reduce = reduce
        self._sums = sums
        self._at = 0

    def group(self) -> tuple[Mask, Vector]:
        """Parse a slot, or groups in parentheses."""
        if not self._takes("("):
            return self._slot()
        mask, first = self.group()
        total = first.copy()
        while self._takes("+"):
            other, partial = self.group()
            mask = Mask(mask | other)
            merge(total, partial, self._reduce)
        if not self._takes(")"):
            raise self._wrong("a parenthesis is not closed")
        self._sums[mask] = total
        return mask, total

    def finish(self) -> None:
        """Check that the whole order has been parsed."""
        if self._at != len(self._order):
            raise self._wrong(f"{self._order[self._at :]!r} is left over")

    def _takes(self, sign: str) -> bool:
        is_next = self._order.startswith(sign, self._at)
        self._at += is_next
        return is_next

    def _slot(self) -> tuple[Mask, Vector]:
        end = self._at
        while end < len(self._order) and self._order[end].isdecimal():
            end += 1
        text, self._at = self._order[self._at : end], end
        if not text or int(text) not in self._partials:
            raise self._wrong(f"slot {text!r} has no partial")
        mask = Mask(1 << int(text))
        self._sums[mask] = self._partials[int(text)]
        return mask, self._sums[mask]

    def _wrong(self, why: str) -> DataError:
        return DataError(f"the story's order of additions {self._order!r} cannot be read: {why}")


#: Number of exchanges whose sums are kept as possible anchors; members keep two.
KEPT = 4


class Replay:
    """Replays a story, one record at a time.

    Parameters
    ----------
    records : sequence of StoryRecord
        The whole story.
    source : Source
        The data.
    algorithm : mapping
        The ``algorithm`` section of the story, with the initial model if there was one.
    """

    def __init__(
        self, records: Sequence[StoryRecord], source: Source, algorithm: Mapping[str, Any]
    ) -> None:
        self._records = records
        self._source = source
        self._algorithm = algorithm
        if not isinstance(records[0], JobBegun):
            raise DataError("the story does not begin with a job's start; nothing to replay")
        job = job_record(records[0].spec)
        self._absent = job.absent or ""
        self._validate = job.validate
        self._blocks = BlockCache(source, job.chunk_bytes, job.members.start, job.cache)
        self._members = ReplayMembers(self._blocks, "", {})
        self._blas = BlasThreadLimit()
        self._blas_threads = 1
        self._pools: dict[tuple[int, int], Serial | ThreadParallel] = {}
        self._kept: deque[tuple[ExchangeId, Sums]] = deque(maxlen=KEPT)
        self.facts: DatasetStats | None = None
        self.training: TrainerRunner | None = None
        #: The trainer's last request.
        self._request: ev.Event | None = None
        self._resume: Resume | None = None
        self._go_on = True
        self._tuned: Mapping[str, Scalar] = {}
        #: The current round; the number of exchanges so far.
        self.round = 0
        self.exchanges = 0

    def run(self) -> Iterator[StoryRecord]:
        """Replay the story to its end; yield each record after it has been replayed.

        Raises
        ------
        ConfigError, DataError
            When this machine, its software or the data are not those of the run.
        JobFailedError
            When results differ from those of the run.
        """
        check_devices(self._records)
        try:
            with self._blas:
                for number, record in enumerate(self._records):
                    self._follow(number, record)
                    yield record
        finally:
            for pool in self._pools.values():
                if isinstance(pool, ThreadParallel):
                    pool.close()

    def _follow(self, number: int, record: StoryRecord) -> None:
        match record:
            case JobBegun():
                self._begin(number, record)
            case MemberJoined():
                check_member(record)
            case WentOutOfCore():
                check_order(record, str(self._algorithm.get("name")))
            case DataLoaded():
                self._loaded()
            case ExchangeEnded():
                self._exchange(record)
            case RoundEnded():
                self._round_ended(record)
            case SettingsTuned():
                self._tuned = record.settings
            case RoundsStopped():
                self._go_on = False
            case JobEnded():
                self._end(record)
        self._members.take(record)

    # --- start and resume -----------------------------------------------------------------------

    def _begin(self, number: int, record: JobBegun) -> None:
        """Start the job, or resume it as another process did: new members, the trainer's state."""
        check_start(record)
        self._blas_threads = int(record.blas_threads)
        self._blocks.source = self._source = survey_all(self._source)
        resume = None
        if isinstance(record, JobResumed):
            assert self.training is not None
            resume = self.training.resume(self._tuned)
            if resume is None:
                raise DataError("the story resumes from a checkpoint in the middle of a round")
            resume = _as_written(resume)
        rest = self._records[number + 1 :]
        ends = (k for k, r in enumerate(rest) if isinstance(r, JobResumed))
        ids = computed_before(rest[: next(ends, len(rest))])
        self._members = ReplayMembers(self._blocks, self._source.fingerprint(), ids)
        self._kept.clear()
        self._resume, self.training, self._request = resume, None, None
        self._go_on, self._tuned = True, {}

    def _loaded(self) -> None:
        blocks = range(self._blocks.n_blocks)
        self.facts = merge_summaries([self._blocks.read(block)[1] for block in blocks])

    def _make_trainer(self) -> TrainerRunner:
        if self.facts is None:
            raise DataError("the story contains an exchange before the data were loaded")
        return TrainerRunner(
            make_trainer(self._algorithm, self.facts, self._absent, self._resume, self._validate)
        )

    # --- the trainer ----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Answer the end of a round, or start the trainer."""
        self._blas.set(self._blas_threads)
        if self.training is None:
            self.training = self._make_trainer()
            self._took(self.training.start())
        while isinstance(self._request, ev.RoundFinished):
            go_on, self._go_on = self._go_on, True
            tuned, self._tuned = self._tuned, {}
            self._took(self.training.proceed(go_on, tuned))

    def _took(self, event: ev.Event) -> None:
        assert self.training is not None
        error = self.training.error
        if error is not None and not isinstance(error, ElasticmlError):
            raise error
        self._request = event

    def _exchange(self, record: ExchangeEnded) -> None:
        """Compute an exchange as recorded, and deliver it to the trainer."""
        self._advance()
        training = self.training
        assert training is not None
        request = self._request
        if not isinstance(request, ev.ExchangeRequested):
            raise self._differs(record, f"the trainer {_what(request)} instead")
        header = request.header
        if header.operation != record.operation:
            raise self._differs(record, f"the trainer asks for {header.operation} instead")
        self._compare(record, training)
        sums = self._sums(header, record)
        self.exchanges += 1
        if request.require_everybody and record.absent_examples:
            return  # not delivered: the trainer requests it again
        self._blas.set(self._blas_threads)
        inputs = [] if sums.total is None else [sums.total]
        self._took(training.deliver(_deliver(record), inputs, self._anchor(record)))

    def _compare(self, record: ExchangeEnded, training: TrainerRunner) -> None:
        digest = as_text(training.digest)
        if digest != record.digest:
            before = int(record.exchange) - 1
            raise self._differs(
                record,
                f"its model, or the sum of exchange {before}, has other bits: the digest is "
                f"{digest}, the run had {record.digest}",
            )

    def _differs(self, record: ExchangeEnded, why: str) -> JobFailedError:
        where = f"round {record.round}, exchange {record.exchange} ({record.operation})"
        return JobFailedError(
            f"the replay differs from the run, first at {where}: {why}",
            round=record.round,
            exchange=record.exchange,
        )

    # --- members --------------------------------------------------------------------------------

    def _sums(self, requested: ev.ExchangeHeader[ev.Shape], record: ExchangeEnded) -> Sums:
        """Compute the partials of the members that took part, and add them."""
        mask, missing = int(record.contributors, 16), int(record.missing, 16)
        assert self.training is not None
        packed = self.training.packed
        packed.setflags(write=False)
        header = replace(
            requested,
            exchange=ExchangeId(record.exchange),
            members=(mask | missing).bit_count(),
        )
        work = header.with_model(unpack(packed, header.model))
        partials: dict[int, Vector] = {}
        for slot in _slots(mask | missing):
            member = self._members.acting.get(slot)
            if member is None:
                raise DataError(f"the story does not contain the chunks of slot {slot}")
            if mask >> slot & 1:
                partials[slot] = self._compute(member, work)
            elif self._members.has_computed(member, work.exchange):
                self._compute(member, work)  # its partial was lost, but its chunks' states changed
        sums = add_up(record.order, partials, header.reduce)
        if header.keep:
            self._kept.append((work.exchange, sums))
        return sums

    def _compute(self, member: ReplayMember, work: Work) -> Vector:
        if member.solver is None:
            assert self.facts is not None
            # Through JSON, as the driver sends them.
            facts = DatasetStats.from_json(json.loads(json.dumps(self.facts.to_json())))
            member.solver = make_solver(self._algorithm, facts, self._validate)
        width = member.threads, member.nodes
        if width not in self._pools:
            self._pools[width] = parallel(*width)
        self._blas.set(member.blas_threads)
        arrays = member.solver.compute(work, member.chunks, self._pools[width])
        if not self._members.has_states:
            self._members.has_states = any(chunk.state for chunk in member.chunks)
        return pack(arrays, work.returns, np.empty(n_values(work.returns)))

    def _anchor(self, record: ExchangeEnded) -> list[tuple[int, Vector]]:
        if record.anchor is None:
            return []
        kept = next((sums for id, sums in self._kept if id == record.anchor), None)
        parts = []
        for sign, text in record.anchor_parts:
            partial = None if kept is None else kept.by_mask.get(Mask(int(text, 16)))
            if partial is None:
                raise DataError(
                    f"exchange {record.exchange} uses partials {text} of exchange "
                    f"{record.anchor}, which the story does not contain"
                )
            parts.append((int(sign), partial))
        return parts

    # --- ends -----------------------------------------------------------------------------------

    def _round_ended(self, record: RoundEnded) -> None:
        self.round = record.row.round + 1
        if record.idle:
            return
        training = self.training
        if training is None or not isinstance(self._request, ev.RoundFinished):
            raise JobFailedError(
                f"the replay differs from the run, first in round {record.round}: the run ended "
                f"it, the trainer {_what(self._request)} here",
                round=record.round,
            )

    def model_of(self, record: RoundEnded) -> Arrays:
        """Return the model at the start of the round of a ``RoundEnded``."""
        if self.training is None:
            return {}
        return self.training.last_arrays() if record.idle else self.training.round_arrays()

    def _end(self, record: JobEnded) -> None:
        # A trainer that was never started has digest zero.
        is_interrupted = record.state != "done" or record.digest == as_text(0)
        if is_interrupted or self.facts is None:
            return
        self._advance()
        assert self.training is not None
        digest = as_text(self.training.digest)
        if digest != record.digest:
            raise JobFailedError(
                "the replay differs from the run, first at its end: the last sum or the final "
                f"model has other bits: the digest is {digest}, the run had {record.digest}"
            )

    def result_arrays(self) -> Arrays:
        """Return the model of the run's result."""
        return {} if self.training is None else self.training.result_arrays()


def _as_written(resume: Resume) -> Resume:
    """Encode and decode a trainer's state, as the checkpoint's file did."""
    content = {"values": dict(resume.values), "tuned": dict(resume.tuned)}
    file = checkpoint_format.encode(content, resume.arrays)
    values, arrays = checkpoint_format.decode(file, "the checkpoint")
    return Resume(arrays=arrays, **values)


def _slots(mask: int) -> list[int]:
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]


def _what(event: ev.Event | None) -> str:
    """Describe what the trainer has done."""
    match event:
        case ev.ExchangeRequested():
            return f"asks for an exchange ({event.header.operation})"
        case ev.RoundFinished():
            return "ends a round"
        case ev.TrainerFinished():
            return f"ends ({event.reason})"
        case ev.Failed():
            return f"fails ({event.reason})"
    return "has not started"


def _deliver(record: ExchangeEnded) -> cmd.Deliver:
    """Return the outcome of an exchange as recorded."""
    return cmd.Deliver(
        exchange=ExchangeId(record.exchange),
        inputs=(),
        order=record.order,
        contributors=Mask(int(record.contributors, 16)),
        examples=record.examples,
        absent_examples=record.absent_examples,
        absent=tuple(GroupId(group) for group in record.absent),
        opened=None if record.opened is None else GroupId(record.opened),
        anchor_exchange=None if record.anchor is None else ExchangeId(record.anchor),
    )
