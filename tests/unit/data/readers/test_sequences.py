"""Sequence files: their rows, their blocks, and errors."""

from __future__ import annotations

import bz2
import gzip
import lzma

import numpy as np
import pytest

from elasticml.data.chunks.ngrams import letters_of_codes, sequence_layout
from elasticml.data.readers.sequences import read_sequences
from elasticml.data.source import load_all, merge_summaries
from elasticml.errors import ConfigError, DataError

OPENERS = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def random_rows(n, length, seed=0):
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("ACGT"), length)) for _ in range(n)]
    return list(zip(rng.choice([-1, 1], n).tolist(), words, strict=True))


def tsv_of(rows):
    return "".join(f"{label}\tgene{i}\t{word}\n" for i, (label, word) in enumerate(rows))


def fasta_of(rows, width):
    lines = []
    for i, (label, word) in enumerate(rows):
        lines.append(f"> chr=1, position={i}, label={label}")
        lines += [word[j : j + width] for j in range(0, len(word), width)]
    return "\n".join(lines) + "\n"


def rows_of(source):
    """Return labels and words of a source, all blocks in order."""
    rows = []
    for chunk in load_all(source):
        letters = letters_of_codes(chunk.codes, chunk.layout)
        words = ["".join(chunk.layout.alphabet[k] for k in row) for row in letters]
        rows += list(zip(chunk.labels.astype(int).tolist(), words, strict=True))
    return rows


def write(path, text, suffix=""):
    path = path.with_name(path.name + suffix)
    with OPENERS[suffix](path, "wb") as out:
        out.write(text.encode())
    return str(path)


def message_of(source):
    with pytest.raises(DataError) as caught:
        load_all(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_celegans_like_fasta_and_window_give_the_papers_features(tmp_path):
    rows = random_rows(5, 398)
    path = write(tmp_path / "acc.fasta", fasta_of(rows, 398), ".bz2")
    source = read_sequences(path, window=[127, 268])
    chunks, summary = source.read(0, None, 14)
    assert [row[1] for row in rows_of(source)] == [word[127:268] for _, word in rows]
    assert merge_summaries([summary]).layout == sequence_layout("ACGT", 141, (1, 4))
    assert (summary.n_columns, summary.rows, len(chunks)) == (47_028, 5, 1)


def test_columns_are_chosen_by_index_from_either_end_or_by_name(tmp_path):
    rows = random_rows(9, 8)
    by_number = "".join(f"{word}\tx\t{label}\n" for label, word in rows)
    path = write(tmp_path / "n.tsv", by_number)
    assert rows_of(read_sequences(path, label=2, sequence=0)) == rows
    assert rows_of(read_sequences(path, label=-1, sequence=-3)) == rows
    path = write(tmp_path / "h.tsv", "dna\tid\tclass\n" + by_number)
    assert rows_of(read_sequences(path, label="class", sequence="dna")) == rows
    assert rows_of(read_sequences(path, label="class", sequence=0)) == rows
    assert "line 1: no column is named 'clas', found" in message_of(
        read_sequences(path, label="clas", sequence="dna")
    )


def test_lower_case_blank_lines_and_carriage_returns_are_accepted(tmp_path):
    path = write(tmp_path / "a.tsv", "\n+1\tacgt\r\n\n-1\tTtGa\r\n")
    assert rows_of(read_sequences(path)) == [(1, "ACGT"), (-1, "TTGA")]


def test_other_alphabets_are_numbered_in_their_own_order(tmp_path):
    path = write(tmp_path / "a.tsv", "1\t0110\n-1\t1001\n")
    chunk = load_all(read_sequences(path, alphabet="10", ngrams=[1, 2]))[0]
    assert letters_of_codes(chunk.codes, chunk.layout).tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]


def test_large_alphabets_are_read_as_binary_csr_with_the_same_numbering(tmp_path):
    amino = "ACDEFGHIKLMNPQRSTVWY"
    path = write(tmp_path / "a.tsv", "1\tACY\n-1\tYYA\n")
    chunk = load_all(read_sequences(path, alphabet=amino, ngrams=[1, 2]))[0]
    assert chunk.layout.kind == "binary_csr"
    assert chunk.layout.n_columns == 3 * 20 + 2 * 400
    assert chunk.indices.tolist() == [
        *(0, 20 + 1, 40 + 19, 60 + 1, 460 + 20 + 19),
        *(19, 20 + 19, 40 + 0, 60 + 19 * 20 + 19, 460 + 19 * 20),
    ]


def test_row_with_an_unknown_letter_is_an_error_that_names_the_position(tmp_path):
    path = write(tmp_path / "a.tsv", "1\tACGT\n-1\tACNT\n")
    assert message_of(read_sequences(path)) == (
        f"{path}, line 2: letter 'N' at position 2 is not in the alphabet ACGT; "
        "set data.unknown_letter to skip to drop such rows"
    )


def test_rows_with_unknown_letters_are_skipped_and_counted_on_request(tmp_path):
    path = write(tmp_path / "a.tsv", "1\tACGT\n-1\tACNT\n1\tNNNN\n-1\tTTTT\n")
    source = read_sequences(path, unknown_letter="skip")
    assert rows_of(source) == [(1, "ACGT"), (-1, "TTTT")]
    facts = merge_summaries([source.read(0, None, 1)[1]])
    assert facts.notes == ("2 rows with a letter outside the alphabet were skipped",)
    assert facts.n_rows == 2


def test_unknown_letters_outside_the_window_do_not_matter(tmp_path):
    path = write(tmp_path / "a.tsv", "1\tNACGTN\n-1\tACGTANN\n")
    assert rows_of(read_sequences(path, window=[1, 5])) == [(1, "ACGT"), (-1, "CGTA")]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("1\tACGT\n1\tACG\n", {}, "line 2: a sequence of 3 letters, wanted 4 as in the first"),
        ("1\tACGT\n1\tACGTT\n", {"window": [0, 5]}, "line 1: a sequence of 4 letters, wanted at"),
        ("1\tACGT\n\nmaybe\tACGT\n", {}, "line 3: label 'maybe' is not a finite number"),
        ("1\tACGT\nnan\tACGT\n", {}, "line 2: label 'nan' is not a finite number"),
        ("1\tACGT\n1\n", {"sequence": 1}, "line 2: 1 tab-separated fields, wanted columns 0 and 1"),
        ("> label=1\nACGT\n> labels=1\nACGT\n", {}, "line 3: the header holds no label=..."),
        ("> label=1\nACGT\n> label=\nACGT\n", {}, "line 3: label '' is not a finite number"),
        ("> label=1\nACGT\n> label=1\n", {}, "line 3: a sequence of 0 letters, wanted 4"),
        ("1\tAC\n", {}, "sequences of 2 letters hold no 4-gram"),
    ],
)
def test_bad_records_are_errors_that_name_the_line(tmp_path, text, options, words):
    path = write(tmp_path / "a", text)
    message = message_of(read_sequences(path, **options))
    assert message.startswith(path)
    assert words in message


def test_test_sequences_of_another_length_are_refused(tmp_path):
    path = write(tmp_path / "a.tsv", tsv_of(random_rows(5, 12)))
    facts = merge_summaries([read_sequences(path).read(0, None, 1)[1]])
    longer = write(tmp_path / "b.tsv", tsv_of(random_rows(5, 13)))
    assert "the training data" in message_of(read_sequences(longer).with_stats(facts))
    assert len(rows_of(read_sequences(longer, window=[0, 12]).with_stats(facts))) == 5


def test_columns_of_fasta_are_refused(tmp_path):
    path = write(tmp_path / "a.fa", "> label=1\nACGT\n")
    with pytest.raises(ConfigError, match="FASTA, which has no columns"):
        load_all(read_sequences(path, label=0))
