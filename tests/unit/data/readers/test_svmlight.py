"""svmlight text becomes the right rows, in any blocks; errors name the line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from elasticml.data.readers import files
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.source import load_all, merge_summaries
from elasticml.errors import DataError
from tests.unit.data.rows import labels, matrix

#: A text longer than this is parsed by other code than a short one.
TAILS = {"short": "", "long": "\n#" + "-" * 2**19 + "\n"}
both_lengths = pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(NUMBERS, st.dictionaries(st.integers(0, 40), NUMBERS, max_size=8)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_any_numbers_are_read_as_scikit_learn_reads_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list, zero_based: bool
) -> None:
    base = 0 if zero_based else 1
    text = "".join(
        f"{label!r} {' '.join(f'{i + base}:{v!r}' for i, v in sorted(row.items()))}\n"
        for label, row in rows
    )
    X, y = load_svmlight_file(io.BytesIO(text.encode()), n_features=41, zero_based=zero_based)
    for tail in TAILS.values():
        path = write(tmp_path_factory.mktemp("svm") / "data.svm", text + tail)
        chunks = load_all(read_svmlight(path, zero_based=zero_based))
        assert labels(chunks) == y.tolist()
        np.testing.assert_array_equal(matrix(chunks, 41), X.toarray())


@both_lengths
@pytest.mark.parametrize("digits", [1, 9, 15, 16, 17, 18, 19, 20, 25])
def test_decimals_of_any_length_are_rounded_as_python_rounds_them(
    tmp_path: Path, digits: int, tail: str
) -> None:
    rng = np.random.default_rng(digits)
    words = []
    for _ in range(3000):
        whole = "".join(map(str, rng.integers(0, 10, digits)))
        point = rng.integers(0, digits + 1)
        exponent = rng.choice(["", "e5", "E-9", f"e{rng.integers(-40, 40)}"])
        words.append(f"{rng.choice(['', '-', '+'])}{whole[:point]}.{whole[point:]}{exponent}")
    words += [f"{x:.{digits}f}" for x in 10 * rng.random(300)]
    # Ties between two doubles, and their neighbours: 2**53 + 1 and so on, with extra digits.
    words += [f"{2**53 + i}{'0' * (digits % 3)}e-{digits % 3}" for i in range(8)]
    words += [f"{(2**54 + 2 * i) * 5 + j}e-1" for i in range(8) for j in (-1, 0, 1)]
    path = write(tmp_path / "a", "".join(f"{word} 1:{word}\n" for word in words) + tail)
    chunks = load_all(read_svmlight(path))
    want = [float(word) for word in words]
    assert labels(chunks) == want
    assert matrix(chunks, 1).ravel().tolist() == want


@both_lengths
def test_comments_order_ones_and_returns_are_understood_with_notes(tmp_path, tail) -> None:
    for text, base, rows, kind, notes in (
        ("1 2:1 5:0\n-1 1:1.0 3:1e0\n", 1, [[0, 1, 0], [1, 0, 1]], "binary_csr", []),
        (
            "# head\r\n\r\n+1 qid:3 1:2 # 0:7\r\n  -1\t2:3\r\n\n# end",
            1,
            [[2, 0, 0], [0, 3, 0]],
            "csr",
            ["1 query numbers (qid:) were ignored"],
        ),
        (
            "1 3:3 1:1 2:2\n-1 2:9 1:8\n",
            1,
            [[1, 2, 3], [8, 9, 0]],
            "csr",
            ["2 rows with unsorted indices were sorted"],
        ),
        ("1 1:2\n-1 0:3\n", 0, [[0, 2, 0], [3, 0, 0]], "csr", []),
    ):
        chunks, summary = read_svmlight(write(tmp_path / "a", text + tail)).read(0, 10**6, 1)
        assert labels(chunks) == [1.0, -1.0]
        assert matrix(chunks, 3)[:, :3].tolist() == rows
        assert (summary.index_base, [*summary.notes]) == (base, notes)
        assert chunks[0].layout.kind == kind
        assert (chunks[0].values.size == 0) == (kind == "binary_csr")


def test_wrong_rows_that_depend_on_others_are_named(tmp_path: Path, monkeypatch) -> None:
    for text, options, words in (
        ("1 1:2\n1 2:2\n1 0:3\n", {}, r"line 3, column 3: .*no index 0 in its first 8 MiB"),
        # A lone carriage return ends no row.
        ("1 1:2\r2:3\n1 1:1 # a\rb\n1 3:1 3:2\n", {}, "line 3: feature index 3 occurs twice"),
        ("1 1:1e300\n", {"dtype": "float32"}, r"magnitude 1e\+300 in block 0 does not fit float32"),
    ):
        monkeypatch.setattr(files, "BLOCK_BYTES", 8 if "8 MiB" in words else 2**23)
        with pytest.raises(DataError, match=words):
            load_all(read_svmlight(write(tmp_path / "a", text), **options))


def test_real_data_are_read_bit_for_bit(data_dir: Path) -> None:
    path = str(data_dir / "a9a" / "a9a.svm.gz")
    chunks, summary = read_svmlight(path).read(0, None, 14)
    X, y = load_svmlight_file(path, zero_based=False)
    facts = merge_summaries([summary])
    assert (facts.layout.kind, facts.classes) == ("binary_csr", (-1.0, 1.0))
    assert labels(chunks) == y.tolist()
    np.testing.assert_array_equal(matrix(chunks), X.toarray())
