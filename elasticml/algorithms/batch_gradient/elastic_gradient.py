"""Gradients over the present examples with stand-ins for the absent: Algorithm 2, 8 to 15 and 21.

Only this part knows that examples can be absent. Its sums always refer to one set of examples
together with stand-ins for exactly the others.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from elasticml.algorithms.base import Anchor, Arrays, Exchange, Outcome, Scalar
from elasticml.algorithms.batch_gradient.curvature_estimates import Curvatures
from elasticml.algorithms.batch_gradient.gradient_exchanges import gradient_exchange
from elasticml.algorithms.batch_gradient.stand_ins import StandIn, StandIns, Sums
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.errors import JobFailedError
from elasticml.ids import ExchangeId, GroupId
from elasticml.specification.algorithms import BatchGradient

#: Maximum attempts at one gradient; each except the first follows a loss or a return.
ATTEMPTS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A model and the serial under which solvers cache its margins."""

    serial: int
    #: Shape (n_model,).
    w: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Sums at a point over all examples except those of the groups in the queue."""

    point: Point
    exchange: ExchangeId
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceRules:
    """The effects of an ``absent`` setting."""

    #: Absent groups get a stand-in.
    stands_in: bool
    #: Which members exchanges wait for.
    require: Literal["any", "everybody"]
    #: The mean is over the present examples.
    rescaled: bool
    #: Stand-ins have curvature, borrowed from the present examples or their own.
    bends: bool = False
    #: The guard watches stand-ins without curvature; it needs bounds of the absent losses.
    guarded: bool = False

    @staticmethod
    def of(absent: str, settings: BatchGradient) -> AbsenceRules:
        """Return the rules of an ``absent`` setting.

        The paper's stand-ins are not guarded. Where rounds are rolled back, none has curvature.
        """
        rolls_back = settings.rounds_rolled_back > 0
        is_plain = settings.mode == "paper" and (absent == "taylor" or rolls_back)
        stands_in = absent in ("auto", "taylor")
        return AbsenceRules(
            stands_in=stands_in,
            require="everybody" if absent in ("stall", "reload") else "any",
            rescaled=absent == "ignore_rescaled",
            bends=absent == "auto" and not rolls_back,
            guarded=stands_in and not is_plain,
        )


class ElasticGradient:
    """Sums over the present examples, and the queue of absent groups with their stand-ins."""

    def __init__(
        self,
        *,
        columns: Columns,
        rules: AbsenceRules,
        cached_anchors: bool,
        total_weight: float,
        curvatures: Curvatures | None = None,
    ) -> None:
        self.columns = columns
        self.rules = rules
        #: Source of the stand-ins' curvature and bounds; None if they have neither.
        self.curvatures = curvatures
        self.cached_anchors = cached_anchors
        self.stand_ins = StandIns(columns.n_model)
        #: Weight of all examples; an estimate until the first sum over all of them.
        self.total_weight = total_weight
        #: The last point whose sums are known for exactly the examples outside the queue: w^{r-1}
        #: while w^r is being evaluated. None before the first.
        self.last_evaluated: Evaluated | None = None
        #: The point before it, if it was evaluated over the same examples.
        self.before: Evaluated | None = None
        #: Value of ``changes`` when ``last_evaluated`` was set.
        self._evaluated_changes = 0
        #: The next exchange closes the open group.
        self.seal = False
        #: Incremented whenever the set of examples in the sums changes.
        self.changes = 0
        self.corrections = 0
        self.note: str | None = None

    # --- what the sums mean -----------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether every example is in the sums."""
        return not self.stand_ins.entries

    def divisor(self, sums: Sums) -> float:
        """Return the weight that divides sums plus stand-ins to give means.

        Under ``ignore`` it includes the absent examples, whose losses count as zero. A group that
        was lost before any gradient was known has no stand-in and no weight.
        """
        if self.rules.rescaled or self.rules.stands_in:
            return sums.weight + self.stand_ins.weight
        return self.total_weight

    def read(self, arrays: Arrays) -> Sums:
        """Convert received arrays to sums in the coordinates of the trained model."""
        return Sums(
            loss=float(arrays["loss"]),
            gradient=self.columns.up(np.asarray(arrays["gradient"])),
            weight=float(arrays["weight"]),
        )

    # --- exchanges ----------------------------------------------------------------------------

    def ask(self, exchange: Exchange) -> Generator[Exchange, Outcome, Outcome]:
        """Make an exchange with the members that the rules wait for; it closes the open group."""
        seal, self.seal = self.seal, False
        return (yield replace(exchange, require=self.rules.require, seal=seal))

    def ask_here(self, exchange: Exchange) -> Generator[Exchange, Outcome, Outcome | None]:
        """Make an exchange about the evaluated point; None if its set of examples has changed.

        Examples lost meanwhile get a stand-in anchored at the point.
        """
        before = self.changes
        outcome = yield from self.ask(exchange)
        if outcome.opened is not None:
            yield from self.stand_in(outcome)
        else:
            self.settle(outcome.absent)
        is_same = self.changes == before and float(outcome.arrays.get("uncached", 0.0)) == 0.0
        return outcome if is_same else None

    # --- lines 5 to 8: the gradient at w^r -----------------------------------------------------

    def evaluate(
        self, point: Point, parameters: Mapping[str, Scalar], *, roll_back: bool
    ) -> Generator[Exchange, Outcome, Evaluated | None]:
        """Evaluate a point over one set of examples, with stand-ins for all others.

        Parameters
        ----------
        parameters : mapping
            How a solver may compute the margins, see
            :mod:`~elasticml.algorithms.batch_gradient.gradient_exchanges`.
        roll_back : bool
            Abandon the round if a stand-in was created: line 16.

        Returns
        -------
        Evaluated or None
            None when the round is abandoned; ``last_evaluated`` is then at w^{r-1}, for the
            survivors.
        """
        sent = self.columns.down(point.w)
        for _ in range(ATTEMPTS_MAX):
            exchange = gradient_exchange(sent, {**parameters, "point": point.serial})
            if self.curvatures is not None:
                exchange = self.curvatures.comparing(exchange)
            outcome = yield from self.ask(replace(exchange, keep=True))
            is_same = True
            if outcome.opened is not None:
                gives_up = roll_back and self.rules.stands_in and self.last_evaluated is not None
                latest = yield from self.stand_in(outcome)
                if gives_up:
                    return None
                is_same = (latest.opened, latest.absent) == (outcome.opened, outcome.absent)
            else:
                self._take_back(point, outcome)
            # An empty sum without stand-ins carries no information: repeat with returned members.
            if is_same and (outcome.examples or self.stand_ins.count):
                sums = self.read(outcome.arrays)
                self._set_last(Evaluated(point=point, exchange=outcome.exchange, sums=sums))
                if outcome.absent_examples == 0:
                    self.total_weight = sums.weight
                if self.curvatures is not None:
                    self.curvatures.evaluated(point.serial, outcome.arrays)
                    yield from self._survey(self.curvatures)
                return self.last_evaluated
        raise JobFailedError(
            f"examples vanished or returned in each of {ATTEMPTS_MAX} attempts to evaluate one "
            "point; keep members longer than a round takes"
        )

    def _survey(self, curvatures: Curvatures) -> Generator[Exchange, Outcome, None]:
        """Run a due survey at the known point: its data cannot be had once examples are lost."""
        assert self.last_evaluated is not None
        survey = curvatures.due(self.last_evaluated.point.w, is_whole=self.is_whole)
        outcome = None if survey is None else (yield from self.ask_here(survey))
        if outcome is not None:
            curvatures.surveyed(outcome.arrays)

    def settle(self, absent: Collection[GroupId]) -> None:
        """Increment ``changes`` if groups are in the sum again: line 21.

        Their stand-ins are dropped with the next gradient that contains them, not with this
        outcome, which is not a gradient.
        """
        self.changes += self.stand_ins.has_returned(absent)

    def _drop(self, absent: Collection[GroupId]) -> list[StandIn | None]:
        """Drop the stand-ins of groups whose gradient is in the sum again."""
        dropped = self.stand_ins.drop_returned(absent)
        self.changes += len(dropped)
        if dropped:
            self.before = None
        if self.curvatures is not None:
            for entry in dropped:
                self.curvatures.returned(entry)
        return dropped

    def _take_back(self, point: Point, outcome: Outcome) -> None:
        """Drop the stand-ins of returned groups, and re-anchor the others to the new sum.

        Stand-ins with borrowed curvature depend on the present examples' sum, which has changed.
        The old sum at this point was not evaluated; it is estimated as the new sum minus the
        returned groups' stand-ins.
        """
        former = None if self.last_evaluated is None else self.last_evaluated.sums.weight
        dropped = self._drop(outcome.absent)
        if not dropped or former is None or not self.stand_ins.depends_on_present:
            return
        new = self.read(outcome.arrays)
        old = new
        theta = 0.0
        for entry in dropped:
            if entry is not None:
                old = old.minus(entry.own(point.w))
                theta += entry.theta
        share = 1.0 / (1.0 + theta)
        if None in dropped:  # of their contribution only the weight is known
            share *= former / old.weight if old.weight > 0.0 else 0.0
        old = Sums(loss=share * old.loss, gradient=share * old.gradient, weight=former)
        self.stand_ins.carry(point.w, old, new)

    def _set_last(self, evaluated: Evaluated) -> None:
        """Set the known point; keep the previous one if its sums are over the same examples."""
        if self.last_evaluated is None or self._evaluated_changes != self.changes:
            self.before = None
        elif self.last_evaluated.point.serial != evaluated.point.serial:
            self.before = self.last_evaluated
        self.last_evaluated, self._evaluated_changes = evaluated, self.changes

    def borrow(self, evaluated: Evaluated) -> None:
        """Give stand-ins without curvature the curvature of the present examples' loss."""
        w, present = evaluated.point.w, evaluated.sums
        entries = self.stand_ins.entries.items()
        flat = {g: e for g, e in entries if e is not None and e.mode == "taylor"}
        self.stand_ins.swap(
            {g: e.spare or e.borrowing(w, e.own(w), present) for g, e in flat.items()}
        )
        self.changes += 1
        self._evaluated_changes = self.changes

    # --- lines 9 to 15: stand-ins for lost examples ----------------------------------------------

    def stand_in(self, outcome: Outcome) -> Generator[Exchange, Outcome, Outcome]:
        """Add the open group of an outcome to the queue, with its stand-in.

        ``last_evaluated`` then refers to the survivors: otherwise a second loss would count the
        gradient of the first one again. The next exchange seals the group.

        Returns
        -------
        Outcome
            The outcome that defines the group: a correction's if more examples were lost meanwhile.
        """
        returned = self._drop(outcome.absent)
        self.changes += 1
        if not self.rules.stands_in or self.last_evaluated is None:
            assert outcome.opened is not None
            self._ignore(outcome.opened)
            return outcome
        former, lost = self.last_evaluated, None
        if outcome.anchor is not None and self._is_usable(outcome.anchor):
            lost = self.read(outcome.anchor.arrays)
        # If a never evaluated group is back, the present examples are not just the survivors.
        if lost is not None and None not in returned:
            evaluated = self._with_returned(former, returned)
            latest, survivors = outcome, evaluated.sums.minus(lost)
        else:
            latest, evaluated, survivors = yield from self._corrected(former, returned)
            if (latest.opened, latest.absent) != (outcome.opened, outcome.absent):
                lost = None
        answer: Arrays = {}
        while (question := self._question(latest)) is not None:
            asked = yield question
            if (asked.opened, asked.absent) == (latest.opened, latest.absent):
                answer = asked.arrays
                break
            # More examples were lost before they answered: they join the group.
            latest, evaluated, survivors = yield from self._corrected(former, returned)
            lost = None
        self.stand_ins.carry(evaluated.point.w, former.sums, survivors)
        if lost is None and None not in returned:
            lost = evaluated.sums.minus(survivors)
        if latest.opened is not None and lost is not None:
            is_exact = evaluated.sums is former.sums
            entry = self._entry(evaluated, lost, survivors, answer, is_exact=is_exact)
            self.stand_ins.push(latest.opened, entry)
            self.seal = True
        elif latest.opened is not None:
            # The sums differ by the lost and by a returned group never evaluated: neither is known.
            self._ignore(latest.opened)
        self.last_evaluated = replace(evaluated, sums=survivors)
        self._evaluated_changes = self.changes
        return latest

    def _question(self, latest: Outcome) -> Exchange | None:
        """Return the survey of the survivors of a loss, besides their gradient."""
        if self.curvatures is None or latest.opened is None:
            return None
        if self.before is None:
            return self.curvatures.questions(None, -1)
        return self.curvatures.questions(self.before.point.w, self.before.point.serial)

    def _entry(
        self, evaluated: Evaluated, lost: Sums, survivors: Sums, answer: Arrays, *, is_exact: bool
    ) -> StandIn:
        """Return the stand-in of the lost examples, and restrict ``before`` to the survivors."""
        if self.curvatures is None:
            return StandIn(w=evaluated.point.w, sums=lost)
        before, changes = self.before, None
        if before is not None and "gradient" in answer:
            left = self.read(answer)
            whole = evaluated.sums.gradient - before.sums.gradient
            present = survivors.gradient - left.gradient
            changes = (whole - present, present)
            self.before = replace(before, sums=left)
        return self.curvatures.choose(
            evaluated.point.w, lost, survivors, changes, answer, is_exact=is_exact
        )

    def _ignore(self, group: GroupId) -> None:
        """Add a group without known sums to the queue."""
        if self.rules.stands_in:
            self.note = "examples vanished of which no gradient is known: ignored until back"
        if self.curvatures is not None:
            self.curvatures.lost_unseen()
        self.stand_ins.push(group, None)
        self.seal = True

    def _corrected(
        self, former: Evaluated, returned: list[StandIn | None]
    ) -> Generator[Exchange, Outcome, tuple[Outcome, Evaluated, Sums]]:
        """Return the correction's outcome, the sums before the loss, and those of the survivors.

        Groups that returned meanwhile are added to ``returned``.
        """
        latest = yield from self._correct(former.point)
        returned += self._drop(latest.absent)
        return latest, self._with_returned(former, returned), self.read(latest.arrays)

    def _correct(self, point: Point) -> Generator[Exchange, Outcome, Outcome]:
        """Lines 9 to 12: the survivors' gradient at a point known for a larger set.

        Examples lost meanwhile join the open group and are in the difference: no repetition needed.
        """
        self.corrections += 1
        exchange = gradient_exchange(
            self.columns.down(point.w), {"point": point.serial, "scratch": True}
        )
        return (yield replace(exchange, phase="correct"))

    def _is_usable(self, anchor: Anchor | None) -> bool:
        """Whether a cached anchor belongs to the known point."""
        return (
            self.cached_anchors
            and anchor is not None
            and self.last_evaluated is not None
            and anchor.exchange == self.last_evaluated.exchange
        )

    @staticmethod
    def _with_returned(former: Evaluated, returned: list[StandIn | None]) -> Evaluated:
        """Add groups that returned in the same exchange in which others were lost.

        Their gradient at the known point was never evaluated; their stand-in's is used instead.
        Otherwise the difference would attribute the returned groups' share to the lost ones.
        """
        sums = former.sums
        for entry in returned:
            if entry is not None:
                sums = sums.plus(entry.at(former.point.w, former.sums))
        return replace(former, sums=sums)
