"""Warnings about columns, from moments that are merged over blocks."""

import numpy as np
import pytest

from elasticml.data.column_survey import (
    column_warnings,
    merge_moments,
    moments_of,
    moments_of_values,
)

Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
NOISE = np.array([0.3, -0.9, 0.5, 0.1, 0.7, -0.2])


def merged(column):
    return merge_moments([moments_of(column[:2], Y[:2]), moments_of(column[2:], Y[2:])])


def test_moments_of_blocks_give_the_correlation_of_the_whole():
    expected = np.corrcoef(NOISE, Y)[0, 1]
    assert merged(NOISE).correlation == pytest.approx(expected)


def test_a_column_that_is_nearly_the_label_is_named():
    moments = {"copy": merged(3.0 - 2.0 * Y + 1e-4 * NOISE), "noise": merged(NOISE)}
    (warning,) = column_warnings(moments)
    assert warning.startswith("column 'copy' is nearly the label (correlation -1.0000): if it")


def test_a_column_with_a_value_that_is_nearly_the_label_is_named_once():
    X, names = np.column_stack([Y, 1.0 - Y]), ["status=late", "status=on time"]
    parts = [moments_of_values("status", names, X[k], Y[k]) for k in (slice(0, 2), slice(2, 6))]
    moments = {name: merge_moments([part[name] for part in parts]) for name in names}
    (warning,) = column_warnings({**moments, "noise": merged(NOISE)})
    assert warning == (
        "column 'status' is nearly the label ('status=late': correlation 1.0000): if it is not "
        "known when the model predicts, list it in data.ignore"
    )
