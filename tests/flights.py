"""A small, drawn table of flights, and what predicts it in another process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def small_flights(n: int = 4000) -> pd.DataFrame:
    """Draw flights with words, a date, booleans and missing values; some have no label."""
    rng = np.random.default_rng(0)
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


def scikit_learns(rows: pd.DataFrame, l2: float) -> Any:
    """Fit scikit-learn's logistic regression to the same columns, filled and scaled alike."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, OneHotEncoder

    X, y = rows.drop(columns="late"), rows["late"]
    words = [name for name in X if X[name].dtype.kind == "O"]
    fill = make_pipeline(
        FunctionTransformer(_as_numbers), SimpleImputer(strategy="mean"), MaxAbsScaler()
    )
    rest = [name for name in X if name not in words]
    one_hot = OneHotEncoder(handle_unknown="ignore")
    columns = ColumnTransformer([("numbers", fill, rest), ("words", one_hot, words)])
    model = LogisticRegression(C=1.0 / (l2 * len(y)), max_iter=5000, tol=1e-8)
    return make_pipeline(columns, model).fit(X, y)


def _as_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return dates as days, and the other columns as numbers."""
    return pd.DataFrame(
        {
            name: _days(frame[name]) if frame[name].dtype.kind == "M" else frame[name].astype(float)
            for name in frame
        }
    )


def _days(column: pd.Series) -> pd.Series:
    return (column.dt.tz_localize(None) - pd.Timestamp("1970-01-01")) / pd.Timedelta(1, "D")


def main(folder: Path) -> None:
    """Predict every form of the table in this process, and write the margins."""
    import dask.dataframe as dd

    import elasticml as em

    model: Any = em.load_model(folder / "csv")
    frame = pd.read_parquet(folder / "rows.parquet")
    forms = {
        "frame": frame,
        "csv": str(folder / "rows.csv"),
        "parquet": folder / "rows.parquet",
        "dask": dd.from_pandas(frame, npartitions=3),
        "dask_parquet": dd.read_parquet(folder / "rows.parquet", split_row_groups=True),
    }
    margins: dict[str, Any] = {
        name: np.asarray(model.decision_function(rows)) for name, rows in forms.items()
    }
    np.savez(folder / "margins.npz", **margins)


def check_identical(folder: Path, expected: Any) -> None:
    """Check what :func:`main` has written, bit by bit."""
    with np.load(folder / "margins.npz") as margins:
        assert len(margins.files) == 5
        for name in margins.files:
            np.testing.assert_array_equal(margins[name], expected, err_msg=name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
