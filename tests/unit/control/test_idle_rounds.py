"""A job without members: rounds that are counted, and rounds that wait."""

from __future__ import annotations

import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.job_record import PlannedFault
from tests.pure_world import PureWorld

BACK = 3


class Planned(PureWorld):
    """Records planned faults instead of injecting them."""

    def _perform(self, command: cmd.Command) -> None:
        if not isinstance(command, cmd.Inject):
            super()._perform(command)


def alone_in_round(number: int) -> Planned:
    """Lose all members in the second exchange, and wait until a round is reached."""
    back = PlannedFault(round=BACK, kind="return", count=2)
    made = Planned(DriverSettings(start_members=2, n_blocks=2, faults=(back,)))
    for name in (made.join(), made.join()):
        assert name in made.workers
    while made.driver.state.last_exchange < 2:
        assert made.step(0)
    for name in list(made.workers):
        made.kill(name)
    made.settle()
    for _ in range(100):
        if made.driver.state.round < number:
            made.tick(1.0)
    return made


def test_rounds_are_counted_until_a_planned_return():
    made = alone_in_round(BACK)
    assert made.driver.state.round == BACK
    assert made.driver.rounds.injecting


@pytest.mark.parametrize("at_round_start", [True, False])
def test_no_round_is_counted_while_returning_members_are_awaited(at_round_start):
    # When all members were lost within a round, idle rounds passed while newcomers connected and
    # loaded, and the job ended before they were ready.
    made = alone_in_round(BACK)
    made.driver.at_round_start = at_round_start
    made.feed(ev.FaultPerformed(kind="return"))
    for _ in range(20):
        made.tick(1.0)
    assert made.driver.state.round == BACK
    made.join()
    made.join()
    made.run(lambda k: 0)
    assert made.delivered[-1].deliver.absent_examples == 0
    # Nor are those rounds made up for afterwards.
    assert made.driver.state.round == BACK + 2


def test_running_round_continues_below_the_minimum_of_members():
    # Its correction waited for more members, which waited for the next round.
    settings = DriverSettings(start_members=3, n_blocks=2, members_min=3, cached_anchors=False)
    made = PureWorld(settings)
    names = [made.join() for _ in range(3)]
    while made.driver.state.last_exchange < 2:
        assert made.step(0)
    made.kill(names[0])
    made.run(lambda k: 0)
    assert made.ended is not None
    assert any(getattr(record, "phase", None) == "correct" for record in made.story)


def lost_between_rounds(n_lost: int, members_min: int) -> PureWorld:
    """Lose members of three after the first round, before the next one has begun."""
    made = PureWorld(DriverSettings(start_members=3, n_blocks=2, members_min=members_min))
    names = [made.join() for _ in range(3)]
    while "RoundEnded" not in [record.event for record in made.story]:
        assert made.step(0)
    for name in names[:n_lost]:
        made.kill(name)
    made.settle(lambda key: key[2] == "up")
    assert made.driver.at_round_start
    assert len(made.driver.state.ledger.open) == n_lost
    return made


@pytest.mark.parametrize(("n_lost", "members_min", "n_join"), [(1, 3, 1), (2, 3, 2), (2, 2, 1)])
def test_newcomers_take_over_lost_chunks_with_too_few_members_to_continue(
    n_lost, members_min, n_join
):
    # The lost chunks were no group, because no round had begun without them, and no member took
    # them over while some were active: idle rounds to the end.
    made = lost_between_rounds(n_lost, members_min)
    for _ in range(n_join):
        made.join()
    made.settle()
    assert made.ended is not None
    assert made.driver.members_at_end == 3 - n_lost + n_join
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


def test_too_few_newcomers_wait_for_others():
    made = lost_between_rounds(2, 3)
    made.join()
    made.settle()
    assert made.driver.chunk_moves.rereading == {}
    assert len(made.delivered) == 1
