"""Asynchronous members in virtual time: the paper's network effects, faults, newcomers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import elasticml as em
from elasticml.data.readers.arrays import from_arrays
from elasticml.runtime.async_mode.async_gossip import LINKS_MAX
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import SimResult, Simulation
from elasticml.sim.virtual_links import VirtualTransport
from tests.sim.small_jobs import record

#: Seconds of an example, and bytes per second of an uplink.
EXAMPLE_S, BANDWIDTH = 4e-4, 1e6


def data(rows: int = 500, columns: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, columns)) + np.arange(columns)
    return X, from_arrays(X, np.arange(rows) % 2.0)


def play(
    source: Any,
    *,
    seconds: float = 2.0,
    members: int = 4,
    absent: str = "reload",
    chunk_bytes: int = 2048,
    world: dict[str, Any] | None = None,
    **algorithm: Any,
) -> tuple[SimResult, Simulation]:
    """Run the toy whose answer is the mean of all rows."""
    made = record(
        chunk_bytes=chunk_bytes,
        algorithm={"name": "tests.async_toy:ALGORITHM", "report_every": 0.25, **algorithm},
        absent=absent,
        stop={"seconds": seconds},
        collective={},
        members={"start": members, "min": 1},
        evaluate=None,
        data=source.spec(),
    )
    costs = {"batch": EXAMPLE_S, "other": 1e-7}
    options = {"compute_s": costs, "bandwidth": BANDWIDTH, "start_s": 0.1, **(world or {})}
    simulation = Simulation(
        made, source, options=options_from_section(options), check_every_event=True
    )
    for _ in simulation.run():
        pass
    result = simulation.result()
    assert result.error is None
    assert result.state == "done"
    return result, simulation


def test_members_agree_on_the_mean_of_all_rows():
    X, source = data()
    result, _ = play(source)
    best = ((X - X.mean(axis=0)) ** 2).sum() / len(X)
    assert best <= result.summary["objective"] <= 1.0005 * best
    assert best <= result.summary["member_objective"] <= 1.002 * best


def test_a_pass_limit_ends_a_job_without_waiting_for_a_report():
    _, source = data()
    result, _ = play(source, seconds=60.0, passes=2.0, report_every=20.0)
    assert result.summary["stopped_by"] == "2 passes"
    assert result.rows[-1]["examples"] == 1000
    # 125 examples of each member, twice, plus some for the first reading and the last reports.
    assert result.summary["seconds"] < 2 * 125 * EXAMPLE_S + 1.0


def test_without_messages_each_member_works_alone_and_the_mean_is_the_result():
    X, source = data()
    result, _ = play(source, seconds=60.0, passes=1.0, sends=0)
    assert result.rows[-1]["sent"] == 0
    assert np.allclose(result.arrays["w"], X.mean(axis=0))


def test_an_objective_is_left_out_until_enough_examples_are_visited():
    _, source = data()
    result, _ = play(source, visits=8.0)
    values = [row["objective"] for row in result.rows[:-1]]
    assert values[0] is not None
    assert values[1] is None
    assert 0 < sum(value is not None for value in values) < len(values) / 2


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_non_finite_objective_ends_the_job():
    _, source = data()
    with pytest.raises(AssertionError, match=r"the objective is inf after 0\.00 passes"):
        play(source, start=1e200)


def test_more_slots_keep_messages_that_arrive_between_two_mini_batches():
    _, source = data()
    played = [play(source, seconds=0.5, batch=5, sends=3, slots=n)[0] for n in (1, 2, 4)]
    rows = [result.rows[-1] for result in played]
    lost = [row["overwritten"] / row["received"] for row in rows]
    merged = [row["merged"] / row["batches"] for row in rows]
    assert lost[0] > 1.5 * lost[1] > lost[2] == 0.0
    assert merged[0] < merged[1] < merged[2]


def test_states_go_to_each_of_the_others_and_never_to_oneself(monkeypatch):
    _, source = data(rows=2000)
    opened: list[tuple[str, str]] = []
    connect = VirtualTransport.connect

    async def counted(self: VirtualTransport, address: str, hello: Any) -> Any:
        if hello["kind"] == "mail":
            opened.append((self.address, address))
        return await connect(self, address, hello)

    monkeypatch.setattr(VirtualTransport, "connect", counted)
    world = {"compute_s": {"batch": 2e-3, "other": 1e-7}}
    play(source, members=40, seconds=1.2, report_every=1.0, world=world, batch=10)
    assert all(sender != recipient for sender, recipient in opened)
    # Links are few; one is replaced every two seconds.
    links = Counter(sender for sender, _ in opened)
    assert len(links) == 40
    assert LINKS_MAX <= max(links.values()) <= LINKS_MAX + 2
    assert len({recipient for _, recipient in opened}) == 40


def test_a_lost_members_chunks_are_ignored_if_the_job_says_so():
    _, source = data()
    world = {"trace": [{"at": 0.9, "lose": 1}]}
    result, _ = play(source, world=world, absent="ignore")
    assert result.rows[-1]["absent_examples"] > 0
    assert result.summary["objective"] is None


def test_a_newcomer_starts_from_a_peers_state():
    _, source = data()
    world = {"trace": [{"at": 1.5, "lose": 1, "away": 0.2}]}
    _, simulation = play(source, seconds=2.4, world=world)
    workers = simulation.world.workers.by_address.values()
    newest = max((w for w in workers if w.endpoint.is_alive), key=lambda w: w.me.incarnation)
    assert newest.me.incarnation == 2
    loop = newest.agent.async_member.loop.worker
    assert float(loop.state["mass"]) > 2.0 * loop.examples


def test_after_the_loss_of_all_members_newcomers_start_from_the_last_report():
    X, source = data()
    world = {"trace": [{"at": 1.5, "lose": 4, "away": 0.3}]}
    result, _ = play(source, seconds=4.0, world=world, start=50.0)
    best = ((X - X.mean(axis=0)) ** 2).sum() / len(X)
    began = [row["objective"] for row in result.rows if row["objective"] is not None]
    assert result.summary["lost"] == 4
    # No member starts from the initial state, which is far away.
    assert began[0] > 1000.0
    assert max(began[2:]) <= 1.1 * best
    assert result.summary["objective"] <= 1.001 * best


@pytest.mark.parametrize("seed", range(3))
def test_kills_notices_pauses_and_ends_at_any_moment(seed):
    X, source = data(rows=600)
    rng = np.random.default_rng(seed)
    trace: list[dict[str, Any]] = []
    at = 0.3
    while at < 2.0:
        at += float(rng.exponential(0.15))
        trace.append(
            {
                "at": at,
                "lose": int(rng.integers(1, 5)),
                "away": float(rng.uniform(0.05, 0.4)),
                "how": str(rng.choice(["kill", "notice", "pause", "terminate"])),
                "grace": float(rng.uniform(0.05, 0.3)),
            }
        )
    sending = {"newest": seed % 2 == 0, "queue": 1 + seed}
    result, _ = play(source, seconds=4.0, members=5, world={"trace": trace}, **sending)
    best = ((X - X.mean(axis=0)) ** 2).sum() / len(X)
    assert result.rows[-1]["absent_examples"] == 0
    assert result.summary["objective"] <= 1.01 * best


def speeds(bandwidth: float = BANDWIDTH, **settings: Any) -> dict[str, float]:
    """Return examples, messages and stalled seconds per second of two members.

    A state has 1001 numbers and takes 8.3 ms; in that time a member visits 21 examples.
    """
    _, source = data(rows=200, columns=500)
    world = {"bandwidth": bandwidth}
    result, _ = play(source, members=2, chunk_bytes=80_000, world=world, start=0.0, **settings)
    first, last = result.rows[1], result.rows[-2]
    seconds = last["seconds"] - first["seconds"]
    keys = ("examples", "sent", "skipped", "stalled_s")
    return {key: (last[key] - first[key]) / seconds for key in keys}


def test_batches_below_the_critical_size_stall_a_queue_that_blocks():
    blocking: dict[str, Any] = {"queue": 16, "newest": False}
    small, large = speeds(batch=5, **blocking), speeds(batch=50, **blocking)
    assert small["examples"] / large["examples"] == pytest.approx(5 / 21, rel=0.1)
    assert small["stalled_s"] > 1.0  # of two members
    fast, slot = speeds(1e9, batch=5, **blocking), speeds(batch=5)
    for other in (large, fast, slot):
        assert other["stalled_s"] == 0.0
        assert other["examples"] == pytest.approx(large["examples"], rel=0.05)
    # One slot keeps the link busy. The next message leaves at the end of the mini-batch in which
    # the last one left: 4.2 mini-batches of 2 ms are 5.
    assert slot["skipped"] > slot["sent"]
    assert slot["sent"] / small["sent"] == pytest.approx(4.2 / 5, rel=0.05)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_linear_model_of_scaled_columns_comes_back_in_the_users_units(intercept: bool):
    rng = np.random.default_rng(4)
    z = rng.normal(size=(2000, 3))
    X = np.column_stack([z * [1e-3, 1.0, 50.0] + [0.0, 3.0, 1.7e9], z[:, 0] > 0.0])
    y = z @ [1.0, -2.0, 0.5] + X[:, 3] + 4.0 * intercept
    away = X - X.mean(axis=0) if intercept else X
    factor = np.where([1, 1, 1, 0], 1.0 / np.sqrt((away**2).mean(axis=0)), 1.0)
    rows = np.column_stack([np.where([1, 1, 1, 0], away, X) * factor, np.ones(2000)])
    rows = rows if intercept else rows[:, :4]
    penalty = 0.01 * 2000 * np.diag([1.0] * 4 + [0.0] * intercept)
    best = np.linalg.solve(rows.T @ rows + penalty, rows.T @ y)
    least = 0.5 * np.mean((rows @ best - y) ** 2) + 0.005 * best[:4] @ best[:4]
    result, _ = play(
        em.from_arrays(X, y),
        seconds=3.0,
        world={"trace": [{"at": 1.0, "lose": 2, "away": 0.3}]},
        name="async_sgd",
        problem="linear",
        loss="squared",
        l2=0.01,
        scale="auto",
        intercept=intercept,
    )
    assert least <= result.summary["objective"] <= 1.01 * least
    coef, offset = result.arrays["coef"][0], result.arrays["intercept"][0]
    own = np.append(coef / factor, offset + intercept * (X.mean(axis=0) * [1, 1, 1, 0]) @ coef)
    own = own if intercept else own[:4]
    objective = 0.5 * np.mean((X @ coef + offset - y) ** 2) + 0.005 * own[:4] @ own[:4]
    assert objective == pytest.approx(result.summary["objective"], rel=1e-6)
    assert intercept or offset == 0.0


@pytest.mark.parametrize("scale", ["auto", "maxabs"])
def test_very_unequal_columns_of_sparse_rows_are_a_note(scale: str):
    X, _ = data(200)
    rows = scipy.sparse.csr_array(X * [1e-6, 1.0, 1.0, 1.0])
    result, _ = play(
        em.from_arrays(rows, np.arange(200) % 2.0),
        seconds=0.5,
        name="async_sgd",
        problem="linear",
        scale=scale,
    )
    (loaded,) = (record for record in result.story if record["event"] == "DataLoaded")
    advice = "sparse rows are not scaled by default: set algorithm.scale: maxabs"
    assert any(advice in note for note in loaded["notes"]) == (scale == "auto")
