"""Jobs and estimators on one table with text, dates and gaps, in five forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import polars as pl
import pytest
from distributed import Client, LocalCluster

import elasticml as em
from tests.unit.data.readers.test_table_forms import FORMS, TABLE, frame

pytestmark = pytest.mark.cluster

GAP, L2 = 1e-9, 1e-2


def test_one_frame_in_all_forms_gives_one_model(tmp_path: Path) -> None:
    algorithm = em.CoCoA(loss="logistic", l2=L2, tolerance=0.0, intercept=False)
    results: dict[str, Any] = {}
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        for form, read in FORMS.items():
            job = em.Job(algorithm, read(tmp_path), stop=em.Stop(gap=GAP, rounds=3000))
            results[form] = job.run(client)
    wanted = results["arrow"].model
    for form, result in results.items():
        assert result.summary["gap"] <= GAP, form
        # The objective is strongly convex: |w - w*|^2 <= 2 gap / l2, of columns as they are scaled.
        scale = np.abs(wanted.coef_).max()
        np.testing.assert_allclose(result.model.coef_, wanted.coef_, atol=1e-3 * scale)
        assert list(result.model.get_feature_names_out()) == list(wanted.get_feature_names_out())
    margins = wanted.decision_function(TABLE)
    lazily = wanted.decision_function(dd.from_pandas(frame(), npartitions=3)).compute()
    for rows in (frame(), pl.from_arrow(TABLE), tmp_path / "a.csv", tmp_path / "a.parquet"):
        assert wanted.decision_function(rows).tobytes() == margins.tobytes()
    assert lazily.to_numpy().tobytes() == margins.tobytes()
