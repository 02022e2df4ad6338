"""Targets and weights of examples, from labels that are numbers, words or booleans."""

from __future__ import annotations

import json

import numpy as np
import pytest

import elasticml as em
from elasticml.algorithms.targets import check_labels, targets_for
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.specification.algorithms import BatchGradient, settings_from_section

LABELS = {
    "words": ["late", "no", "late", "no", "no", "early"],
    "booleans": ["true", "false", "true", "false", "false", "false"],
    "numbers": ["7", "-1", "7", "-1", "-1", "2.5"],
}


def facts_of(tmp_path, kind: str) -> DatasetStats:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(LABELS[kind])))
    source = survey_all(em.read_csv(str(path), label="y", header=True))
    return merge_summaries([source.read(block.index, None, 1)[1] for block in source.blocks()])


def settings_with(class_weight) -> BatchGradient:
    """Return settings as members read them: from JSON, whose keys are text."""
    section = {"class_weight": class_weight}
    if isinstance(class_weight, dict):
        section["class_weight"] = {str(label): weight for label, weight in class_weight.items()}
    return settings_from_section(BatchGradient, json.loads(json.dumps(section)))


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("words", {"late": 3.0, "no": 0.5}, [1.0, 3.0, 0.5]),
        ("words", "balanced", [2.0, 1.0, 2.0 / 3.0]),
        ("booleans", {1: 4.0}, [1.0, 4.0]),
        ("numbers", {-1: 2.0, 2.5: 5.0}, [2.0, 5.0, 1.0]),
    ],
)
def test_class_weights_are_by_the_labels_of_the_file(tmp_path, kind, given, expected):
    facts = facts_of(tmp_path, kind)
    targets = targets_for(settings_with(given), facts)
    weights = targets.weights(np.array(facts.classes), None)
    np.testing.assert_allclose(weights, expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("words", {"lat": 3.0}, "names label lat, wanted labels among early and late and no"),
        ("words", {1: 3.0}, "names label 1, wanted labels among early and late and no"),
        ("numbers", {"late": 3.0}, "names label late, wanted labels among -1 and 2.5 and 7"),
    ],
)
def test_the_weight_of_an_unknown_class_is_refused(tmp_path, kind, given, message):
    with pytest.raises(ConfigError, match=message):
        targets_for(settings_with(given), facts_of(tmp_path, kind))


def test_words_are_no_targets_of_a_regression(tmp_path):
    with pytest.raises(DataError, match="'early', 'late', 'no' in column 'y', wanted numbers"):
        check_labels("squared", facts_of(tmp_path, "words"), is_classification=False)
    check_labels("squared", facts_of(tmp_path, "booleans"), is_classification=False)
    check_labels("squared", facts_of(tmp_path, "numbers"), is_classification=False)
    check_labels("logistic", facts_of(tmp_path, "words"), is_classification=True)
