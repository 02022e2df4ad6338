"""``linear``: its problem becomes the settings of an algorithm, or is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticml as em
from elasticml.jobs.job_spec import JobSpec

DATA = em.from_arrays(np.eye(4), np.array([0.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"name": "batch_gradient", "loss": "logistic", "optimizer": "auto"}),
        ({"loss": "poisson", "engine": "tron"}, {"name": "batch_gradient", "optimizer": "tron"}),
        ({"loss": "quantile", "quantile": 0.9}, {"name": "cocoa", "quantile": 0.9}),
        ({"loss": "quantile", "smoothing": 0.1}, {"name": "batch_gradient", "smoothing": 0.1}),
        ({"loss": "absolute"}, {"name": "cocoa", "loss": "quantile", "quantile": 0.5}),
        ({"loss": "hinge", "class_weight": "balanced"}, {"name": "cocoa", "loss": "hinge"}),
        ({"engine": "cocoa", "intercept": False}, {"name": "cocoa", "loss": "logistic"}),
    ],
)
def test_the_engine_follows_from_the_loss(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    section = em.Job(em.Linear(**given), DATA).record("job", 1)["algorithm"]
    assert expected.items() <= section.items()
    assert section["scale"] == "auto"
    # The engine's settings, which the run directory has, make the same job.
    np.savez(tmp_path / "rows.npz", X=np.eye(2), y=[0.0, 1.0])
    (tmp_path / "job.yaml").write_text(
        f"data: {{path: rows.npz}}\nalgorithm: { ({**given, 'name': 'linear'}) }\n"
    )
    assert JobSpec.from_file(tmp_path / "job.yaml").algorithm == em.Linear(**given).resolved()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"l1": 0.1}, "linear: got l1, wanted an L2 penalty alone: for L1 use em.Lasso"),
        ({"loss": "hinge", "engine": "tron"}, "engine: tron needs a smooth loss, and hinge has"),
        ({"loss": "quantile", "engine": "newton"}, "has a kink; give smoothing, or leave engine"),
        ({"engine": "cocoa"}, "another problem; set intercept=False, or leave engine out"),
        ({"loss": "gamma", "engine": "cocoa"}, "engine: cocoa has no loss gamma; leave engine out"),
        ({"loss": "squared", "delta": 2.0}, "Linear.delta: belongs to loss: huber, not squared"),
        ({"loss": "hinge", "l2": 0.0}, "Linear.l2: got 0.0, wanted more than 0"),
    ],
)
def test_what_no_engine_solves_is_refused_in_a_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(em.ConfigError) as caught:
        em.Linear(**given)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"absent": "freeze"}, {"stop": em.Stop(gap=1e-3)}, {"policies": ["knee"]}]
)
def test_settings_that_an_engine_lacks_name_the_one_that_has_them(settings: Any) -> None:
    with pytest.raises(em.ConfigError, match="cocoa"):
        em.Job(em.Linear(), DATA, **settings)
    em.Job(em.Linear(loss="hinge"), DATA, **settings)
