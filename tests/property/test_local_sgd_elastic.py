"""Every example once per epoch, under any membership changes and chunk moves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.schedules import Schedule, moves, schedules
from tests.serial_world import ExchangeRecord, Return, Vanish, World, split_rows

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MEMBERS, ROWS, ROUNDS = 5, 60, 9
#: Every example has its own column, so that its weight shows how often it was taken.
PARTS = split_rows(np.eye(ROWS), np.linspace(0.0, 1.0, ROWS), MEMBERS, chunk_rows=4)
OPERATIONS = ("train", "train", "train", "evaluate", "survey", "ordinals")


class Watcher:
    """Counts from the sums alone how often each example was taken in each epoch."""

    def __init__(self) -> None:
        #: Epoch and counts of each round: of its last attempt, if it is repeated.
        self.rounds: dict[int, tuple[int, np.ndarray]] = {}

    def taken(self) -> dict[int, np.ndarray]:
        """Return how often each example was taken, by epoch."""
        results: dict[int, np.ndarray] = {}
        for epoch, counts in self.rounds.values():
            results[epoch] = results.get(epoch, np.zeros(ROWS)) + counts
        return results

    def __call__(self, world: World, record: ExchangeRecord) -> None:
        if record.exchange.operation != "train":
            return
        arrays, before = record.outcome.arrays, record.exchange.model["weights"]
        n = arrays["sums"][0]
        result = np.zeros(ROWS)
        for member in record.contributors:
            chunks = world.chunks[member]
            rows = np.concatenate([chunk.values.argmax(axis=1) for chunk in chunks])
            numbers = [record.exchange.model["starts"][c.id.block] + c.id.ordinal for c in chunks]
            own = arrays["seen"][np.array(numbers, int)].sum()
            # The partial is the member's weights times its own samples; a step is 1 long.
            if own:
                moved = n * before[rows] - arrays["weights"][rows]
                result[rows] = moved / own
        counts = np.rint(result)
        assert np.abs(result - counts).max() <= 1e-4
        assert counts.sum() == n
        parameters = record.exchange.parameters
        self.rounds[int(parameters["serial"])] = (int(parameters["epoch"]), counts)


@settings(max_examples=25)
@given(
    schedules(MEMBERS, ROUNDS, OPERATIONS),
    st.sampled_from(["reload", "stall", "ignore"]),
    st.sampled_from(["sqrt", "constant_global_batch"]),
    st.sampled_from([(2, 3), (2, 2), (8, 1), (8, 2)]),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
@example(
    [Vanish(round=1, members=(0, 1), during="train"), Vanish(round=2, members=(3,), counted=True)],
    "reload",
    "sqrt",
    (2, 2),
    0.0,
    0.3,
)
@example(
    [
        Vanish(round=0, members=(0, 1, 2), during="train"),
        Vanish(round=1, members=(3, 4), during="train"),
    ],
    "ignore",
    "sqrt",
    (2, 2),
    0.0,
    0.0,
)
def test_every_example_is_taken_once_in_every_epoch(
    schedule: Schedule,
    absent: str,
    rule: str,
    sizes: tuple[int, int],
    holdout: float,
    share: float,
) -> None:
    watcher = Watcher()
    world = World(
        settings={
            "model": "tests.networks:linear",
            "model_options": {"bias": False},
            "loss": "tests.networks:total",
            "batch": sizes[0],
            "local_steps": sizes[1],
            "learning_rate": 1.0,
            "rate_rule": "constant" if rule == "sqrt" else rule,
            "momentum": 0.0,
            "normalize": "none",
            "holdout": holdout,
        },
        parts=PARTS,
        algorithm="local_sgd",
        absent=absent,
        reloads=absent == "reload",
        # Members that the job waits for return.
        schedule=[*schedule, *(Return(round=r) for r in range(ROUNDS, ROUNDS + 8))],
        between=moves(share),
        watch=watcher,
    )
    run = world.run(ROUNDS + 8)
    taken = watcher.taken()
    epochs = sorted(taken)
    trained = taken[epochs[0]] if absent != "ignore" else None
    for epoch in epochs[:-1]:
        counts = taken[epoch]
        assert counts.max() <= 1
        if trained is not None:
            # The holdout is the same in every epoch, and empty if there is none.
            assert np.array_equal(counts, trained)
            assert counts.all() or holdout
    assert taken[epochs[-1]].max() <= 1
    values = [row.extra for row in run.rows]
    assert all(a["epoch"] <= b["epoch"] for a, b in itertools.pairwise(values))
    if absent != "ignore":
        assert all(row["skipped"] == 0 for row in values)
