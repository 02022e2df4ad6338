"""Tune the local work between two merges from the measured progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elasticml.control.policy import Tune, View
from elasticml.policies.convergence import (
    Point,
    extrapolated_slope,
    gap_points,
    next_round,
    slope,
)
from elasticml.policies.validation import PolicyOptions, check_rising
from elasticml.specification.settings_model import (
    AtLeast2,
    Count,
    NumberAbove0,
    NumberFrom1,
    settings_dataclass,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A value that is being evaluated."""

    before: float
    value: float
    #: Decades of the gap per second with the former value, and the rate it would have by now.
    rate: float
    expected: float
    members: int


@settings_dataclass(finite=False, eq=False)
class TuneLocalWork(PolicyOptions):
    """Tune ``local_epochs``, the number of passes of a member over its examples in a round.

    ``r`` is d(log10 gap)/dt over ``window`` measured rounds. The next larger of ``choices`` is
    tried for as many rounds and kept if ``r' > hysteresis * r``, where ``r`` is extrapolated to the
    time of the comparison with the decay seen within its own window. If it is kept, the next larger
    one is tried. Otherwise the next smaller value is tried in the same way. If neither is better,
    there is no trial for ``cool`` rounds, twice as many each further time.

    Source: ours; the uni-task paper (section 4) names online tuning as a policy, without a rule.

    Parameters
    ----------
    choices : list of float
        Candidate values, ascending, > 0 each: 0.5 is a pass over half of a member's examples.
    start : float
        The job's value of ``local_epochs``; it need not be one of the choices.
    window : int
        Measured rounds, >= 2.
    hysteresis : float
        >= 1.
    cool : int
        Rounds without a trial, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.TuneLocalWork().name
    'tune_local_work'
    """

    name = "tune_local_work"

    choices: tuple[NumberAbove0, ...] = (1, 2, 4, 8)
    start: NumberAbove0 = 1
    window: AtLeast2 = 4
    hysteresis: NumberFrom1 = 1.1
    cool: Count = 16

    def __post_init__(self) -> None:
        self._trial: Trial | None = None
        self._upwards = True
        #: Number of directions from the present value that have failed.
        self._failed = 0
        self._since_round = 0
        self._rest = self.cool
        self._rest_until = 0

    def check(self) -> None:
        """Check constraints between fields."""
        check_rising("choices", self.choices)

    def state(self) -> dict[str, Any]:
        """Return the pending trial, the start of the measurement, and the search direction."""
        return {
            "trial": None if self._trial is None else asdict(self._trial),
            "upwards": self._upwards,
            "failed": self._failed,
            "since_round": self._since_round,
            "rest": self._rest,
            "rest_until": self._rest_until,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._trial = None if state["trial"] is None else Trial(**state["trial"])
        self._upwards, self._failed = bool(state["upwards"]), int(state["failed"])
        self._since_round = int(state["since_round"])
        self._rest, self._rest_until = int(state["rest"]), int(state["rest_until"])

    def suggest(self, view: View) -> Sequence[Tune]:
        """Return another value to try, or the former one if it was better; usually nothing."""
        members = len(view.working)
        points = gap_points(view.history, members, self._since_round)
        if view.round < self._rest_until or len(points) <= self.window:
            return []
        seen = points[-self.window - 1 :]
        rate = slope(seen)
        value = float(view.tuned.get("local_epochs", self.start))
        trial, self._trial = self._trial, None
        if trial is not None and trial.members == members and trial.value == value:
            if rate <= self.hysteresis * trial.expected:
                return self._go_back(view, trial, rate)
            # The former value, in the other direction, was just found to be worse.
            self._failed = 1
            self._rest = self.cool
        return self._try(view, value, seen)

    def _try(self, view: View, value: float, seen: Sequence[Point]) -> list[Tune]:
        for _ in range(2):
            step = 1 if self._upwards else -1
            candidates = [c for c in self.choices if (c - value) * step > 0]
            if candidates:
                new = min(candidates) if self._upwards else max(candidates)
                rate = slope(seen)
                self._trial = Trial(
                    before=value,
                    value=new,
                    rate=rate,
                    expected=extrapolated_slope(seen, self.window),
                    members=len(view.working),
                )
                self._since_round = next_round(view.history)
                why = f"local_epochs {value:g} brings {rate:.3g} decades/s; trying {new:g}"
                return [Tune(name="local_epochs", value=new, why=why)]
            self._turn(view)
            if view.round < self._rest_until:
                break
        return []

    def _go_back(self, view: View, trial: Trial, rate: float) -> list[Tune]:
        self._since_round = next_round(view.history)
        why = (
            f"local_epochs {trial.value:g} brings {rate:.3g} decades/s, {trial.before:g} brought "
            f"{trial.rate:.3g} and would bring {trial.expected:.3g} by now: back"
        )
        self._turn(view)
        return [Tune(name="local_epochs", value=trial.before, why=why)]

    def _turn(self, view: View) -> None:
        """Search in the other direction next, and pause when both have failed."""
        self._upwards = not self._upwards
        self._failed += 1
        if self._failed == 2:
            self._failed = 0
            self._rest_until = view.round + self._rest
            self._rest *= 2
