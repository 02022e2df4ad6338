"""Initial placement: distribute the chunks before the first round and start the trainer."""

from __future__ import annotations

from elasticml.control.boundary import Boundary
from elasticml.control.commands import Command, Configure, StartTrainer
from elasticml.control.events import FactsFixed
from elasticml.control.loading import Loading
from elasticml.control.mobility import Mobility
from elasticml.control.placement import contiguous, scattered
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.terms import MemberId


class Dealing:
    """Moves every chunk to its owner for the first round."""

    def __init__(
        self,
        state: JobState,
        loading: Loading,
        mobility: Mobility,
        rounds: Rounds,
        boundary: Boundary,
    ) -> None:
        self.state = state
        self._loading = loading
        self._mobility = mobility
        self._rounds = rounds
        self._boundary = boundary

    def configure(self, member: MemberId) -> list[Command]:
        """Send a member the data set's statistics."""
        self.state.membership.members[member].configured = True
        return [Configure(cause=self.state.cause, member=member)]

    def facts_fixed(self, event: FactsFixed) -> list[Command]:
        """After the survey read the blocks; after reading place the chunks."""
        state = self.state
        if event.survey:
            state.stage = "reading"
            return self._loading.start(survey=False)
        state.stage = "dealing"
        state.settle_holders()
        commands: list[Command] = []
        for member in state.living():
            commands += self.configure(member)
        chunks = list(state.ledger.info.values())
        members = state.takers()
        commands += self._rounds.due_loss("load")
        if members:
            settings, at = state.settings, sorted(members)
            commands += self._mobility.move(
                scattered(chunks, at, settings.seed, settings.partitions)
                if settings.placement == "random"
                else contiguous(chunks, at, settings.partitions)
            )
        return commands + self._mobility.reread() + self.dealt()

    def dealt(self) -> list[Command]:
        """Start the trainer once every chunk is with its owner for the first round."""
        state, mobility = self.state, self._mobility
        if state.stage != "dealing":
            return []
        if not state.membership.members:
            return self._rounds.due_return()  # no round boundary is reached that would do it
        if mobility.moves or mobility.rereading or state.ledger.open:
            return mobility.reread()
        if not state.ledger.info:
            return []
        state.stage = "training"
        commands = self._boundary.activate()
        info = state.ledger.info.values()
        return [
            state.record(
                "DataDealt",
                chunks=len(info),
                bytes=sum(i.nbytes for i in info),
                rows=state.ledger.total_rows,
                members=state.membership.n_working,
            ),
            *commands,
            StartTrainer(cause=state.cause),
        ]
