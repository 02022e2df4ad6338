"""The driver's machine in the middle of a job: what it answers to late and repeated events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from elasticml.control.driver import Driver, check
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.errors import LocalProtocolError, NotEnoughMembersError
from elasticml.ids import ExchangeId, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Dismiss, EndJob, ReadBlocks, Refuse
from tests.sim.small_jobs import arrival, begun

A, B, C = (MemberId(slot, 1) for slot in range(3))
BACK = MemberId(0, 2)


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Yield the machine of a job of three members in a star, in its second exchange."""
    simulation, machine = begun()
    yield machine
    simulation.close()


def partial(sender: MemberId, exchange: int) -> ev.PartialArrived:
    return ev.PartialArrived(
        exchange=ExchangeId(exchange),
        sender=sender,
        contributors=sender.bit,
        order=str(sender.slot),
        handle=999,
        compute_s={sender: 50.0},
    )


def ends(commands: list[Command]) -> list[tuple[str, str]]:
    return [(c.state, c.reason) for c in commands if isinstance(c, EndJob)]


# --- the beginning --------------------------------------------------------------------------------


def test_a_job_starts_with_fewer_members_once_the_time_to_gather_is_over() -> None:
    driver = Driver(DriverSettings(start_members=4, members_min=2, gather_s=3.0), ())

    def reads_after(event: ev.Event, now_s: float) -> int:
        return sum(isinstance(c, ReadBlocks) for c in driver.handle(event, now_s))

    assert reads_after(ev.Ticked(), 5.0) == 0  # none has come yet
    assert reads_after(arrival(1), 6.0) == 0
    assert reads_after(ev.Ticked(), 9.5) == 0  # one is fewer than members.min
    assert reads_after(arrival(2), 9.6) == 0
    assert reads_after(ev.Ticked(), 12.5) == 0  # more may follow
    assert reads_after(ev.Ticked(), 12.7) == 1
    assert reads_after(ev.Ticked(), 12.8) == 0


@pytest.mark.parametrize("members_min", [1, 2])
def test_a_job_does_not_wait_for_replacements_of_workers_that_died_before_it_began(
    members_min: int,
) -> None:
    """One was killed, and another before its replacement had come: the job waited on."""
    settings = DriverSettings(start_members=3, members_min=members_min, starts_with_present=True)
    driver = Driver(settings, ())
    driver.handle(arrival(1), 0.0)
    driver.handle(ev.WorkerGone(address="w2"), 1.0)
    assert driver.state.stage == "gathering"
    driver.handle(ev.WorkerGone(address="w3"), 2.0)
    assert (driver.state.stage == "gathering") == (members_min == 2)


def test_members_that_hold_blocks_read_them_and_the_others_go_to_those_with_the_fewest() -> None:
    driver = Driver(DriverSettings(n_blocks=6, start_members=3, placement="readers"), ())
    held = {0: ("w2",), 1: ("w2", "elsewhere"), 2: ("w2",), 3: ("w1",)}
    for event in (arrival(1), arrival(2), ev.BlocksLocated(holders=held)):
        driver.handle(event, 0.0)
    commands = driver.handle(arrival(3), 0.0)
    read = {c.member.slot: c.blocks for c in commands if isinstance(c, ReadBlocks)}
    assert read == {0: (3, 5), 1: (0, 1, 2), 2: (4,)}


def test_a_job_without_members_fails_when_its_time_is_over() -> None:
    driver = Driver(DriverSettings(start_members=2, seconds_max=5.0), ())
    assert driver.handle(ev.Ticked(), 0.5) == driver.handle(ev.Ticked(), 1.0) == []
    assert ends(driver.handle(ev.Ticked(), 5.0)) == []
    (end,) = driver.handle(ev.Ticked(), 5.5)
    assert isinstance(end, EndJob)
    assert isinstance(end.error, NotEnoughMembersError)
    assert end.error.fields == {"have": 0, "need": 2, "waited_s": 5.0}
    assert end.reason.startswith(
        "stop.seconds: 5 s are over, no round has ended, and the job has 0 of 2 members: "
    )


# --- members --------------------------------------------------------------------------------------


def test_a_notice_is_void_a_minute_after_its_deadline_and_not_before(driver: Driver) -> None:
    record = driver.state.membership.members[A]
    driver.handle(ev.Noticed(member=A, grace_s=5.0, reason="preempted"), 1.0)
    assert record.deadline_s == 6.0
    driver.handle(ev.Ticked(), 66.0)
    assert record.stage == "leaving"
    driver.handle(ev.Ticked(), 66.1)
    assert (record.stage, record.deadline_s, record.notice_reason) == ("active", None, None)


def test_a_member_that_arrives_again_replaces_its_former_incarnation(driver: Driver) -> None:
    address = driver.state.membership.members[A].address
    again = ev.Arrived(arrival=99, address=address, host="h", pid=1, threads=1, slot=0)
    driver.handle(again, 1.0)
    assert driver.state.living() == [BACK, B, C]
    # It is no part of the exchange that runs, though its slot is.
    refused = Refuse(exchange=ExchangeId(2), sender=BACK, handle=999)
    assert driver.handle(partial(BACK, 2), 1.0) == [refused]


def test_a_partial_of_an_earlier_exchange_is_refused(driver: Driver) -> None:
    refused = Refuse(exchange=ExchangeId(1), sender=A, handle=999)
    assert driver.handle(partial(A, 1), 1.0) == [refused]


def test_a_host_at_fault_is_excluded_and_the_same_fault_of_two_ends_the_job(
    driver: Driver,
) -> None:
    address = driver.state.membership.members[A].address
    commands = driver.handle(ev.Failed(reason="no library", member=A, host_fault="import"), 1.0)
    (dismiss,) = (c for c in commands if isinstance(c, Dismiss))
    assert (dismiss.member, dismiss.reason) == (A, "no library")
    assert driver.state.excluded == {address: "import"}
    failed = ev.Failed(reason="no library", member=B, host_fault="import")
    assert ends(driver.handle(failed, 2.0)) == [("failed", "no library")]


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (ev.CancelRequested(), ("cancelled", "cancelled")),
        (ev.Failed(reason="a label is NaN"), ("failed", "a label is NaN")),
    ],
)
def test_the_end_dismisses_all_members_and_later_events_are_ignored(
    driver: Driver, event: ev.Event, end: tuple[str, str]
) -> None:
    commands = driver.handle(event, 1.0)
    assert ends(commands) == [end]
    dismissed = [(c.member, c.is_final) for c in commands if isinstance(c, Dismiss)]
    assert dismissed == [(A, True), (B, True), (C, True)]
    assert driver.handle(ev.Ticked(), 2.0) == []


def test_a_step_that_hangs_ends_with_the_latest_end_of_the_job() -> None:
    simulation, driver = begun(stop={"seconds": 50.0})
    latest_s = driver.state.settings.latest_end_s
    assert latest_s == 51.0
    assert ends(driver.handle(ev.Ticked(), latest_s)) == []
    assert ends(driver.handle(ev.Ticked(), latest_s + 0.1)) == [("done", "50 seconds")]
    simulation.close()


# --- invariants -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (
            lambda state: state.ledger.open.update({A: set(state.ledger.chunks_of(A)[:1])}),
            "2 places",
        ),
        (lambda state: state.parents.update({A: B, B: A}), "its own ancestor"),
        (lambda state: setattr(state.ledger, "total_rows", 0), "rows do not add up"),
    ],
)
def test_a_broken_invariant_is_named_with_its_cause(
    driver: Driver, breaks: Callable[[JobState], object], words: str
) -> None:
    check(driver)
    driver.state.cause = "the test"
    breaks(driver.state)
    with pytest.raises(LocalProtocolError, match=rf"{words}.*\(after the test\)"):
        check(driver)
