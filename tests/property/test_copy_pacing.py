"""When a member copies bodies: within its rate, after all moves, every one of them in the end."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elasticml.control import effects as fx
from elasticml.control.member_machine import BURST_S, WAIT_S_MIN, Member
from elasticml.ids import ChunkId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev

ME = MemberId(0, 1)
OTHERS = [MemberId(slot, 1) for slot in range(1, 4)]
RATE, NBYTES_MAX = 1000.0, 300


class Pacing(RuleBasedStateMachine):
    """A member that copies while moves come and go; bodies take any time to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.member = Member(ME, frozenset())
        self.now_s = 0.0
        self.n_orders = 0
        #: Bodies that are still to be sent, by order; those that are being sent; and all grants.
        self.lacking: dict[int, list[int]] = {}
        self.sending: dict[int, MemberId] = {}
        self.granted: list[tuple[float, int]] = []
        #: Moves in progress, and when time is up.
        self.moves: list[fx.MoveArriving | cmd.GiveChunks] = []
        self.timers: list[float] = []

    def feed(self, event: ev.Event | cmd.Order) -> None:
        for command in self.member.handle(event, self.now_s):
            match command:
                case fx.SendCopy():
                    self.sends(command)
                case fx.After():
                    assert command.seconds > 0.0
                    self.timers.append(self.now_s + command.seconds)

    def sends(self, command: fx.SendCopy) -> None:
        order = command.order
        assert not self.moves, "a copy begins during a move"
        assert order.target not in self.sending.values(), "two bodies at once to one target"
        assert self.lacking[order.order].pop(0) == command.k
        self.sending[order.order] = order.target
        self.granted.append((self.now_s, order.nbytes[command.k]))

    @rule(
        target_slot=st.sampled_from(OTHERS), sizes=st.lists(st.integers(1, NBYTES_MAX), max_size=5)
    )
    def copy(self, target_slot, sizes):
        self.n_orders += 1
        self.lacking[self.n_orders] = list(range(len(sizes)))
        self.feed(
            cmd.CopyChunks(
                member=ME,
                target=target_slot,
                address="",
                chunks=tuple(ChunkId("s", self.n_orders, k) for k in range(len(sizes))),
                nbytes=tuple(sizes),
                order=self.n_orders,
                bytes_per_s=RATE,
            )
        )

    @rule(other=st.sampled_from(OTHERS))
    def give(self, other):
        self.n_orders += 1
        order = cmd.GiveChunks(member=ME, target=other, address="", chunks=(), order=self.n_orders)
        self.moves.append(order)
        self.feed(order)

    @rule(other=st.sampled_from(OTHERS))
    def take(self, other):
        self.n_orders += 1
        arriving = fx.MoveArriving(source=other, order=self.n_orders)
        self.moves.append(arriving)
        self.feed(arriving)

    @precondition(lambda self: self.moves)
    @rule(choice=st.integers(0, 100), fails=st.booleans())
    def end_move(self, choice, fails):
        move = self.moves.pop(choice % len(self.moves))
        if isinstance(move, fx.MoveArriving):
            self.feed(fx.ChunksArrived(source=move.source, order=move.order, chunks=()))
        elif fails:
            self.feed(fx.SendFailed(target=move.target, chunks=(), order=move.order, reason=""))
        else:
            self.feed(fx.GiveSent(order=move.order))

    @precondition(lambda self: self.sending)
    @rule(choice=st.integers(0, 100), fails=st.booleans())
    def end_copy(self, choice, fails):
        order = sorted(self.sending)[choice % len(self.sending)]
        target = self.sending.pop(order)
        if fails:
            del self.lacking[order]
            self.feed(fx.SendFailed(target=target, chunks=(), order=order, reason="closed"))
        else:
            self.feed(fx.CopySent(order=order))

    @rule(seconds=st.floats(0.0, 1.0))
    def time_passes(self, seconds):
        until_s = self.now_s + seconds
        while self.timers and min(self.timers) <= until_s:
            self.now_s = min(self.timers)
            self.timers.remove(self.now_s)
            self.feed(fx.TimeUp())
        self.now_s = until_s

    @invariant()
    def the_rate_is_kept(self):
        """No interval has more bytes than its time and a burst allow, except for the last body."""
        for i, (from_s, _) in enumerate(self.granted):
            nbytes = 0
            for to_s, last in self.granted[i:]:
                waits_s = WAIT_S_MIN * len(self.granted)
                assert nbytes <= RATE * (to_s - from_s + BURST_S + waits_s) + 1e-6
                nbytes += last

    @invariant()
    def a_copy_waits_for_something(self):
        """What is not sent waits for a move, for a body before it, or for its time."""
        if any(self.lacking.values()):
            assert self.moves or self.sending or self.timers

    def teardown(self):
        """Let everything come to its end."""
        while self.moves:
            self.end_move(0, False)
        while self.sending or self.timers:
            while self.sending:
                self.end_copy(0, False)
            if self.timers:
                self.time_passes(min(self.timers) - self.now_s)
        assert not any(self.lacking.values())


TestPacing = Pacing.TestCase
