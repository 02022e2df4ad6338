"""A member: models wait for the order that names its place, and it can say how far it is."""

from __future__ import annotations

import pytest

from elasticml.control.member import HELD_MODELS_MAX, Member
from elasticml.errors import LocalProtocolError
from elasticml.ids import ExchangeId, Generation, Mask, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Attach, Compute, ForwardModel, Rewire

ME, PARENT, CHILD = MemberId(1, 1), MemberId(0, 1), MemberId(3, 1)


def rewire(generation: int, children=()) -> Rewire:
    return Rewire(
        member=ME,
        generation=Generation(generation),
        parent=PARENT,
        parent_address="w0",
        children=tuple(children),
        done=ExchangeId(0),
    )


def model(exchange: int, generation: int) -> ev.ModelArrived:
    return ev.ModelArrived(
        exchange=ExchangeId(exchange), generation=Generation(generation), keep=False
    )


def placed(children=()) -> Member:
    member = Member(ME)
    member.handle(rewire(1, children), 0.0)
    return member


def test_first_order_makes_it_attach():
    attach = Attach(parent=PARENT, address="w0", generation=Generation(1), has_model=ExchangeId(0))
    assert Member(ME).handle(rewire(1), 0.0) == [attach]


def test_model_of_a_later_tree_waits_for_its_order():
    member = placed()
    assert member.handle(model(1, generation=2), 0.0) == []
    assert member.handle(rewire(2), 0.0) == [Compute(exchange=ExchangeId(1))]


def test_model_of_an_earlier_tree_is_computed_at_once():
    member = placed()
    member.handle(rewire(2), 0.0)
    assert member.handle(model(1, generation=1), 0.0) == [Compute(exchange=ExchangeId(1))]


def test_models_held_are_begun_in_their_order_and_the_newest_counts():
    member = placed()
    member.handle(model(2, generation=2), 0.0)
    member.handle(model(1, generation=2), 0.0)
    commands = member.handle(rewire(2), 0.0)
    assert [c.exchange for c in commands if isinstance(c, Compute)] == [1, 2]


def test_models_held_are_bounded():
    member = placed()
    for k in range(HELD_MODELS_MAX):
        member.handle(model(k + 1, generation=9), 0.0)
    with pytest.raises(LocalProtocolError, match="early models"):
        member.handle(model(99, generation=9), 0.0)


def test_child_is_forwarded_the_model_when_it_reports():
    member = placed([CHILD])
    member.handle(model(1, generation=1), 0.0)
    attached = ev.Attached(child=CHILD, generation=Generation(1), has_model=ExchangeId(0))
    assert member.handle(attached, 0.0) == [ForwardModel(exchange=ExchangeId(1), to=CHILD)]


def test_it_says_how_far_it_is():
    member = placed([CHILD])
    stages = [member.stage()]
    for event in (
        model(1, generation=1),
        ev.Computed(exchange=ExchangeId(1)),
        ev.PeerLinked(peer=PARENT, generation=Generation(1)),
        ev.PartialArrived(
            exchange=ExchangeId(1),
            sender=CHILD,
            contributors=Mask(CHILD.bit),
            order="3",
            handle=7,
        ),
    ):
        member.handle(event, 0.0)
        stages.append(member.stage())
    assert stages == [
        "waiting-for-model",
        "computing",
        "waiting-for-children",
        "waiting-for-children",
        "sent",
    ]


def test_event_of_the_driver_is_a_broken_protocol():
    with pytest.raises(LocalProtocolError, match="cannot handle Ticked"):
        placed().handle(ev.Ticked(), 0.0)
