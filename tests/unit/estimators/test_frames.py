"""Estimators take frames with text and dates, and keep scikit-learn's rules for their columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import elasticml as em
from elasticml.errors import DataError
from tests.unit.data.readers.test_table_forms import FORMS, TABLE

WHOLE = TABLE.drop_columns("zip").drop_null()
X, Y = WHOLE.drop_columns("y"), np.array(WHOLE["y"])
NAMES = ["size", "rooms", "city=Oslo", "city=Rome", "city=São Paulo", "new", "built.days"]
FRAMES = {
    "pandas": X.to_pandas(),
    "category": X.to_pandas().astype({"city": "category"}),
    "polars": pl.from_arrow(X),
    "arrow": X,
}
MODELS = {
    "classes": em.LogisticRegression(),
    "numbers": em.Ridge(),
    "sparse": em.LinearSVC(),
    "lasso": em.Lasso(alpha=0.01),
}


@pytest.mark.parametrize("form", FRAMES)
@pytest.mark.parametrize("name", MODELS)
def test_frames_with_text_are_encoded(name: str, form: str) -> None:
    model = MODELS[name].fit(FRAMES[form], Y)
    assert model.n_features_in_ == 5
    assert model.feature_names_in_.tolist() == X.column_names
    assert model.get_feature_names_out().tolist() == NAMES
    assert model.coef_.shape[-1] == len(NAMES)
    wanted = MODELS[name].fit(X, Y)
    assert model.coef_.tobytes() == wanted.coef_.tobytes()
    predicted = wanted.predict(X)
    for rows in (*FRAMES.values(), X.to_pandas().to_numpy(object)):
        np.testing.assert_array_equal(model.predict(rows), predicted)


def test_columns_are_as_scikit_learn_wants_them() -> None:
    model = em.Ridge().fit(FRAMES["pandas"], Y)
    for rows in FRAMES.values():
        other = pa.table(rows).select(X.column_names[::-1])
        with pytest.raises(ValueError, match="must be in the same order"):
            model.predict(other)
        with pytest.raises(ValueError, match="seen at fit time, yet now missing:\n- city"):
            model.predict(other.drop_columns("city"))
    unseen = FRAMES["pandas"].assign(city="Bern")
    margin = model.predict(unseen) - model.predict(FRAMES["pandas"])
    city = [model.coef_[NAMES.index(f"city={name}")] for name in X["city"].to_pylist()]
    np.testing.assert_allclose(margin, np.negative(city), atol=1e-12)
    numbers = X.select(["size", "rooms"]).to_pandas()
    assert not hasattr(em.Ridge().fit(numbers.to_numpy(), Y), "feature_names_in_")
    again = model.fit(numbers, Y)
    assert again.n_features_in_ == 2
    assert again.get_feature_names_out().tolist() == ["size", "rooms"]


def test_gaps_are_filled_as_in_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'city' of the frame has .*em\.from_frame"):
        em.LogisticRegression().fit(TABLE.drop_columns("y"), TABLE["y"])
    models = {
        form: em.LogisticRegression().fit(read(tmp_path))
        for form, read in FORMS.items()
        if form != "dask"
    }
    wanted = models["arrow"]
    margins = wanted.decision_function(TABLE.drop_columns("y"))
    for model in models.values():
        assert model.coef_.tobytes() == wanted.coef_.tobytes()
        for rows in (TABLE, FORMS["pandas"](tmp_path), FORMS["csv"](tmp_path)):
            assert model.decision_function(rows).tobytes() == margins.tobytes()
        assert model.score(TABLE, TABLE["y"]) == wanted.score(FORMS["polars"](tmp_path))


def test_clusters_of_a_frame_with_text() -> None:
    model = em.KMeans(n_clusters=3, random_state=0).fit(FRAMES["polars"])
    assert (model.n_features_in_, model.cluster_centers_.shape) == (5, (3, len(NAMES)))
    np.testing.assert_array_equal(model.predict(FRAMES["pandas"]), model.labels_)
