"""A job on a table, with kills: its model predicts every form of the table elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import elasticml as em
from elasticml.jobs.follow import follow
from elasticml.jobs.simulated_job import SimulatedJob
from tests.flights import check_identical, scikit_learns, small_flights

FAULTS: list[dict[str, Any]] = [
    {"round": 2, "lose": 1, "how": "kill"},
    {"round": 4, "return": 1},
    {"round": 6, "lose": [0], "how": "kill"},
    {"round": 8, "return": 1},
    {"round": 9, "lose": [1], "how": "kill"},
]
L2 = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on the CSV file and on the Parquet file, with kills."""
    folder = tmp_path_factory.mktemp("flights")
    frame = small_flights()
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet", index=False, row_group_size=500)
    algorithm = em.BatchGradient(l2=L2, intercept=True, scale="maxabs", tolerance=1e-9)
    for name, read in (("csv", em.read_csv), ("parquet", em.read_parquet)):
        job = em.Job(
            algorithm,
            read(str(folder / f"rows.{name}"), "late", missing="mean"),
            absent="reload",
            faults=FAULTS,
            chunk_size="16 KiB",
            stop=em.Stop(rounds=1000),
        )
        simulated = SimulatedJob(job.record(name, 3), job.source)
        result: Any = follow(simulated, run_dir=folder / name)
        assert result.summary["lost"] >= 3
        assert result.summary["converged"]
    return folder


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["late"].notna()]


def test_csv_and_parquet_give_one_model_which_is_as_good_as_scikit_learns(folder: Path) -> None:
    models: list[Any] = [em.load_model(folder / name) for name in ("csv", "parquet")]
    assert models[0].rows.feature_names() == models[1].rows.feature_names()
    rows = labelled(small_flights())
    shares = [model.predict_proba(rows) for model in models]
    np.testing.assert_allclose(shares[0], shares[1], atol=1e-4)
    pipeline = scikit_learns(rows, L2)
    score = models[0].score(rows)
    assert score > 0.85
    assert score == pytest.approx(pipeline.score(rows.drop(columns="late"), rows["late"]), abs=1e-3)


def test_another_process_predicts_the_same_from_every_form_of_the_table(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.flights", str(folder)],
        check=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    model: Any = em.load_model(folder / "csv")
    check_identical(folder, model.decision_function(small_flights()))
    out = folder / "predictions.parquet"
    arguments = ["predict", str(folder / "csv"), str(folder / "rows.csv"), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "elasticml", *arguments], check=True, timeout=120)
    predicted = model.predict(small_flights())
    assert pd.read_parquet(out)["prediction"].tolist() == predicted.tolist()
