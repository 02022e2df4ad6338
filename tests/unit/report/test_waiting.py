"""What a run waited for, and what to do about it."""

import pytest

from elasticml.report.waiting import time_use
from elasticml.story.records import records_from_json


def story_of(algorithm, compute, *, rounds=10, exchange_s=1.0, driver_s=0.0):
    records = [{"t": 0.0, "event": "JobStarted", "spec": {"algorithm": {"name": algorithm}}}]
    t = 0.0
    for number in range(rounds):
        records.append({"t": t, "event": "RoundStarted", "round": number})
        ended = {"event": "ExchangeEnded", "round": number, "start_t": t, "compute_s": compute}
        records.append({"t": t + exchange_s, **ended})
        t += exchange_s + driver_s
        records.append({"t": t, "event": "RoundEnded", "round": number})
    return records


def advice(records):
    return time_use(records_from_json(records)).advice()


def test_members_that_mostly_compute_need_no_advice():
    compute = dict.fromkeys("0123", 0.9)
    use = time_use(records_from_json(story_of("batch_gradient", compute)))
    assert use.wait_share == pytest.approx(0.1)
    assert use.members == pytest.approx(4.0)
    assert use.advice() == []


def test_the_number_of_members_that_pay_is_where_work_and_fixed_time_are_equal():
    # 8 x 0.19 s of work in a round, 0.81 s for messages and the driver.
    records = story_of("batch_gradient", dict.fromkeys("01234567", 0.19), driver_s=0.0)
    use = time_use(records_from_json(records))
    assert use.wait_share == pytest.approx(0.81)
    assert use.paying_members == 2
    (line,) = use.advice()
    assert line.startswith("Members waited 81 % of the time in rounds: 0 % for the slowest member,")
    assert "About 2 members pay for these data, not 8: a round then takes at most 1.6 times" in line
    assert "for 39 % of the container-seconds" in line
    assert line.endswith("(members.start, members.max: 2).")


def test_time_between_exchanges_counts_as_the_driver_s():
    (line,) = advice(story_of("cocoa", dict.fromkeys("01", 0.5), exchange_s=0.5, driver_s=1.5))
    assert "75 % for the driver" in line
    assert line.endswith("raise algorithm.local_epochs or add policies: [tune_local_work].")


def test_one_slow_member_is_rebalanced_not_removed():
    (line,) = advice(story_of("batch_gradient", {"0": 1.0, "1": 0.1, "2": 0.1, "3": 0.1}))
    assert "for the slowest member" in line
    assert "policies: [rebalance]" in line
    assert "pay" not in line


def test_local_sgd_gets_more_steps_since_its_members_add_examples_to_a_round():
    (line,) = advice(story_of("local_sgd", dict.fromkeys("0123", 0.1)))
    assert line.endswith("To give members more work per round, raise algorithm.local_steps.")


@pytest.mark.parametrize(
    "records",
    [
        [],
        story_of("batch_gradient", {}),
        story_of("batch_gradient", dict.fromkeys("01", 0.1), rounds=2),
        story_of("async_sgd", dict.fromkeys("01", 0.1)),
    ],
    ids=["empty", "without times", "short", "asynchronous"],
)
def test_no_advice_without_measurements_of_synchronous_rounds(records):
    assert advice(records) == []


def test_a_wait_of_the_whole_job_has_its_remedy():
    waiting = {"event": "Waiting", "what": "members", "have": 1, "need": 2, "since_s": 1.0}
    records = [
        {"t": 2.0, **waiting, "remedy": "start more workers"},
        {"t": 9.0, "event": "WaitEnded", "what": "members", "seconds": 8.0},
        {"t": 10.0, "event": "JobEnded"},
    ]
    line = "The whole job stood still for 8 s of 10 s, for members: start more workers."
    assert advice(records) == [line]
    # A wait that has not ended counts up to the last record.
    assert advice([records[0], records[2]]) == [line.replace("8 s", "9 s")]
