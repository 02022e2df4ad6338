"""Membership changes in arbitrary order: inputs for every state machine of a job."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from elasticml.protocol import events as ev
from tests.pure_world import PureWorld

CHOICES = st.integers(0, 2**20)


def has_workers(machine: MembershipEvents) -> bool:
    """Whether anything can happen to a worker."""
    return bool(machine.world.workers) and machine.world.ended is None


class MembershipEvents(RuleBasedStateMachine):
    """Joins, losses, returns and notices, between messages that arrive in any order."""

    world: PureWorld

    def enter(self, n: int, early: int) -> None:
        """Let ``n`` members join, and some of their first messages arrive."""
        for _ in range(n):
            self.world.join()
        for _ in range(early):
            self.world.step(0)

    def some(self, choice: int) -> str:
        names = sorted(self.world.workers)
        return names[choice % len(names)]

    @rule(choices=st.lists(CHOICES, min_size=1, max_size=12))
    def messages_arrive(self, choices):
        for choice in choices:
            self.world.step(choice)

    @precondition(lambda self: len(self.world.workers) < 9)
    @rule()
    def join(self):
        self.world.join()

    @precondition(has_workers)
    @rule(choice=CHOICES, n_kept=st.integers(0, 2))
    def lose(self, choice, n_kept):
        self.world.kill(self.some(choice), n_kept)

    @precondition(has_workers)
    @rule(choice=CHOICES, n_kept=st.integers(0, 2))
    def lose_and_return_at_once(self, choice, n_kept):
        name = self.some(choice)
        self.world.kill(name, n_kept)
        self.world.join(name)

    @precondition(has_workers)
    @rule(choice=CHOICES, grace_s=st.sampled_from([0.0, 5.0, 60.0]))
    def notice(self, choice, grace_s):
        self.world.notice(self.some(choice), grace_s)

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def withdraw(self, choice):
        self.world.withdraw(self.some(choice))

    @precondition(has_workers)
    @rule(choices=st.lists(CHOICES, max_size=3))
    def locate_blocks(self, choices):
        holders = {block: (self.some(choice), "gone") for block, choice in enumerate(choices)}
        self.world.feed(ev.BlocksLocated(holders=holders))
