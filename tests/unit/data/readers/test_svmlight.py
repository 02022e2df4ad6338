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


@settings(max_examples=60)
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


def test_ones_are_stored_as_indices_only_and_zeros_not_at_all(tmp_path: Path) -> None:
    (chunk,) = load_all(read_svmlight(write(tmp_path / "a", "1 2:1 5:0\n-1 1:1.0 3:1e0\n")))
    assert chunk.layout.kind == "binary_csr"
    assert chunk.layout.n_columns == 5
    assert chunk.indices.tolist() == [1, 0, 2]


@both_lengths
def test_comments_blank_lines_query_numbers_and_returns_are_skipped(tmp_path, tail) -> None:
    text = "# head\r\n\r\n+1 qid:3 1:2 # 0:7\r\n  -1\t2:3\r\n\n# end" + tail
    data = read_svmlight(write(tmp_path / "a", text))
    chunks, summary = data.read(0, 10**6, 1)
    assert labels(chunks) == [1.0, -1.0]
    assert matrix(chunks, 2).tolist() == [[2, 0], [0, 3]]
    assert summary.notes == ("1 query numbers (qid:) were ignored",)


@both_lengths
def test_unsorted_indices_are_sorted_with_a_note(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path / "a", "1 3:3 1:1 2:2\n0 1:5\n1 2:9 1:8\n" + tail)
    chunks, summary = read_svmlight(path).read(0, 10**6, 1)
    assert matrix(chunks, 3).tolist() == [[1, 2, 3], [5, 0, 0], [8, 9, 0]]
    assert summary.notes == ("2 rows with unsorted indices were sorted",)


def test_the_first_eight_mebibytes_decide_whether_columns_start_at_zero_or_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = read_svmlight(write(tmp_path / "zero", "1 1:2\n1 0:3\n"))
    one = read_svmlight(write(tmp_path / "one", "1 1:2 # 0:3\n1 10:3\n"))
    assert [s.read(0, None, 1)[1].index_base for s in (zero, one)] == [0, 1]
    monkeypatch.setattr(files, "BLOCK_BYTES", 8)
    late = read_svmlight(write(tmp_path / "late", "1 1:2\n1 2:2\n1 0:3\n"))
    with pytest.raises(DataError, match=r"late, line 3, column 3: .*no index 0 in its first 8 MiB"):
        load_all(late)


def test_test_data_are_read_as_the_training_data_were(tmp_path: Path) -> None:
    train = read_svmlight(write(tmp_path / "train", "1 0:1 2:5\n"))
    facts = merge_summaries([train.read(0, None, 1)[1]])
    test = read_svmlight(write(tmp_path / "test", "1 1:4 3:6 7:1\n-1 2:1\n")).with_stats(facts)
    chunks, summary = test.read(0, None, 1)
    assert matrix(chunks, 3).tolist() == [[0, 4, 0], [0, 0, 1]]
    assert summary.n_columns == 3
    assert summary.notes == ("2 values in columns beyond the 3 of the model were dropped",)


def test_a_lone_carriage_return_before_a_wrong_row_ends_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:2\r2:3\n1 1:1 # a\rb\n1 3:1 3:2\n")
    with pytest.raises(DataError, match=r"line 3: feature index 3 occurs twice"):
        load_all(read_svmlight(path))


WRONG = {
    "x 1:2": r"line 3, column 1: label is 'x', wanted one finite number",
    "1,2 1:2": r"line 3, column 1: label is '1,2', wanted one",
    "nan 1:2": r"line 3, column 1: label is 'nan', wanted one finite number",
    "1 2:3 -1:3": r"line 3, column 7: feature index is -1, wanted an integer of at least 1",
    "1 0:3": r"line 3, column 3: feature index is 0 in a file taken as one-based",
    "1 3": r"line 3, column 3: found '3', wanted index:value",
    "1 1.5:3": r"line 3, column 3: found '1.5:3', wanted index:value",
    "1 a:3": r"line 3, column 3: found 'a:3', wanted index:value",
    "1 1:": r"line 3, column 3: value is .* wanted a finite number",
    "1 1:2 2:nan": r"line 3, column 7: value is 'nan' in '2:nan', wanted a finite number; impute",
    "1 1:-Inf": r"line 3, column 3: value is '-Inf'",
    "1 1:1e999": r"line 3, column 5: value is '1e999'",
    "1 1:1_000": r"line 3, column 3: value is '1_000'",
    "1 1:0x10": r"line 3, column 3: value is '0x10'",
    "1 1:1e": r"line 3, column 3: value is '1e'",
    "1 99999999999:1": r"line 3, column 3: feature index is 99999999999, wanted at most 2147483647",
    "1 2:1 1:3 2:2 5:1": r"line 3: feature index 2 occurs twice",
    "1 qid:7 2:1 qid:7 2:2 5:1": r"line 3: feature index 2 occurs twice",
    "1 1:1\r 2:1\v3:1 2:2": r"line 3: feature index 2 occurs twice",
}


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.parametrize(("block_bytes", "tail"), [(2**23, ""), (8, ""), (2**23, TAILS["long"])])
def test_a_wrong_line_is_named_wherever_blocks_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, block_bytes: int, tail: str
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path / "data.svm", f"1 1:2\n# comment\n{line}\n1 2:3\n{tail}")
    with pytest.raises(DataError, match=r"data\.svm, " + WRONG[line]) as caught:
        load_all(read_svmlight(path, zero_based=False))
    assert "\n" not in str(caught.value)


def test_a_value_too_large_for_float32_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:1e300\n")
    assert load_all(read_svmlight(path))[0].values.tolist() == [1e300]
    with pytest.raises(DataError, match=r"magnitude 1e\+300 in block 0 does not fit float32"):
        load_all(read_svmlight(path, dtype="float32"))


@pytest.mark.parametrize(
    ("name", "kind"), [("a9a/a9a.svm.gz", "binary_csr"), ("ijcnn1/ijcnn1.trn.svm.gz", "csr")]
)
def test_real_data_are_read_bit_for_bit(data_dir: Path, name: str, kind: str) -> None:
    data = read_svmlight(str(data_dir / name))
    chunks, summary = data.read(0, None, 14)
    facts = merge_summaries([summary])
    X, y = load_svmlight_file(str(data_dir / name), zero_based=False)
    assert (facts.layout.kind, facts.classes) == (kind, (-1.0, 1.0))
    assert labels(chunks) == y.tolist()
    np.testing.assert_array_equal(matrix(chunks), X.toarray())
