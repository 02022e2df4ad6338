"""Choose the number of inner iterations from the measured costs of communication and compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from elasticml.control.policy import MemberView, Tune, View
from elasticml.errors import ConfigError
from elasticml.policies.cost_model import CostModel, Observed, best_inner, fit
from elasticml.policies.settings import entry_of, number
from elasticml.policies.slopes import Point, faded_slope, next_round, slope, stay

#: A new value is at most this many times the largest value tried so far.
REACH: Final = 4


class ChooseInnerIterations:
    """Choose ``local_epochs``, Snap ML's t2, by the cost model of its hierarchical scheme.

    An inner iteration is a pass over a member's examples: its groups and their threads merge their
    models in memory, while the members' models are merged once per round. Seconds and decades of
    the gap are measured over ``window`` rounds with a certificate. The model is fitted to all
    values tried (:mod:`elasticml.policies.cost_model`), and the value predicted to be the fastest
    is adopted if it is faster by more than ``hysteresis``. Measurements take precedence over the
    model. If a round consists almost only of its passes, nothing is tried.

    Source: Snap ML, section 2.2 and Figure 4 (time to a suboptimality against t2), which does not
    say how t2 is found.

    Parameters
    ----------
    choices : list of float
        Candidate values, ascending, > 0 each.
    start : float
        The job's value of ``local_epochs``.
    window : int
        Rounds with a certificate, >= 1.
    hysteresis : float
        >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """

    name = "inner_iterations"

    def __init__(
        self,
        *,
        choices: Sequence[float] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
        start: float = 1,
        window: int = 3,
        hysteresis: float = 1.1,
    ) -> None:
        self.choices = tuple(choices) if isinstance(choices, (list, tuple)) else ()
        for value in self.choices:
            number(self.name, "choices", value, above=True)
        if not self.choices or list(self.choices) != sorted(set(self.choices)):
            raise ConfigError(
                f"{self.name}.choices: got {choices!r}, wanted a list of rising numbers",
                key="choices",
            )
        number(self.name, "start", start, above=True)
        number(self.name, "window", window, low=1, whole=True)
        number(self.name, "hysteresis", hysteresis, low=1)
        self.start = start
        self.window = window
        self.hysteresis = hysteresis
        self._observed: dict[float, Observed] = {}
        self._members = 0
        self._since_round = 0

    def entry(self) -> dict[str, object]:
        """Return the policy as an entry of a job record."""
        return entry_of(self)

    def state(self) -> dict[str, Any]:
        """Return the observations, the number of members, and the start of the measurement."""
        return {
            "observed": [asdict(o) for o in self._observed.values()],
            "members": self._members,
            "since_round": self._since_round,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._observed = {float(o["inner"]): Observed(**o) for o in state["observed"]}
        self._members, self._since_round = int(state["members"]), int(state["since_round"])

    def suggest(self, view: View) -> Sequence[Tune]:
        """Return a value that is predicted to be faster, if there is one."""
        members = len(view.working)
        if members != self._members:
            # With other shares a pass and a merge take other times.
            self._members = members
            self._observed.clear()
        points = stay(view.history, members, self._since_round)
        if len(points) <= self.window:
            return []
        value = float(view.tuned.get("local_epochs", self.start))
        seen = points[-self.window - 1 :]
        now = _observe(value, seen, view.working)
        if now is None:
            return []
        self._since_round = next_round(view.history)
        former = self._observed.get(value)
        if former is not None:
            self._fade(now.decades / former.decades)
        self._observed[value] = now
        model = fit([*self._observed.values()])
        measured = {inner: o.decades for inner, o in self._observed.items()}
        best = best_inner(model, self.choices, measured, REACH * max(self._observed))
        if model.seconds(value) <= 0.0 or model.seconds(best) <= 0.0:
            return []
        decades = measured.get(best, model.decades(best))
        gain = decades / model.seconds(best) / (now.decades / model.seconds(value))
        if best == value or gain <= self.hysteresis:
            return []
        faded = faded_slope(seen, self.window, "rounds")
        if faded > 0.0:
            self._fade(faded / now.decades)
        return [Tune(name="local_epochs", value=best, why=_why(model, best, gain, value))]

    def _fade(self, factor: float) -> None:
        """Scale all measured rates to the present, because convergence slows down by itself."""
        for inner, observed in self._observed.items():
            self._observed[inner] = replace(observed, decades=observed.decades * factor)


def _observe(value: float, seen: Sequence[Point], working: Sequence[MemberView]) -> Observed | None:
    """Average over the rounds between the first and last point; None without a measurement."""
    rounds, decades = seen[-1].rounds - seen[0].rounds, slope(seen, "rounds")
    computed = [m.seconds[-rounds:] for m in working if m.seconds]
    if rounds <= 0 or decades <= 0.0 or not computed:
        return None
    return Observed(
        inner=value,
        seconds=(seen[-1].seconds - seen[0].seconds) / rounds,
        computed_s=max(sum(seconds) / len(seconds) for seconds in computed),
        decades=decades,
    )


def _why(model: CostModel, best: float, gain: float, value: float) -> str:
    return (
        f"a pass takes {model.inner_s:.3g} s, the rest of a round {model.outer_s:.3g} s: {best:g} "
        "inner iterations are predicted to bring "
        f"{gain:.3g} times the progress a second of {value:g}"
    )
