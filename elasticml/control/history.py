"""History of finished rounds for policies: progress, and each member's compute times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from elasticml.control.policy import Progress
from elasticml.control.state import JobState
from elasticml.terms import ExchangeId, MemberId

#: Number of rounds for which a member's compute times are kept.
ROUNDS_KEPT = 8


class _Prefix(Sequence[Progress]):
    """The present rounds of an append-only list; rounds appended later are not seen."""

    def __init__(self, rounds: list[Progress]) -> None:
        self._rounds = rounds
        self._n = len(rounds)

    def __len__(self) -> int:
        """Count the rounds."""
        return self._n

    @overload
    def __getitem__(self, k: int) -> Progress: ...

    @overload
    def __getitem__(self, k: slice) -> Sequence[Progress]: ...

    def __getitem__(self, k: int | slice) -> Progress | Sequence[Progress]:
        """Return one round, or a slice."""
        if isinstance(k, slice):
            return [self._rounds[i] for i in range(*k.indices(self._n))]
        return self._rounds[range(self._n)[k]]


class History:
    """Finished rounds, and each member's compute seconds in the last ones."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self._progress: list[Progress] = []
        #: Compute seconds of the running round, by exchange: a sum that is sent again counts once.
        self._now: dict[ExchangeId, dict[MemberId, float]] = {}
        #: (seconds, examples owned) of each living member's last rounds.
        self._times: dict[MemberId, deque[tuple[float, int]]] = {}

    @property
    def progress(self) -> Sequence[Progress]:
        """Finished rounds, oldest first."""
        return _Prefix(self._progress)

    def recall(self, progress: Iterable[Progress]) -> None:
        """Start from rounds that another driver finished, oldest first."""
        self._progress[:] = progress

    def computed(self, exchange: ExchangeId, seconds: Mapping[MemberId, float]) -> None:
        """Add the compute seconds that members sent with their partials of an exchange."""
        self._now.setdefault(exchange, {}).update(seconds)

    def ended(self, row: Mapping[str, Any], now_s: float) -> None:
        """Add a finished round that was not idle."""
        first, *others = [*self._now.values()] or [{}]
        sums = dict(first)
        for seconds in others:
            for member, value in seconds.items():
                sums[member] = sums.get(member, 0.0) + value
        self._now.clear()
        members, rows_of, times = (
            self.state.membership.members,
            self.state.ledger.rows_of,
            self._times,
        )
        for member, value in sums.items():
            rows = rows_of(member)
            if rows and member in members:
                if member not in times:
                    times[member] = deque(maxlen=ROUNDS_KEPT)
                times[member].append((value, rows))
        objective = row.get("next_objective")
        self._progress.append(
            Progress(
                round=self.state.round,
                seconds=now_s,
                members=self.state.membership.n_working,
                objective=row.get("objective") if objective is None else objective,
                gap=row.get("next_gap"),
                gap_is_bound=bool(row.get("next_gap_is_bound")),
            )
        )

    def lost(self, member: MemberId) -> None:
        """Forget a lost member's times."""
        self._times.pop(member, None)

    def seconds(self, member: MemberId) -> tuple[float, ...]:
        """Return the compute seconds of a member's last rounds, newest last."""
        return tuple(value for value, _ in self._times.get(member, ()))

    def seconds_per_row(self, member: MemberId) -> tuple[float, ...]:
        """Return them divided by the examples that it owned at the end of each round."""
        return tuple(value / rows for value, rows in self._times.get(member, ()))
