"""A job on a table as it is, with real kills: its model predicts the table elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from distributed import Client

import elasticml as em
from elasticml.data.readers import tabular

pytestmark = pytest.mark.cluster

FAULTS = [
    {"round": 2, "lose": 1, "how": "kill"},
    {"round": 4, "return": 1},
    {"round": 6, "lose": [0], "how": "kill"},
    {"round": 8, "return": 1},
    {"round": 9, "lose": [1], "how": "kill"},
]


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 4000
    frame = pd.DataFrame(
        {
            "carrier": rng.choice(["AA", "UA", "9E"], n),
            "delay": rng.normal(size=n),
            "when": pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "far": rng.integers(0, 2, n).astype(bool),
        }
    )
    z = 2.0 * frame["delay"] + (frame["carrier"] == "UA") + 0.3 * rng.normal(size=n)
    frame["late"] = np.where(z > 0.3, "yes", "no")
    frame.loc[::9, "delay"] = np.nan
    frame.loc[::13, "carrier"] = None
    frame.loc[::50, "late"] = None
    return frame


def test_a_table_is_trained_with_kills_and_predicted_in_another_process(tmp_path: Path) -> None:
    frame = table()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet", index=False, row_group_size=500)
    sources: list[tabular.TableSource] = [
        em.read_csv(str(tmp_path / "rows.csv"), "late", missing="mean", ignore=["when"]),
        em.read_parquet(str(tmp_path / "rows.parquet"), "late", missing="mean", ignore=["when"]),
    ]
    results = []
    with em.LocalCluster(3) as cluster, Client(cluster, set_as_default=False) as client:
        for number, source in enumerate(sources):
            algorithm = em.BatchGradient(l2=1e-4, intercept=True, tolerance=1e-9)
            job = em.Job(
                algorithm,
                source,
                absent="reload",
                faults=FAULTS,
                chunk_size="16 KiB",
                stop=em.Stop(rounds=100),
            )
            results.append(job.run(client, run_dir=tmp_path / f"run{number}"))
    of_csv, of_parquet = (result.model for result in results)
    assert of_csv is not None
    assert of_parquet is not None
    assert results[0].summary["lost"] == 3
    np.testing.assert_allclose(of_csv.coef_, of_parquet.coef_, atol=1e-5)  # type: ignore[attr-defined]
    labelled = frame[frame["late"].notna()]
    score = of_csv.score(labelled)
    assert score == results[0].summary["train"]["accuracy"] > 0.85
    out = tmp_path / "predictions.parquet"
    arguments = ["predict", str(tmp_path / "run0"), str(tmp_path / "rows.csv"), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "elasticml", *arguments], check=True, timeout=120)
    assert pd.read_parquet(out)["prediction"].tolist() == of_csv.predict(frame).tolist()
