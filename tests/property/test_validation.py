"""A score is of all validation rows or withheld, whichever members' partials are in the sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.tabular import read_csv
from elasticml.data.scored_rows import with_scored_rows
from elasticml.data.source import load_all
from elasticml.evaluation.scoring import SCORE, SUMS
from elasticml.ids import is_trained
from tests.property.schedules import Schedule, schedules
from tests.serial_world import ExchangeRecord, World

ROWS, MEMBERS, ROUNDS = 200, 4, 8
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.normal(size=ROWS)
SOURCE = with_scored_rows(from_arrays(X, Y), share=0.3, seed=5, validation=None)
READ = [SOURCE.read(block.index, 512, MEMBERS) for block in SOURCE.blocks()]
CHUNKS = [chunk for chunks, _ in READ for chunk in chunks]
FACTS: DatasetStats = merge_summaries([summary for _, summary in READ])
HELD = [chunk for chunk in CHUNKS if not is_trained(chunk.id)]


def test_held_out_rows_do_not_depend_on_the_size_of_chunks():
    cut = [SOURCE.read(0, size, members)[0] for size, members in ((256, 1), (4096, 9))]
    held = [
        np.concatenate([chunk.labels for chunk in chunks if not is_trained(chunk.id)])
        for chunks in cut
    ]
    np.testing.assert_array_equal(*held)
    assert FACTS.scored_rows["validation"] == held[0].size
    assert FACTS.n_rows == ROWS - held[0].size


@pytest.mark.parametrize("has_text", [False, True])
def test_a_table_validates_by_the_names_of_its_columns(tmp_path: Path, has_text: bool):
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
    if has_text:
        frame["city"] = np.where(X[:, 0] > 0, "Rome", "Oslo")
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[frame.columns[::-1]].tail(50).to_csv(tmp_path / "other.csv", index=False)
    train, other = (read_csv(str(tmp_path / f"{n}.csv"), "y") for n in ("train", "other"))
    source = with_scored_rows(train, share=None, seed=0, validation=other)
    chunks = load_all(source)
    trained, held = (
        np.concatenate([c.values.reshape(c.n_rows, -1) for c in chunks if is_trained(c.id) != h])
        for h in (False, True)
    )
    np.testing.assert_array_equal(held, trained[-50:])


def r2(model: Any) -> float:
    y = np.concatenate([chunk.labels for chunk in HELD])
    z = np.concatenate([chunk.values @ model["coef"].ravel() for chunk in HELD])
    z = z + float(np.ravel(model["intercept"])[0])
    return 1.0 - float(((y - z) ** 2).sum() / ((y - y.mean()) ** 2).sum())


@settings(max_examples=20, deadline=None)
@given(
    owners=st.lists(st.integers(0, MEMBERS - 1), min_size=len(CHUNKS), max_size=len(CHUNKS)),
    schedule=schedules(MEMBERS, ROUNDS, ["gradient", "probe", "curvature", SCORE]),
)
def test_a_score_is_of_all_validation_rows_or_withheld(owners: list[int], schedule: Schedule):
    scored: dict[int, float] = {}

    def watch(world: World, record: ExchangeRecord) -> None:
        if SUMS["validation"] in record.exchange.returns:
            scored[record.round] = record.outcome.arrays[SUMS["validation"]][0]

    run = World(
        settings={"loss": "squared", "optimizer": "gd"},
        parts=[[c for c, m in zip(CHUNKS, owners, strict=True) if m == k] for k in range(MEMBERS)],
        facts=FACTS,
        absent="ignore",
        schedule=schedule,
        validate={"metric": ["r2"], "every": 1, "patience": 0},
        watch=watch,
    ).run(ROUNDS)
    for number, row in enumerate(run.rows):
        rows, score = row.extra.get("validation_rows"), row.extra["validation_r2"]
        assert rows == scored.get(number)
        if score is not None:
            assert rows == FACTS.scored_rows["validation"]
            assert abs(score - r2(row.model)) < 1e-9
        elif rows is not None:
            assert rows < FACTS.scored_rows["validation"]
    score = run.model.extra.get("validation_r2")
    assert schedule or score is not None
    assert score is None or abs(score - r2(run.model.arrays)) < 1e-9
