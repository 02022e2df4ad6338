"""A run computed again from its story: the same solvers, chunks, and order of additions.

The real trainer asks for its exchanges; the story says who took part in each, over which chunks,
with how many threads, and in what parenthesised order their shares were added. Nothing is decided
here: what policies and clocks decided stands in the story. After each exchange the digest of all
sums and models so far is compared with the run's.
"""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticml.algorithms.base import ON_CUDA, Arrays, Exchange, Resume, Scalar, Work
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.chunks.digests import as_text
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.source import Source, survey_all
from elasticml.errors import ConfigError, DataError, ElasticmlError, JobFailedError
from elasticml.ids import ExchangeId, Mask
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.replaying.replay_members import Record, ReplayMember, ReplayMembers, computed_before
from elasticml.runtime.checkpoints import checkpoint_format
from elasticml.runtime.executors import ThreadParallel, parallel
from elasticml.sim.block_cache import BlockCache
from elasticml.training.array_buffers import Vector, merge, n_values, pack, unpack
from elasticml.training.fingerprint import BlasThreadLimit, cpu_class, versions
from elasticml.training.trainer_runner import TrainerRunner


def check_devices(records: Sequence[Record]) -> None:
    """Check that nothing was computed where the same sums come out otherwise every time.

    Raises
    ------
    ConfigError
        When members have computed on CUDA; names the first round.
    """
    found = next((r for r in records if r["event"] == "RoundEnded" and r.get(ON_CUDA)), None)
    if found is not None:
        raise ConfigError(
            f"members have computed on CUDA, first in round {found['round']}, where kernels add in "
            "an order that changes from run to run: no replay reaches the same bits; run the job "
            "with algorithm.device: cpu where it shall be replayed"
        )


def check_start(record: Record) -> None:
    """Check the versions and the processor that a process of the job was told of at its start.

    Raises
    ------
    ConfigError
        When something is another here; names it.
    """
    spec = record["spec"]
    if not spec.get("deterministic", True):
        raise ConfigError("the job has deterministic: false: no two runs of it are the same")
    if (spec.get("simulate") or {}).get("costs"):
        raise ConfigError(
            "the run was simulated from its costs alone, without data: there is no model to "
            "reach again"
        )
    if "cpu" not in record:
        raise ConfigError(
            "the story does not say on what processor the run was: an older version of elasticml "
            "told it; run the job again"
        )
    here = versions()
    for name, there in record["versions"].items():
        if here.get(name) != there:
            raise ConfigError(
                f"{name} is {here.get(name)} here, the run had {there}: results may differ in "
                f"their last bits; install {name} {there}"
            )
    _check_cpu(record["cpu"], "the driver")


def check_member(record: Record) -> None:
    """Check the processor of a member.

    Raises
    ------
    ConfigError
        When it is of another class than this machine's.
    """
    _check_cpu(record["cpu"], f"member {record['member']} on {record['host']}")


def check_order(record: Record, algorithm: str) -> None:
    """Check that what an algorithm computes does not depend on how much memory a member had.

    Only the passes of both CoCoAs visit rows in the order in which they come from the disk.

    Raises
    ------
    ConfigError
        When it does: the order of its passes follows what streams from the disk together.
    """
    if algorithm in ("cocoa", "primal_cocoa"):
        raise ConfigError(
            f"member {record['member']} went out of core: the order of its passes depended on the "
            "memory that it had; run the job with more memory or members"
        )


def _check_cpu(there: str, whose: str) -> None:
    here = cpu_class()
    if here != there:
        raise ConfigError(
            f"the processor is {here} here, that of {whose} was {there}: compiled loops may round "
            "in another way; replay on a machine of that class"
        )


@dataclass(slots=True)
class Sums:
    """The sums of an exchange.

    Each is known by the mask of the slots in it: sums of the same members, written down in the
    same order, have the same bits wherever in the tree they were made.
    """

    #: None where nobody's share is in it.
    total: Vector | None = None
    by_mask: dict[Mask, Vector] = field(default_factory=dict)


def add_up(order: str, partials: Mapping[int, Vector], reduce: str) -> Sums:
    """Add partials as parenthesised: the first of a parenthesis, then the others one by one.

    Parameters
    ----------
    order : str
        Slots, ``+`` and parentheses; empty where there is nothing to add.
    partials : mapping of ndarray
        By slot; not changed.
    reduce : {"sum", "max"}

    Raises
    ------
    DataError
        When the order is no such text, or names a slot that has no partial.
    """
    sums = Sums()
    if order:
        reader = _Reader(order, partials, reduce, sums.by_mask)
        _, sums.total = reader.group()
        reader.finish()
    return sums


class _Reader:
    """Reads an order from left to right, adding as it goes."""

    def __init__(
        self, order: str, partials: Mapping[int, Vector], reduce: str, sums: dict[Mask, Vector]
    ) -> None:
        self._order = order
        self._partials = partials
        self._reduce = reduce
        self._sums = sums
        self._at = 0

    def group(self) -> tuple[Mask, Vector]:
        """Read a slot, or a parenthesis of groups."""
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
        """See that nothing is left."""
        if self._at != len(self._order):
            raise self._wrong(f"{self._order[self._at :]!r} is left over")

    def _takes(self, sign: str) -> bool:
        found = self._order.startswith(sign, self._at)
        self._at += found
        return found

    def _slot(self) -> tuple[Mask, Vector]:
        end = self._at
        while end < len(self._order) and self._order[end].isdecimal():
            end += 1
        text, self._at = self._order[self._at : end], end
        if not text or int(text) not in self._partials:
            raise self._wrong(f"slot {text!r} has no share in it")
        mask = Mask(1 << int(text))
        self._sums[mask] = self._partials[int(text)]
        return mask, self._sums[mask]

    def _wrong(self, why: str) -> DataError:
        return DataError(f"the story's order of additions {self._order!r} cannot be read: {why}")


#: Kept exchanges whose sums may be asked for as anchors; members keep two of their own.
KEPT = 4


class Replay:
    """Goes through a story, one record at a time.

    Parameters
    ----------
    records : sequence of dict
        The whole story, as it was told.
    source : Source
        The data.
    algorithm : mapping
        The ``algorithm`` section; the story's, and the model to start from where there was one.
    """

    def __init__(
        self, records: Sequence[Record], source: Source, algorithm: Mapping[str, Any]
    ) -> None:
        self._records = records
        self._source = source
        self._algorithm = algorithm
        spec = records[0]["spec"]
        self._absent = str(spec["absent"])
        start = int((spec.get("members") or {}).get("start") or 1)
        self._library = BlockCache(source, spec.get("chunk_bytes"), start, spec.get("cache"))
        self._places = ReplayMembers(self._library, "", {})
        self._blas = BlasThreadLimit()
        self._blas_threads = 1
        self._pools: dict[tuple[int, int], Serial | ThreadParallel] = {}
        self._kept: deque[tuple[ExchangeId, Sums]] = deque(maxlen=KEPT)
        self.facts: DatasetStats | None = None
        self.training: TrainerRunner | None = None
        #: What the trainer has asked for last.
        self._asked: ev.Event | None = None
        self._resume: Resume | None = None
        self._go_on = True
        self._tuned: Mapping[str, Scalar] = {}
        #: The round under way, and exchanges so far.
        self.round = 0
        self.exchanges = 0

    def run(self) -> Iterator[Record]:
        """Go on to the story's end; yields each record when it has been followed.

        Raises
        ------
        ConfigError, DataError
            When this machine, its software or the data are not those of the run.
        JobFailedError
            When what is computed here differs from what was computed in the run.
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

    def _follow(self, number: int, record: Record) -> None:
        match record["event"]:
            case "JobStarted" | "JobResumed":
                self._begin(number, record)
            case "MemberJoined":
                check_member(record)
            case "WentOutOfCore":
                check_order(record, str(self._algorithm.get("name")))
            case "DataLoaded":
                self._loaded()
            case "ExchangeEnded":
                self._exchange(record)
            case "RoundEnded":
                self._round_ended(record)
            case "SettingsTuned":
                self._tuned = record["settings"]
            case "RoundsStopped":
                self._go_on = False
            case "JobEnded":
                self._end(record)
        self._places.take(record)

    # --- beginnings -----------------------------------------------------------------------------

    def _begin(self, number: int, record: Record) -> None:
        """Begin, or go on as another process went on: with new members and the trainer's memory."""
        check_start(record)
        self._blas_threads = int(record["blas_threads"])
        self._library.source = self._source = survey_all(self._source)
        resume = None
        if record["event"] == "JobResumed":
            assert self.training is not None
            resume = self.training.resume(self._tuned)
            if resume is None:
                raise DataError("the story goes on from a checkpoint in the middle of a round")
            resume = _as_written(resume)
        rest = self._records[number + 1 :]
        ends = (k for k, r in enumerate(rest) if r["event"] == "JobResumed")
        ids = computed_before(rest[: next(ends, len(rest))])
        self._places = ReplayMembers(self._library, self._source.fingerprint(), ids)
        self._kept.clear()
        self._resume, self.training, self._asked = resume, None, None
        self._go_on, self._tuned = True, {}

    def _loaded(self) -> None:
        blocks = range(self._library.n_blocks)
        self.facts = merge_summaries([self._library.read(block)[1] for block in blocks])

    def _make_trainer(self) -> TrainerRunner:
        if self.facts is None:
            raise DataError("the story speaks of exchanges before the data were loaded")
        settings = dict(self._algorithm)
        factory = algorithm(settings.pop("name")).trainer
        if self._resume is None:
            return TrainerRunner(factory(settings, self.facts, self._absent))
        assert "resume" in inspect.signature(factory).parameters
        return TrainerRunner(factory(settings, self.facts, self._absent, resume=self._resume))

    # --- the trainer ----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Answer the end of a round, or start the trainer."""
        self._blas.set(self._blas_threads)
        if self.training is None:
            self.training = self._make_trainer()
            self._took(self.training.start())
        while isinstance(self._asked, ev.RoundFinished):
            go_on, self._go_on = self._go_on, True
            tuned, self._tuned = self._tuned, {}
            self._took(self.training.proceed(go_on, tuned))

    def _took(self, event: ev.Event) -> None:
        assert self.training is not None
        error = self.training.error
        if error is not None and not isinstance(error, ElasticmlError):
            raise error
        self._asked = event

    def _exchange(self, record: Record) -> None:
        """Compute an exchange as the record says it was computed, and give it to the trainer."""
        self._advance()
        training = self.training
        assert training is not None
        asked = training.exchange
        if not isinstance(self._asked, ev.ExchangeRequested) or asked is None:
            raise self._differs(record, f"the trainer {_what(self._asked)} instead")
        if asked.operation != record["operation"]:
            raise self._differs(record, f"the trainer asks for {asked.operation} instead")
        self._compare(record, training)
        sums = self._sums(asked, record)
        self.exchanges += 1
        if asked.require == "everybody" and record["absent_examples"]:
            return  # not delivered: the same one is asked for again
        self._blas.set(self._blas_threads)
        inputs = [] if sums.total is None else [sums.total]
        self._took(training.deliver(_deliver(record), inputs, self._anchor(record)))

    def _compare(self, record: Record, training: TrainerRunner) -> None:
        digest = as_text(training.digest)
        if digest != record["digest"]:
            before = int(record["exchange"]) - 1
            raise self._differs(
                record,
                f"its model, or the sum of exchange {before}, has other bits: the digest is "
                f"{digest}, the run had {record['digest']}",
            )

    def _differs(self, record: Record, why: str) -> JobFailedError:
        where = f"round {record['round']}, exchange {record['exchange']} ({record['operation']})"
        return JobFailedError(
            f"the replay differs from the run, first at {where}: {why}",
            round=record["round"],
            exchange=record["exchange"],
        )

    # --- members --------------------------------------------------------------------------------

    def _sums(self, asked: Exchange, record: Record) -> Sums:
        """Have everybody compute who did, and add up what came up."""
        mask, missing = int(record["contributors"], 16), int(record["missing"], 16)
        assert self.training is not None
        packed = self.training.packed
        packed.setflags(write=False)
        work = Work(
            exchange=ExchangeId(record["exchange"]),
            operation=asked.operation,
            model=unpack(packed, {name: array.shape for name, array in asked.model.items()}),
            parameters=asked.parameters,
            returns=asked.returns,
            members=(mask | missing).bit_count(),
        )
        partials: dict[int, Vector] = {}
        for slot in _slots(mask | missing):
            life = self._places.acting.get(slot)
            if life is None:
                raise DataError(f"the story does not say which chunks slot {slot} had")
            if mask >> slot & 1:
                partials[slot] = self._compute(life, work)
            elif self._places.has_computed(life, work.exchange):
                self._compute(life, work)  # nobody has its share, but its chunks have its steps
        sums = add_up(record["order"], partials, asked.reduce)
        if asked.keep:
            self._kept.append((work.exchange, sums))
        return sums

    def _compute(self, life: ReplayMember, work: Work) -> Vector:
        if life.solver is None:
            assert self.facts is not None
            settings = dict(self._algorithm)
            # As the driver sends them.
            facts = DatasetStats.from_json(json.loads(json.dumps(self.facts.to_json())))
            life.solver = algorithm(settings.pop("name")).solver(settings, facts)
        width = life.threads, life.nodes
        if width not in self._pools:
            self._pools[width] = parallel(*width)
        self._blas.set(life.blas_threads)
        arrays = life.solver.compute(work, life.chunks, self._pools[width])
        if not self._places.has_states:
            self._places.has_states = any(chunk.state for chunk in life.chunks)
        return pack(arrays, work.returns, np.empty(n_values(work.returns)))

    def _anchor(self, record: Record) -> list[tuple[int, Vector]]:
        if record["anchor"] is None:
            return []
        kept = next((sums for id, sums in self._kept if id == record["anchor"]), None)
        parts = []
        for sign, text in record.get("anchor_parts", ()):
            partial = None if kept is None else kept.by_mask.get(Mask(int(text, 16)))
            if partial is None:
                raise DataError(
                    f"exchange {record['exchange']} takes shares {text} of exchange "
                    f"{record['anchor']}, which the story does not tell of"
                )
            parts.append((int(sign), partial))
        return parts

    # --- ends -----------------------------------------------------------------------------------

    def _round_ended(self, record: Record) -> None:
        self.round = int(record["round"]) + 1
        if record["idle"]:
            return
        training = self.training
        if training is None or not isinstance(self._asked, ev.RoundFinished):
            raise JobFailedError(
                f"the replay differs from the run, first in round {record['round']}: the run ended "
                f"it, the trainer {_what(self._asked)} here",
                round=record["round"],
            )

    def model_of(self, record: Record) -> Arrays:
        """Return the model with which the round of a ``RoundEnded`` began."""
        if self.training is None:
            return {}
        return self.training.last_arrays() if record["idle"] else self.training.round_arrays()

    def _end(self, record: Record) -> None:
        # A trainer that was never started has been given nothing: its digest is zero.
        is_cut = record["state"] != "done" or record["digest"] == as_text(0)
        if is_cut or self.facts is None:
            return
        self._advance()
        assert self.training is not None
        digest = as_text(self.training.digest)
        if digest != record["digest"]:
            raise JobFailedError(
                "the replay differs from the run, first in its end: the last sum or the final "
                f"model has other bits: the digest is {digest}, the run had {record['digest']}"
            )

    def last_arrays(self) -> Arrays:
        """Return the newest whole model."""
        return {} if self.training is None else self.training.last_arrays()


def _as_written(resume: Resume) -> Resume:
    """Have a trainer's memory go through the file that the next process read it from."""
    content = {"values": dict(resume.values), "tuned": dict(resume.tuned)}
    file = checkpoint_format.encode(content, resume.arrays)
    values, arrays = checkpoint_format.decode(file, "the checkpoint")
    return Resume(arrays=arrays, **values)


def _slots(mask: int) -> list[int]:
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]


def _what(event: ev.Event | None) -> str:
    """Say in words what the trainer has done."""
    match event:
        case ev.ExchangeRequested():
            return f"asks for an exchange ({event.operation})"
        case ev.RoundFinished():
            return "ends a round"
        case ev.TrainerFinished():
            return f"ends ({event.reason})"
        case ev.Failed():
            return f"fails ({event.reason})"
    return "has not begun"


def _deliver(record: Record) -> cmd.Deliver:
    """Make the outcome that a record tells of."""
    return cmd.Deliver(
        exchange=ExchangeId(record["exchange"]),
        inputs=(),
        order=record["order"],
        contributors=Mask(int(record["contributors"], 16)),
        examples=record["examples"],
        absent_examples=record["absent_examples"],
        absent=tuple(record.get("absent", ())),
        opened=record["opened"],
        anchor_exchange=record["anchor"],
    )
