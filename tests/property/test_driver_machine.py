"""The driver's and the members' machines under arbitrary interleavings of all events.

The world checks every outcome: each example is in the sum once, or has one stand-in, or is named as
newly absent; an anchor is exactly the share of those. The driver re-derives its invariants after
every event. At the end of every example the job must end.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from elasticml.control import job_state, tree_layout
from elasticml.control.driver_settings import DriverSettings
from elasticml.ids import ExchangeId, Mask
from elasticml.protocol import events as ev
from elasticml.protocol.commands import LoadChunks
from elasticml.protocol.notices import NodeChanged
from tests.property.membership_events import CHOICES, MembershipEvents, has_workers
from tests.property.random_policy import RandomPolicy
from tests.pure_member import Incarnation
from tests.pure_world import PureWorld

KINDS = ("move", "replicate", "discard", "retire", "request", "tune", "readmit")


def job(**changes) -> DriverSettings:
    return DriverSettings(**{"start_members": 2, "n_blocks": 2, "topology": "star", **changes})


def begin(world: PureWorld, exchange: int) -> None:
    """Deliver messages until an exchange has begun, and no further."""
    while world.driver.state.last_exchange < exchange:
        assert world.step(0)


def partial_of(life: Incarnation, exchange: int):
    """Make a partial that would count for an incarnation's slot."""
    return lambda handle: ev.PartialArrived(
        exchange=ExchangeId(exchange),
        sender=life.me,
        contributors=life.me.bit,
        order=str(life.me.slot),
        handle=handle,
    )


def test_returned_member_neither_counts_nor_is_counted_for_its_former_incarnation():
    world = PureWorld(job())
    a, b = world.join("a"), world.join("b")
    begin(world, 2)
    former = world.life(a)
    world.kill(a)
    world.settle(lambda key: key[0] == former.name)
    world.join(a)
    back = world.life(a)
    world.settle(lambda key: back.name in key)
    assert (back.me.slot, back.me.incarnation) == (former.me.slot, former.me.incarnation + 1)
    # What the running exchange still lacks comes from the wrong incarnation in the right slot.
    world.partial(back, partial_of(back, 2), Counter())
    assert [refused.sender for refused in world.refused] == [back.me]
    world.run(lambda k: k)
    assert world.delivered[1].deliver.contributors == world.life(b).me.bit


def test_partial_that_arrived_before_its_sender_was_lost_stays_in_the_sum():
    world = PureWorld(job())
    a, b = world.join("a"), world.join("b")
    begin(world, 2)
    world.settle(lambda key: world.life(b).name not in key)
    both = Mask(world.life(a).me.bit | world.life(b).me.bit)
    world.kill(a)
    world.run(lambda k: k)
    second, third = world.delivered[1].deliver, world.delivered[2].deliver
    assert (second.contributors, second.opened) == (both, None)
    assert third.opened is not None


def test_a_partial_is_counted_once_though_its_sender_was_parted_from_the_parent_that_has_it():
    world = PureWorld(job(start_members=3, n_blocks=3, topology="tree", fan_out=1))
    for name in "abc":
        world.join(name)
    begin(world, 2)
    inner = world.life("b").name
    world.settle(lambda key: key != (inner, inner, "Compute"))
    (link,) = [link for link in world.links() if link.child.worker.name == "c"]
    assert link.parent.worker.name == "b"
    assert link.child.me in link.parent.machine.node.gather.inputs
    world.sever(link)
    world.settle(lambda key: key != (inner, inner, "Compute"))
    world.tick(2.1)
    world.settle(lambda key: key != (inner, inner, "Compute"))
    assert link.child.me in world.life("a").machine.node.gather.inputs
    world.run(lambda k: k)
    assert (world.ended.state, len(world.delivered)) == ("done", 4)
    assert [r.deliver.absent_examples for r in world.delivered] == [0] * 4
    assert {len(r.sums) for r in world.delivered} == {len(world.chunks)}


def test_member_that_returns_takes_its_chunks_before_a_marked_one_does():
    world = PureWorld(job(n_blocks=3, members_min=2))
    marked, back = world.join("a"), world.join("b")
    turn = 0
    while world.driver.state.stage != "dealing":
        turn += 1
        assert world.step(turn)  # all channels in turn, so that both members read blocks
    world.mark(marked, 5.0, negotiable=True)
    assert world.driver.state.membership.at(marked).is_marked
    assert world.driver.state.ledger.owned[world.life(back).me]
    former = world.life(back)
    world.kill(back)
    world.join(back)
    returned = world.life(back)
    world.settle(lambda key: former.name not in key)
    assert {o.member for o in world.orders if isinstance(o, LoadChunks)} == {returned.me}
    assert world.ended.state == "done"


class JobMachine(MembershipEvents):
    """All events of a job."""

    @initialize(
        n=st.integers(1, 5),
        n_blocks=st.integers(1, 3),
        absent=st.sampled_from(["taylor", "stall", "reload"]),
        topology=st.sampled_from(["tree", "star"]),
        fan_out=st.integers(1, 3),
        cached_anchors=st.booleans(),
        needs_survey=st.booleans(),
        warms_up=st.booleans(),
        early=st.integers(0, 60),
        holders=st.integers(1, 2),
        copy_bytes_per_s=st.sampled_from([40.0, 50e6]),
        placement=st.sampled_from(["contiguous", "random", "readers"]),
        limit_bytes=st.sampled_from([None, None, 400, 1000]),
        kinds=st.lists(st.sampled_from(KINDS), max_size=4),
        seed=st.integers(0, 1000),
        keeps_places=st.booleans(),
    )
    def start(
        self,
        n,
        n_blocks,
        absent,
        topology,
        fan_out,
        cached_anchors,
        needs_survey,
        warms_up,
        early,
        holders,
        copy_bytes_per_s,
        placement,
        limit_bytes,
        kinds,
        seed,
        keeps_places,
    ):
        # Members keep their places in large trees only; here they may in every tree.
        job_state.LAID_OUT_ANEW_MAX = 0 if keeps_places else tree_layout.LAID_OUT_ANEW_MAX
        self.world = PureWorld(
            DriverSettings(
                start_members=n,
                n_blocks=n_blocks,
                absent=absent,
                topology=topology,
                fan_out=fan_out,
                cached_anchors=cached_anchors,
                needs_survey=needs_survey,
                warms_up=warms_up,
                holders=holders,
                copy_bytes_per_s=copy_bytes_per_s,
                placement=placement,
                seed=seed,
            ),
            policies=[RandomPolicy(seed, kinds)] if kinds else [],
            limit_bytes=limit_bytes,
        )
        self.enter(n, early)

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def pause(self, choice):
        self.world.workers[self.some(choice)].is_stopped = True

    @precondition(lambda self: self.world.ended is None and self.world.links())
    @rule(choice=CHOICES)
    def link_breaks_for_good(self, choice):
        links = self.world.links()
        self.world.sever(links[choice % len(links)])

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def resume(self, choice):
        self.world.workers[self.some(choice)].is_stopped = False

    @precondition(has_workers)
    @rule(choice=CHOICES, grace_s=st.sampled_from([0.0, 5.0, 60.0]), negotiable=st.booleans())
    def container_is_asked_for(self, choice, grace_s, negotiable):
        self.world.mark(self.some(choice), grace_s, negotiable)

    @precondition(has_workers)
    @rule(choice=CHOICES)
    def container_is_asked_for_no_longer(self, choice):
        self.world.lift(self.some(choice))

    @precondition(has_workers)
    @rule(choice=CHOICES, is_told_first=st.booleans())
    def container_ends(self, choice, is_told_first):
        name = self.some(choice)
        if is_told_first:
            self.world.container_ended(name)
        if name in self.world.workers:
            self.world.kill(name)
        if not is_told_first:
            self.world.container_ended(name)

    @precondition(has_workers)
    @rule(
        choice=CHOICES,
        state=st.sampled_from(["decommissioning", "lost", "running"]),
        grace_s=st.sampled_from([5.0, 60.0]),
    )
    def node_changes(self, choice, state, grace_s):
        names = sorted(self.world.workers)[choice % len(self.world.workers) :][:2]
        self.world.feed(NodeChanged(node="n", state=state, grace_s=grace_s, addresses=tuple(names)))

    @rule(choice=CHOICES)
    def partial_comes_again(self, choice):
        self.world.duplicate(choice)

    @rule(choice=CHOICES, ahead=st.integers(-1, 3))
    def partial_of_another_life_comes(self, choice, ahead):
        """Of an old, the current or a coming exchange, from an incarnation that takes no part in
        it.
        """
        run = self.world.driver.exchanges.running
        spares = [m.id for m in self.world.driver.state.membership.stage("spare")]
        if run is None or not spares:
            return
        life = self.world.alive(spares[choice % len(spares)])
        if life is None or run.id + ahead < 1:
            return
        self.world.partial(life, partial_of(life, run.id + ahead), Counter())

    @rule(seconds=st.sampled_from([0.1, 3.0, 12.0, 130.0]))
    def time_passes(self, seconds):
        self.world.tick(seconds)

    @invariant()
    def no_member_computes_an_exchange_twice(self):
        if hasattr(self, "world"):
            assert set(self.world.computations.values()) <= {1}

    @invariant()
    def members_hold_what_the_ledger_says(self):
        if hasattr(self, "world") and self.world.ended is None:
            self.world.check_stores()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.run(lambda k: k * 7919)
            job_state.LAID_OUT_ANEW_MAX = tree_layout.LAID_OUT_ANEW_MAX
            if self.world.ended.state == "failed":
                # Right only if memory is limited, and examples were absent for too long.
                assert self.world.limit_bytes is not None, self.world.ended
                assert "fit into no member's memory" in self.world.ended.reason
                return
            assert self.world.ended.state == "done"
            self.world.check_arrays()


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(max_examples=120, stateful_step_count=40)
