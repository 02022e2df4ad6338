"""Arrays partitioned by columns: the rows of their chunks."""

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import load_all, source_from_spec
from elasticml.errors import ConfigError, DataError
from tests.unit.data.rows import labels, matrix

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(7, 3)), RNG.normal(size=7)
S = np.array([0.0, 1.0, 4.0, 1.0, 0.25, 2.0, 1.0])


def all_rows(source):
    chunks = load_all(source)
    return matrix(chunks), labels(chunks)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, sp.csc_matrix])
def test_chunks_hold_columns_and_a_row_of_targets(make):
    rows, of = all_rows(from_arrays(make(X), Y, by="columns"))
    np.testing.assert_array_equal(of, [0, 1, 2, -1])
    np.testing.assert_array_equal(rows, np.vstack([X.T, Y]))


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_features_are_multiplied_by_the_roots_of_weights_and_targets_are_not(make):
    rows, of = all_rows(from_arrays(make(X), Y, S, by="columns"))
    root = np.sqrt(S)
    np.testing.assert_array_equal(of, [0, 1, 2, -1, -2])
    np.testing.assert_allclose(rows, np.vstack([X.T * root, Y, root]), rtol=1e-15)


def test_a_source_without_arrays_knows_the_blocks_and_another_cut_changes_the_fingerprint():
    source = from_arrays(X, Y, by="columns")
    again = source_from_spec(source.spec())
    assert (again.blocks(), again.fingerprint()) == (source.blocks(), source.fingerprint())
    assert (source.blocks()[0].rows, source.blocks()[0].columns) == (4, 7)
    assert from_arrays(np.vstack([X.T, Y]), [0, 1, 2, -1]).fingerprint() != source.fingerprint()


def test_test_data_with_other_examples_keep_all_of_them():
    rows, _ = all_rows(from_arrays(X, Y, by="columns").with_columns(3))
    assert rows.shape == (4, 7)


def test_wrong_arrays_are_refused():
    with pytest.raises(ConfigError, match="by is 'cols', wanted 'rows' or 'columns'"):
        from_arrays(X, Y, by="cols")
    with pytest.raises(ConfigError, match="dtype is 'float32', wanted 'float64' by columns"):
        from_arrays(X, Y, by="columns", dtype="float32")
    with pytest.raises(DataError, match="the weights of all examples are 0"):
        from_arrays(X, Y, np.zeros(7), by="columns")
    with pytest.raises(DataError, match="no columns"):
        from_arrays(np.zeros((7, 0)), Y, by="columns")
    with pytest.raises(DataError, match="row 0, column 1: value is nan"):
        from_arrays(np.array([[1.0, np.nan]]), [1.0], by="columns")
