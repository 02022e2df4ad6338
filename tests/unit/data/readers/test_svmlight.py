"""svmlight text becomes the right rows, in any blocks; errors name the line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from elasticml.data import source
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.readers import files, svmlight_short
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.source import load_all, merge_summaries, source_from_spec
from elasticml.errors import ConfigError, DataError


@pytest.fixture(autouse=True, params=["short texts in Python", "all by compiled kernels"])
def parsed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse short texts in both ways."""
    if request.param == "all by compiled kernels":
        monkeypatch.setattr(svmlight_short, "SHORT_BYTES", -1)


def matrix(chunks: list[Chunk], n_columns: int) -> sp.csr_array:
    parts = []
    for chunk in chunks:
        is_binary = chunk.layout.kind == "binary_csr"
        values = np.ones(len(chunk.indices)) if is_binary else chunk.values
        parts.append(
            sp.csr_array((values, chunk.indices, chunk.indptr), shape=(chunk.n_rows, n_columns))
        )
    return sp.vstack(parts).tocsr()


def labels(chunks: list[Chunk]) -> list[float]:
    return np.concatenate([chunk.labels for chunk in chunks]).tolist()


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
    path = write(tmp_path_factory.mktemp("svm") / "data.svm", text)
    chunks = load_all(read_svmlight(path, zero_based=zero_based))
    X, y = load_svmlight_file(io.BytesIO(text.encode()), n_features=41, zero_based=zero_based)
    X.eliminate_zeros()
    assert labels(chunks) == y.tolist()
    assert (matrix(chunks, 41) != X).nnz == 0


TOKENS = ["1", "-1", "2:1", "1:0.5", "3:-2e3", "+4:1", "0:1", "-0:0", "-3:1", "qid:7", "qid", "7"]
TOKENS += ["5:x", "5:", ":5", "x:5", "4x:5", "9" * 30 + ":1", "2147483648:1", "2:nan", "2:1_0"]
TOKENS += [
    "6:1e999",
    "6:1e-400",
    "-inf",
    "1e400",
    "00000000000000000000008:1",
    "3:1#2:1",
    "#",
    "\r",
]
TOKENS += ["5:0x1", "5:.5", "5:5.", "5:.", "5:1e", "5:1E+2", "\v8:1", "10:-0.0", "11:000", "2:3:4"]


@settings(max_examples=300)
@given(
    st.lists(st.lists(st.sampled_from(TOKENS), max_size=6), min_size=1, max_size=4), st.booleans()
)
def test_python_reads_and_refuses_what_the_kernels_do(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]], zero_based: bool
) -> None:
    text = "\n".join("\t ".join(["1", *line] if line[1:] else line) for line in lines) + "\n1 1:1"
    path = write(tmp_path_factory.mktemp("svm") / "data.svm", text)

    def outcome(short_bytes: int) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(svmlight_short, "SHORT_BYTES", short_bytes)
            try:
                chunks, summary = read_svmlight(path, zero_based=zero_based).read(0, 400, 1)
            except DataError as error:
                return str(error)
        return [bytes(chunk.body) for chunk in chunks], summary

    assert outcome(2**20) == outcome(-1)


@pytest.mark.parametrize("digits", [1, 15, 16, 17, 18, 19, 20, 25])
def test_decimals_of_any_length_are_rounded_as_python_rounds_them(
    tmp_path: Path, digits: int
) -> None:
    rng = np.random.default_rng(digits)
    words = []
    for _ in range(3000):
        whole = "".join(map(str, rng.integers(0, 10, digits)))
        point = rng.integers(0, digits + 1)
        exponent = rng.choice(["", "e5", "E-9", f"e{rng.integers(-40, 40)}"])
        words.append(f"{rng.choice(['', '-', '+'])}{whole[:point]}.{whole[point:]}{exponent}")
    # Ties between two doubles, and their neighbours: 2**53 + 1 and so on, with extra digits.
    words += [f"{2**53 + i}{'0' * (digits % 3)}e-{digits % 3}" for i in range(8)]
    words += [f"{(2**54 + 2 * i) * 5 + j}e-1" for i in range(8) for j in (-1, 0, 1)]
    path = write(tmp_path / "a", "".join(f"{word} 1:{word}\n" for word in words))
    chunks = load_all(read_svmlight(path))
    want = [float(word) for word in words]
    assert labels(chunks) == want
    assert matrix(chunks, 1).toarray().ravel().tolist() == want


@pytest.mark.parametrize("n_bytes", [1, 7, 64, 1000, 10**6])
@pytest.mark.parametrize("ending", ["\n", ""])
def test_every_row_is_in_exactly_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int, ending: str
) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{i} " + " ".join(f"{j}:1" for j in range(1, rng.integers(1, 9))) for i in range(50)]
    path = write(tmp_path / "data.svm", "\n".join(lines) + ending)
    monkeypatch.setattr(files, "BLOCK_BYTES", n_bytes)
    data = read_svmlight(path, zero_based=False)
    parts = [data.read(block.index, 10**6, 1) for block in data.blocks()]
    actual = [label for chunks, _ in parts for chunk in chunks for label in chunk.labels.tolist()]
    assert actual == list(range(50))
    assert merge_summaries([summary for _, summary in parts]).n_rows == 50


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_read_in_pieces_like_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    text = "".join(f"{i} 1:{i} 3:0.5\n" for i in range(1, 200))
    plain = load_all(read_svmlight(write(tmp_path / "plain", text)))
    (tmp_path / "packed").write_bytes(compress(text.encode()))
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(files, "_READ_BYTES", 64)
    packed = load_all(read_svmlight(str(tmp_path / "packed")))
    assert labels(packed) == labels(plain)
    assert (matrix(packed, 3) != matrix(plain, 3)).nnz == 0
    assert [chunk.id.ordinal for chunk in packed] == list(range(len(packed)))


def test_ones_are_stored_as_indices_only_and_zeros_not_at_all(tmp_path: Path) -> None:
    (chunk,) = load_all(read_svmlight(write(tmp_path / "a", "1 2:1 5:0\n-1 1:1.0 3:1e0\n")))
    assert chunk.layout.kind == "binary_csr"
    assert chunk.layout.n_columns == 5
    assert chunk.indices.tolist() == [1, 0, 2]


def test_comments_blank_lines_query_numbers_and_returns_are_skipped(tmp_path: Path) -> None:
    text = "# head\r\n\r\n+1 qid:3 1:2 # 0:7\r\n  -1\t2:3\r\n\n# end"
    data = read_svmlight(write(tmp_path / "a", text))
    chunks, summary = data.read(0, 10**6, 1)
    assert labels(chunks) == [1.0, -1.0]
    assert matrix(chunks, 2).toarray().tolist() == [[2, 0], [0, 3]]
    assert summary.notes == ("1 query numbers (qid:) were ignored",)


def test_unsorted_indices_are_sorted_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 3:3 1:1 2:2\n0 1:5\n1 2:9 1:8\n")
    chunks, summary = read_svmlight(path).read(0, 10**6, 1)
    assert matrix(chunks, 3).toarray().tolist() == [[1, 2, 3], [5, 0, 0], [8, 9, 0]]
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
    assert matrix(chunks, 3).toarray().tolist() == [[0, 4, 0], [0, 0, 1]]
    assert summary.n_columns == 3
    assert summary.notes == ("2 values in columns beyond the 3 of the model were dropped",)


def test_a_lone_carriage_return_before_a_wrong_row_ends_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:2\r2:3\n1 1:1 # a\rb\n1 3:1 3:2\n")
    with pytest.raises(DataError, match=r"line 3: feature index 3 occurs twice"):
        load_all(read_svmlight(path))


def test_chunks_have_at_most_the_requested_size_or_one_row(tmp_path: Path) -> None:
    text = "".join(f"{i} " + " ".join(f"{j}:0.5" for j in range(1, 60)) + "\n" for i in range(300))
    data = read_svmlight(write(tmp_path / "a", text))
    chunks, _ = data.read(0, 16 * 1024, 1)
    assert len(chunks) > 10
    assert all(chunk.nbytes <= 16 * 1024 for chunk in chunks)
    tiny, _ = data.read(0, 1, 1)
    assert [chunk.n_rows for chunk in tiny] == [1] * 300
    assert labels(tiny) == labels(chunks)


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
    "1 2:1 1:3 2:2": r"line 3: feature index 2 occurs twice",
    "1 qid:7 2:1 qid:7 2:2": r"line 3: feature index 2 occurs twice",
    "1 1:1\r 2:1\v3:1 2:2": r"line 3: feature index 2 occurs twice",
}


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.parametrize("block_bytes", [2**23, 8])
def test_a_wrong_line_is_named_wherever_blocks_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, block_bytes: int
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path / "data.svm", f"1 1:2\n# comment\n{line}\n1 2:3\n")
    with pytest.raises(DataError, match=r"data\.svm, " + WRONG[line]) as caught:
        load_all(read_svmlight(path, zero_based=False))
    assert "\n" not in str(caught.value)


def test_a_value_too_large_for_float32_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:1e300\n")
    assert load_all(read_svmlight(path))[0].values.tolist() == [1e300]
    with pytest.raises(DataError, match=r"magnitude 1e\+300 in block 0 does not fit float32"):
        load_all(read_svmlight(path, dtype="float32"))


def test_a_truncated_gzip_file_names_the_last_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"1 1:{value!r}\n" for value in rng.random(50_000).tolist())
    packed = gzip.compress(text.encode())
    (tmp_path / "a.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"a\.gz, line \d{4,5}: the gzip data end early"):
        read_svmlight(str(tmp_path / "a.gz"), zero_based=False).read(0, None, 1)


def test_missing_empty_and_blank_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.svm does not exist; check data\.path"):
        read_svmlight(str(tmp_path / "nowhere.svm")).blocks()
    with pytest.raises(DataError, match=r"empty\.svm is empty \(0 bytes\)"):
        read_svmlight(write(tmp_path / "empty.svm", "")).blocks()
    with pytest.raises(ConfigError, match="has no file with data"):
        read_svmlight(str(tmp_path)).blocks()
    blank = read_svmlight(write(tmp_path / "blank.svm", "# nothing\n\n"))
    with pytest.raises(DataError, match=r"blank\.svm holds no examples"):
        merge_summaries([blank.read(0, None, 1)[1]], name="blank.svm")


def test_a_source_survives_its_spec_and_settings_are_checked(tmp_path: Path) -> None:
    data = read_svmlight(write(tmp_path / "a", "1 1:2\n"), dtype="float32", n_columns=4)
    assert source_from_spec(data.spec()) == data
    assert data.fingerprint() != read_svmlight(str(tmp_path / "a")).fingerprint()
    for wrong, words in (
        ({"zerobased": True}, "did you mean 'zero_based'"),
        ({"dtype": "int8"}, "data.dtype: got 'int8'"),
        ({"zero_based": "maybe"}, "data.zero_based: got 'maybe'"),
        ({"n_columns": 0}, "wanted at least 1"),
        ({"format": "svmligth"}, "did you mean 'svmlight'"),
    ):
        with pytest.raises(ConfigError, match=words):
            source_from_spec({"format": "svmlight", "path": "x", **wrong})


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 1:2\n")
    data = read_svmlight(path)
    chunks = load_all(data)
    write(tmp_path / "a", "1 1:2\n1 2:2\n")
    with pytest.raises(DataError, match="the data have changed since chunk"):
        source.read_chunks(data, [chunks[0].id], None, 1)


def test_a_file_is_read_through_fsspec() -> None:
    with fsspec.open("memory://elasticml/a.svm", "wb") as out:
        out.write(b"1 1:2\n-1 3:4\n")
    chunks = load_all(read_svmlight("memory://elasticml/a.svm"))
    assert matrix(chunks, 3).toarray().tolist() == [[2, 0, 0], [0, 0, 4]]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a9a/a9a.svm.gz", "binary_csr"),
        ("a9a/a9a.t.svm.gz", "binary_csr"),
        ("w8a/w8a.svm.gz", "binary_csr"),
        ("ijcnn1/ijcnn1.trn.svm.gz", "csr"),
        ("rcv1_cocoa/small_train.svm.gz", "csr"),
    ],
)
def test_real_data_are_read_bit_for_bit(data_dir: Path, name: str, kind: str) -> None:
    data = read_svmlight(str(data_dir / name))
    chunks, summary = data.read(0, None, 14)
    facts = merge_summaries([summary])
    X, y = load_svmlight_file(str(data_dir / name), zero_based=False)
    X.eliminate_zeros()
    assert facts.layout.kind == kind
    assert facts.classes == (-1.0, 1.0)
    assert labels(chunks) == y.tolist()
    assert (matrix(chunks, facts.n_columns) != X).nnz == 0


def test_a_file_that_scikit_learn_wrote_comes_back(tmp_path: Path) -> None:
    X = sp.random_array((200, 30), density=0.2, rng=np.random.default_rng(1)).tocsr()
    y = np.arange(200.0)
    dump_svmlight_file(X, y, str(tmp_path / "a"), zero_based=False)
    chunks = load_all(read_svmlight(str(tmp_path / "a")))
    want, _ = load_svmlight_file(str(tmp_path / "a"), n_features=30)
    assert (matrix(chunks, 30) != want).nnz == 0
