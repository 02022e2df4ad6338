"""The driver's machine in its asynchronous mode, under arbitrary interleavings of events.

A round is a report: it delays no member, and no member waits for it. Under any membership changes,
the members end up knowing exactly each other, each chunk has one owner or is named as absent, and
the job ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from elasticml.control.driver_settings import DriverSettings
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from tests.property.membership_events import CHOICES, MembershipEvents, has_workers
from tests.property.random_policy import RandomPolicy
from tests.pure_world import ExchangeResult, PureWorld

EVERY_S = 2.0


class AsyncWorld(PureWorld):
    """A world whose trainer only requests reports, and accepts any answer."""

    def _train(self, rounds: int) -> Generator[ev.Event, Any, None]:
        seal = False
        rows = sum(c.rows for c in self.chunks.values())
        #: When each round ended.
        self.ended_s: list[float] = []
        for r in range(rounds):
            actual: ExchangeResult = yield ev.ExchangeRequested(
                header=ev.ExchangeHeader(operation="report"),
                phase="compute",
                require_everybody=False,
                seal=seal,
                paced=r > 0,
            )
            self.delivered.append(actual)
            twice = [str(c) for c, n in actual.sums.items() if n > 1]
            assert not twice, f"report {r} has {twice} more than once"
            assert sum(self.chunks[c].rows for c in actual.sums) == actual.deliver.examples
            assert actual.deliver.examples + actual.deliver.absent_examples == rows
            seal = actual.deliver.opened is not None
            self.ended_s.append(self.now)
            if not (yield ev.RoundFinished(row={"objective": float(r)})):
                return

    def check_peers(self) -> None:
        """Check that every active, informed member knows all others, and no one else."""
        membership = self.driver.state.membership
        listed = {r.id for r in membership.stage("active")}
        for record in membership.working():
            life = self.alive(record.id)
            is_told = life is not None and not self.queues.get(("driver", life.name, "down"))
            if life is not None and is_told and self.knows(life) and listed:
                assert set(life.peers) == listed, f"{record.id} knows {life.peers}, not {listed}"


def job(**changes: Any) -> DriverSettings:
    return DriverSettings(
        **{
            "start_members": 3,
            "n_blocks": 2,
            "topology": "star",
            "absent": "reload",
            "report_every_s": EVERY_S,
            **changes,
        }
    )


def started(**changes: Any) -> tuple[AsyncWorld, list[str]]:
    """Make a world that has had its first report, and nothing to do until the second."""
    world = AsyncWorld(job(**changes), rounds=5)
    names = [world.join() for _ in range(3)]
    world.settle()
    assert len(world.delivered) == 1
    return world, names


def test_reports_are_as_far_apart_as_requested():
    world, _ = started()
    for _ in range(40):
        world.tick(0.25)
        world.settle()
    assert world.ended_s == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_report_comes_at_once_when_all_loops_have_ended():
    world, names = started()
    for name in names:
        world.life(name).report(ev.LoopEnded(member=world.life(name).me))
    world.settle()
    assert world.ended_s == [0.0, 0.0]


def test_a_loop_that_ended_before_the_last_report_does_not_hurry_the_next():
    world, names = started()
    for name in names:
        world.life(name).report(ev.LoopEnded(member=world.life(name).me))
    world.settle()
    world.tick(0.1)
    world.settle()
    assert len(world.delivered) == 2


def test_a_lost_members_chunks_are_visited_by_others_after_one_report_at_most():
    world, names = started()
    lost = world.life(names[0])
    owned = set(lost.owned)
    world.kill(names[0])
    world.settle()
    world.tick(EVERY_S)  # this report detects that they are gone
    world.settle()
    world.tick(0.1)
    world.settle()
    assert len(world.delivered) == 2
    visited = Counter(c for name in names[1:] for c in world.life(name).owned)
    assert owned <= visited.keys()
    assert set(visited.values()) == {1}


def test_a_newcomer_has_chunks_and_peers_without_waiting_for_a_report():
    world, names = started()
    name = world.join()
    world.settle()
    world.tick(0.1)
    world.settle()
    newcomer = world.life(name)
    assert len(world.delivered) == 1
    assert newcomer.owned
    assert set(newcomer.peers) == {world.life(n).me for n in [*names, name]}
    orders = [o for o in world.orders if isinstance(o, cmd.Peers) and o.member == newcomer.me]
    assert orders[0].begun


def test_a_member_with_a_notice_gets_no_more_messages():
    world, names = started()
    leaver = world.life(names[0])
    world.notice(names[0], 60.0)
    world.settle()
    assert all(leaver.me not in world.life(n).peers for n in names[1:])
    assert leaver.over or leaver.me not in leaver.peers


class AsyncJobMachine(MembershipEvents):
    """All events of an asynchronous job."""

    @initialize(
        n=st.integers(1, 5),
        n_blocks=st.integers(1, 3),
        absent=st.sampled_from(["reload", "ignore"]),
        topology=st.sampled_from(["tree", "star"]),
        early=st.integers(0, 60),
        limit_bytes=st.sampled_from([None, None, 1000]),
        kinds=st.lists(st.sampled_from(("move", "retire", "request", "readmit")), max_size=3),
        seed=st.integers(0, 1000),
    )
    def start(self, n, n_blocks, absent, topology, early, limit_bytes, kinds, seed):
        self.world = AsyncWorld(
            job(start_members=n, n_blocks=n_blocks, absent=absent, topology=topology, seed=seed),
            rounds=5,
            policies=[RandomPolicy(seed, kinds)] if kinds else [],
            limit_bytes=limit_bytes,
        )
        self.enter(n, early)

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def pause_or_go_on(self, choice):
        worker = self.world.workers[self.some(choice)]
        worker.is_stopped = not worker.is_stopped

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def a_loop_ends(self, choice):
        life = self.world.life(self.some(choice))
        if life.machine is not None:
            life.feed(ev.LoopEnded(member=life.me))

    @rule(seconds=st.sampled_from([0.05, 0.3, 3.0, 12.0, 130.0]))
    def time_passes(self, seconds):
        self.world.tick(seconds)

    @invariant()
    def members_hold_what_the_ledger_says(self):
        if hasattr(self, "world") and self.world.ended is None:
            self.world.check_stores()

    @invariant()
    def members_know_each_other(self):
        if hasattr(self, "world") and self.world.ended is None:
            self.world.check_peers()

    def teardown(self):
        if hasattr(self, "world"):
            for worker in self.world.workers.values():
                worker.is_stopped = False
            self.world.run(lambda k: k * 7919)
            assert self.world.ended.state == "done"


TestAsyncJobMachine = AsyncJobMachine.TestCase
TestAsyncJobMachine.settings = settings(max_examples=60, stateful_step_count=30)
