"""The driver machine as a whole: regressions, and the invariants that it checks."""

from __future__ import annotations

import pytest

from elasticml.control import driver as driver_module
from elasticml.control.chunk_transfers import PendingMove
from elasticml.control.driver import Driver, check
from elasticml.control.driver_settings import DriverSettings
from elasticml.errors import LocalProtocolError
from elasticml.ids import ChunkId, ExchangeId, Mask, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Dismiss, EndJob, ReadBlocks, Refuse
from tests.pure_world import PureWorld


def world(n: int = 2, **settings) -> PureWorld:
    made = PureWorld(
        DriverSettings(**{"start_members": n, "n_blocks": 2, "topology": "star", **settings})
    )
    for _ in range(n):
        made.join()
    return made


def until(made: PureWorld, is_so) -> PureWorld:
    """Deliver messages until a condition holds, and no further."""
    while not is_so():
        assert made.step(0)
    return made


def events(made: PureWorld) -> list[str]:
    return [record.event for record in made.story]


def kill_everybody(made: PureWorld) -> None:
    for name in list(made.workers):
        made.kill(name)
    made.settle(lambda key: key[2] == "up")


def test_a_job_starts_with_fewer_members_once_the_time_to_gather_is_over():
    driver = Driver(DriverSettings(start_members=4, members_min=2, gather_s=3.0), ())

    def reads_after(event: ev.Event, now_s: float) -> int:
        return sum(isinstance(c, ReadBlocks) for c in driver.handle(event, now_s))

    def arrival(n: int) -> ev.Arrived:
        return ev.Arrived(arrival=n, address=f"w{n}", host="h", pid=n, threads=1)

    assert reads_after(ev.Ticked(), 5.0) == 0  # none has come yet
    assert reads_after(arrival(1), 6.0) == 0
    assert reads_after(ev.Ticked(), 9.5) == 0  # one is fewer than members.min
    assert reads_after(arrival(2), 9.6) == 0
    assert reads_after(ev.Ticked(), 12.5) == 0  # more may follow
    assert reads_after(ev.Ticked(), 12.7) == 1
    assert reads_after(ev.Ticked(), 12.8) == 0


def test_members_that_hold_blocks_read_and_keep_them():
    made = world(2, n_blocks=6, placement="readers", start_members=3)
    first, second = sorted(made.workers)
    held = {0: (second,), 1: (second, "elsewhere"), 2: (second,), 3: (first,)}
    made.feed(ev.BlocksLocated(holders=held))
    third = made.join()
    until(made, lambda: made.driver.state.stage == "reading")
    at = {block: made.driver.state.membership.members[m].address
          for block, m in made.driver.loading.pending.items() if m is not None}  # fmt: skip
    # The blocks that no member holds go to those with the fewest.
    assert at == {0: second, 1: second, 2: second, 3: first, 4: third, 5: first}
    made.kill(second)  # its blocks are lost with it: others read them
    made.run(lambda k: 0)
    assert made.ended.state == "done"
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


def test_newcomer_takes_over_when_all_members_are_lost_during_placement():
    made = world(n_blocks=3)
    until(made, lambda: made.driver.state.stage == "dealing")
    kill_everybody(made)
    assert made.driver.state.ledger.open
    made.join()
    made.run(lambda k: 0)
    assert made.ended.state == "done"
    assert "ChunksAbsent" not in events(made)


def test_newcomer_takes_over_when_all_members_are_lost_between_two_rounds():
    made = world()
    until(made, lambda: "RoundEnded" in events(made))
    kill_everybody(made)
    assert made.driver.at_round_start
    made.join()
    made.run(lambda k: 0)
    assert made.ended.state == "done"
    # The trainer has never heard of the loss.
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


def test_newcomer_takes_over_when_all_members_are_lost_within_a_round():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 2)
    kill_everybody(made)
    made.join()
    made.run(lambda k: 0)
    assert made.ended.state == "done"


def test_reloaded_chunks_are_all_in_place_before_the_exchange_is_repeated():
    made = world(absent="reload")
    until(made, lambda: made.driver.state.last_exchange == 2)
    made.kill(sorted(made.workers)[0])
    until(made, lambda: "ChunksAbsent" in events(made))
    # The survivor reads them again; the newcomer is to get a share of what it then has.
    made.join()
    made.settle(lambda key: key[2] == "up")
    until(made, lambda: "GroupReturned" in events(made))
    until(made, lambda: made.driver.exchanges.running is not None)
    assert len(made.driver.exchanges.running.participants) == 2
    made.run(lambda k: 0)
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


def test_straggler_is_fenced_for_the_round_and_returns_with_its_chunks():
    made = world(3, holders=2, absent="reload", rounds_max=9)
    ledger = made.driver.state.ledger
    until(
        made,
        lambda: (
            made.driver.exchanges.running is not None
            and {len(h) for h in ledger.holders.values()} == {2}
        ),
    )
    straggler = made.life(sorted(made.workers)[1])
    held = set(straggler.worker.held)
    straggler.worker.is_stopped = True
    made.settle()
    made.tick(11.0)
    made.tick(3.0)
    (lost,) = [r for r in made.story if r.event == "MemberLost"]
    assert (lost.member, lost.reason) == (str(straggler.me), "deadline")
    straggler.worker.is_stopped = False
    returned = MemberId(straggler.me.slot, 2)
    until(made, lambda: returned in made.driver.state.membership.members)
    assert held == ledger.held[returned]
    made.run(lambda k: 0)
    (back,) = [r for r in made.story if r.event == "GroupReadmitted"]
    assert back.why == "copies"
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


@pytest.mark.parametrize(("gives_all", "stage"), [(False, "active"), (True, "spare")])
def test_member_whose_notice_is_void_continues_or_gets_chunks_again(gives_all, stage):
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    state = made.driver.state
    record = state.membership.working()[0]
    state.membership.enter(record, "leaving")
    record.deadline_s = 5.0
    if gives_all:
        state.ledger.owned[record.id] = set()
    state.stay(record)
    assert (record.stage, record.deadline_s, state.stale_layout) == (stage, None, True)


def test_withdrawn_notice_costs_no_member_its_place():
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    name = sorted(made.workers)[0]
    made.notice(name, 100.0)
    made.withdraw(name)
    made.run(lambda k: 0)
    assert {"MemberNoticed", "NoticeWithdrawn"} <= set(events(made))
    assert "MemberLost" not in events(made)


def test_a_step_that_hangs_ends_with_the_latest_end_of_the_job():
    made = world(2, seconds_max=50.0)
    until(made, lambda: made.driver.state.last_exchange == 3)

    def ends_at(now_s: float) -> list[tuple[str, str]]:
        commands = made.driver.handle(ev.Ticked(), now_s)
        return [(c.state, c.reason) for c in commands if isinstance(c, EndJob)]

    assert made.driver.exchanges.running is not None
    latest_s = made.driver.state.settings.latest_end_s
    assert latest_s > 50.0
    assert ends_at(latest_s) == []
    assert ends_at(latest_s + 0.1) == [("done", "50 seconds")]


def test_a_partial_of_an_earlier_exchange_adds_no_seconds_to_the_round():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 3)
    member = made.life(sorted(made.workers)[0]).me
    late = ev.PartialArrived(
        exchange=ExchangeId(2),
        sender=member,
        contributors=member.bit,
        order="0",
        handle=999,
        compute_s={member: 50.0},
    )
    assert made.driver.handle(late, 0.0) == [
        Refuse(exchange=ExchangeId(2), sender=member, handle=999)
    ]
    assert 2 not in made.driver.history._now


def test_a_notice_is_void_a_minute_after_its_deadline_and_not_before():
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    changes, member = made.driver.membership_changes, made.life(sorted(made.workers)[0]).me
    record = made.driver.state.membership.members[member]
    changes.noticed(ev.Noticed(member=member, grace_s=5.0, reason="preempted"), 100.0)
    assert record.deadline_s == 105.0
    changes.lapsed(165.0)
    assert record.stage == "leaving"
    changes.lapsed(165.1)
    assert (record.stage, record.deadline_s, record.notice_reason) == ("active", None, None)


def test_a_victim_leaves_though_its_own_notice_is_withdrawn():
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    changes, member = made.driver.membership_changes, made.life(sorted(made.workers)[0]).me
    record = made.driver.state.membership.members[member]
    changes.noticed(ev.Noticed(member=member, grace_s=5.0, reason="preempted"), 100.0)
    record.is_victim = True
    changes.withdrawn(ev.NoticeWithdrawn(member=member))
    assert (record.stage, record.notice_reason) == ("leaving", None)


def test_a_fenced_member_is_dismissed_with_the_reason():
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    member = made.life(sorted(made.workers)[0]).me
    commands = made.driver.membership_changes.fence(member, "unreachable", 1.0)
    assert commands[0] == Dismiss(cause="unreachable", member=member, reason="unreachable")
    assert member not in made.driver.state.membership.members
    assert made.driver.state.excluded == {}


def test_an_excluded_member_is_not_told_to_return():
    made = world(3)
    until(made, lambda: made.driver.state.last_exchange == 2)
    name = sorted(made.workers)[0]
    for command in made.driver.membership_changes.fence(
        made.life(name).me, "unreachable", 1.0, kind="unreachable"
    ):
        made._perform(command)
    made.run(lambda k: k)
    assert made.driver.state.excluded == {name: "unreachable"}
    assert (made.ended.state, name in made.workers) == ("done", False)


def test_worker_that_arrives_again_at_its_address_replaces_its_former_incarnation():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 2)
    name = sorted(made.workers)[0]
    former = made.life(name).me
    arrived = ev.Arrived(arrival=999, address=name, host="here", pid=1, slot=former.slot)
    made._arrivals[999] = made.life(made.join(name))
    made.feed(arrived)
    living = made.driver.state.membership.members
    assert former not in living
    assert MemberId(former.slot, former.incarnation + 1) in living


def test_repeated_report_of_a_loss_changes_nothing():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 2)
    member = made.life(sorted(made.workers)[0]).me
    lost = ev.Lost(member=member, reason="killed")
    assert made.driver.handle(lost, 0.0) != []
    assert made.driver.handle(lost, 0.0) == []


def test_end_dismisses_all_members_and_later_events_are_ignored():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 1)
    members = made.driver.state.living()
    commands = made.driver.handle(ev.CancelRequested(), 1.0)
    assert [c.state for c in commands if isinstance(c, EndJob)] == ["cancelled"]
    assert [c.member for c in commands if isinstance(c, Dismiss)] == members
    assert made.driver.handle(ev.Ticked(), 2.0) == []


def test_failure_of_a_member_ends_the_job_with_its_reason():
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 1)
    made.feed(ev.Failed(reason="a label is NaN"))
    assert (made.ended.state, made.ended.reason) == ("failed", "a label is NaN")


def broken_tree(driver) -> None:
    driver.state.parents[MemberId(7, 1)] = None


def broken_cycle(driver) -> None:
    a, b = sorted(driver.state.parents)[:2]
    driver.state.parents.update({a: b, b: a})


def broken_children(driver) -> None:
    driver.state.root.children = frozenset()


def broken_move(driver) -> None:
    chunk = next(iter(driver.state.ledger.info))
    driver.exchanges.running = None
    driver.chunk_moves.moves[chunk] = PendingMove(
        source=MemberId(7, 1), target=MemberId(0, 1), order=1, has_body=True
    )


def broken_exchange(driver) -> None:
    chunk, member = next(iter(driver.state.ledger._owner.items()))
    driver.chunk_moves.moves[chunk] = PendingMove(
        source=member, target=MemberId(0, 1), order=1, has_body=True
    )


def broken_rows(driver) -> None:
    ledger = driver.state.ledger
    ledger._rows[max(ledger.owned)] += 1


def broken_return(driver) -> None:
    driver.chunk_moves.returning[1] = {ChunkId("s", 0, 0): MemberId(0, 1)}


def broken_sum(driver) -> None:
    for slot in (0, 1):
        driver.state.root.gather.inputs[MemberId(slot, 1)] = ev.PartialArrived(
            exchange=ExchangeId(1),
            sender=MemberId(slot, 1),
            contributors=Mask(0b1),
            order="0",
            handle=slot,
        )


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (broken_tree, "is in the tree and is not alive"),
        (broken_cycle, "its own ancestor"),
        (broken_children, "root's children"),
        (broken_move, "does not own it"),
        (broken_exchange, "runs while chunks"),
        (broken_return, "is not absent"),
        (broken_sum, "counts a member twice"),
    ],
)
def test_broken_invariant_is_named_with_its_cause(breaks, words):
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 1)
    check(made.driver)
    made.driver.state.cause = "the test"
    breaks(made.driver)
    with pytest.raises(LocalProtocolError, match=rf"{words}.*\(after the test\)"):
        check(made.driver)


def test_a_round_reports_each_slots_examples_when_they_have_changed():
    made = world(3, n_blocks=3)
    made.run(lambda k: 0)
    started = [record for record in made.story if record.event == "RoundStarted"]
    total = sum(info.rows for info in made.driver.state.ledger.info.values())
    assert sum(started[0].rows.values()) == total
    assert [r for r, record in enumerate(started) if record.rows is not None] == [0]


@pytest.mark.parametrize("n_entries", [0, 100])
def test_large_ledgers_are_checked_again_when_they_have_changed(monkeypatch, n_entries):
    monkeypatch.setattr(driver_module, "BOOKS_ENTRIES_MIN", n_entries)
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 1)
    driver = made.driver
    driver.check_every_event = False
    check(driver)
    ledger = driver.state.ledger
    assert len(ledger.info) < 100
    # No method of the ledger does this: nothing records that something has changed.
    ledger.total_rows += 1
    if n_entries == 0:
        check(driver)
        ledger.changes += 1
    with pytest.raises(LocalProtocolError, match="rows do not add up"):
        check(driver)
    # Tests check everything after every event.
    monkeypatch.setattr(driver_module, "BOOKS_ENTRIES_MIN", 0)
    driver.checks.at, driver.check_every_event = driver_module._change_counts(driver), True
    with pytest.raises(LocalProtocolError, match="rows do not add up"):
        check(driver)


def broken_total(driver):
    driver.state.ledger.total_rows += 1


@pytest.mark.parametrize("breaks", [broken_tree, broken_rows, broken_total])
def test_a_very_large_state_is_checked_in_parts_at_the_ends_of_rounds(monkeypatch, breaks):
    monkeypatch.setattr(driver_module, "CHECK_WHOLE_MAX", 0)
    monkeypatch.setattr(driver_module, "BOOKS_ENTRIES_MIN", 0)
    made = world()
    until(made, lambda: made.driver.state.last_exchange == 1)
    made.driver.check_every_event = False
    breaks(made.driver)
    made.driver.state.ledger.changes += 1
    errors = []
    for _ in range(driver_module.CHECK_PARTS):
        try:
            check(made.driver)
        except LocalProtocolError as error:
            errors.append(error)
    assert errors
