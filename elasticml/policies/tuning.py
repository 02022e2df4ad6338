"""Tune how much members compute between two merges, from the progress that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elasticml.control.policy import Tune, View
from elasticml.errors import ConfigError
from elasticml.policies.settings import entry_of, number
from elasticml.policies.slopes import Point, faded_slope, next_round, slope, stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A value that has yet to prove itself."""

    before: float
    value: float
    #: Decades of the gap per second before it; and what they would be by now.
    rate: float
    expected: float
    members: int


class TuneLocalWork:
    """Tune ``local_epochs``, the passes over its examples that a member makes in a round.

    ``r`` is d(log10 gap)/dt over ``window`` measured rounds. The next larger of ``choices`` is
    tried for as many rounds, and stays if ``r' > hysteresis * r``, with ``r`` as it would be by
    then, had it faded as it did within its own window; then the next one after it is
    tried. Else the next smaller one is, in the same way. Where neither is better there is no trial
    for ``cool`` rounds, and for twice as many each time.

    Source: ours; the uni-task paper (section 4) names online tuning as a policy, without a rule.

    Parameters
    ----------
    choices : list of float
        Values, rising, > 0 each: a half is a pass over half of a member's examples.
    start : float
        The job's own value of ``local_epochs``, whether it is one of the choices or not.
    window : int
        Measured rounds, >= 2.
    hysteresis : float
        >= 1.
    cool : int
        Rounds, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of its range.
    """

    name = "tune_local_work"

    def __init__(
        self,
        *,
        choices: Sequence[float] = (1, 2, 4, 8),
        start: float = 1,
        window: int = 4,
        hysteresis: float = 1.1,
        cool: int = 16,
    ) -> None:
        self.choices = tuple(choices) if isinstance(choices, (list, tuple)) else ()
        if not self.choices:
            raise ConfigError(
                f"{self.name}.choices: got {choices!r}, wanted a list of numbers, more than 0 each",
                key="choices",
            )
        for value in self.choices:
            number(self.name, "choices", value, above=True)
        if list(self.choices) != sorted(set(self.choices)):
            raise ConfigError(
                f"{self.name}.choices: got {list(self.choices)}, wanted rising numbers",
                key="choices",
            )
        number(self.name, "start", start, above=True)
        number(self.name, "window", window, low=2, whole=True)
        number(self.name, "hysteresis", hysteresis, low=1)
        number(self.name, "cool", cool, low=1, whole=True)
        self.start = start
        self.window = window
        self.hysteresis = hysteresis
        self.cool = cool
        self._trial: Trial | None = None
        self._upwards = True
        #: Directions from the present value that are known to be no good.
        self._failed = 0
        self._since_round = 0
        self._rest = cool
        self._rest_until = 0

    def entry(self) -> dict[str, object]:
        """Write the policy as a job record has it."""
        return entry_of(self)

    def state(self) -> dict[str, Any]:
        """Return since when it measures, what is on trial, and where it has looked already."""
        return {
            "trial": None if self._trial is None else asdict(self._trial),
            "upwards": self._upwards,
            "failed": self._failed,
            "since_round": self._since_round,
            "rest": self._rest,
            "rest_until": self._rest_until,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a former life's state."""
        self._trial = None if state["trial"] is None else Trial(**state["trial"])
        self._upwards, self._failed = bool(state["upwards"]), int(state["failed"])
        self._since_round = int(state["since_round"])
        self._rest, self._rest_until = int(state["rest"]), int(state["rest_until"])

    def suggest(self, view: View) -> Sequence[Tune]:
        """Return another value to try, the old one where it was better, or mostly nothing."""
        members = len(view.working)
        points = stay(view.history, members, self._since_round)
        if view.round < self._rest_until or len(points) <= self.window:
            return []
        seen = points[-self.window - 1 :]
        rate = slope(seen)
        value = float(view.tuned.get("local_epochs", self.start))
        trial, self._trial = self._trial, None
        if trial is not None and trial.members == members and trial.value == value:
            if rate <= self.hysteresis * trial.expected:
                return self._go_back(view, trial, rate)
            # The value that it came from has just been found to be worse.
            self._failed = 1
            self._rest = self.cool
        return self._try(view, value, seen)

    def _try(self, view: View, value: float, seen: Sequence[Point]) -> list[Tune]:
        for _ in range(2):
            step = 1 if self._upwards else -1
            wanted = [c for c in self.choices if (c - value) * step > 0]
            if wanted:
                new = min(wanted) if self._upwards else max(wanted)
                rate = slope(seen)
                self._trial = Trial(
                    before=value,
                    value=new,
                    rate=rate,
                    expected=faded_slope(seen, self.window),
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
        """Look in the other direction next, and rest when both have been no good."""
        self._upwards = not self._upwards
        self._failed += 1
        if self._failed == 2:
            self._failed = 0
            self._rest_until = view.round + self._rest
            self._rest *= 2
