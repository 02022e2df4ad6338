"""Labelled DNA sequences of equal length, as a data format of the studies' own.

    data: {format: "support.sequences:Sequences", path: donors.tsv, ngrams: [1, 3]}

A line of a table is a label, a tab, perhaps more columns, and the letters. In FASTA the
label is in the header, as in ``> position=7, label=-1``. The features are the presence of each
n-gram at each position, numbered as in :mod:`elasticml.data.chunks.ngrams`.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.ngrams import cut_letters, sequence_layout
from elasticml.data.chunks.rows import Rows
from elasticml.data.formats import FileFormat, reader
from elasticml.data.readers.files import FileBlock, block_pieces, open_binary
from elasticml.data.synthetic.splice_sites import ALPHABET, Pair
from elasticml.errors import DataError
from elasticml.ids import ChunkId

LABEL: Final = re.compile(rb"\blabel\s*=\s*([^\s,]+)")
#: Number of each letter in the alphabet, upper or lower case; 255 of any other byte.
NUMBERS: Final = np.full(256, 255, np.uint8)
for _number, _letter in enumerate(ALPHABET):
    NUMBERS[[ord(_letter), ord(_letter.lower())]] = _number


class Sequences(FileFormat):
    """Return a source for labelled sequences of A, C, G and T; nothing is read yet.

    Parameters
    ----------
    ngrams : pair of int
        Shortest and longest n-gram, 1 to 4.
    window : pair of int, optional
        Letters ``[start, stop)`` of each sequence, from 0; by default all.
    """

    reader = "read_sequences"

    ngrams: Pair = (1, 4)
    window: Pair | None = None

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Yield the letters of the records that begin in a block."""
        text = b"".join(piece.text for piece in block_pieces(block))
        is_fasta = _begins_with_header(block, text)
        labels, words = fasta_records(block, text) if is_fasta else table_records(text)
        start, stop = self.window or (0, len(words[0]) if words else 0)
        words = [word[start:stop] for word in words]
        if any(len(word) != stop - start for word in words):
            raise DataError(f"{block.file.path}: a sequence is shorter or longer than {stop}")
        letters = NUMBERS[np.frombuffer(b"".join(words), np.uint8)]
        letters = letters.reshape(len(words), stop - start)
        if (letters > len(ALPHABET)).any():
            raise DataError(f"{block.file.path}: a letter is none of {ALPHABET}")
        yield Rows(
            labels=np.array(labels, np.float64),
            n_columns=self._layout(letters.shape[1]).n_columns if words else 0,
            dense=letters,
        )

    def layout_of(self, rows: Rows) -> Layout:
        """Return the layout of sequences."""
        assert rows.dense is not None
        if not rows.labels.size:
            return Layout(kind="sequence", n_columns=0)
        return self._layout(rows.dense.shape[1])

    def cut(self, rows: Rows, first: ChunkId, chunk_bytes: int) -> list[Chunk]:
        """Partition letters into chunks of codes."""
        if not rows.labels.size:
            return []
        letters, ngrams = np.asarray(rows.dense, np.uint8), (self.ngrams[0], self.ngrams[1])
        return cut_letters(letters, rows.labels, ALPHABET, ngrams, first, chunk_bytes)

    def _layout(self, length: int) -> Layout:
        layout = sequence_layout(ALPHABET, length, (self.ngrams[0], self.ngrams[1]))
        if self.n_columns not in (None, layout.n_columns):
            raise DataError(
                f"{self.path}: sequences of {length} letters have {layout.n_columns} features, "
                f"the training data {self.n_columns}; set the same window and ngrams"
            )
        return layout


def table_records(text: bytes) -> tuple[list[float], list[bytes]]:
    """Return the labels and letters of lines: the first column, and the last."""
    rows = [line.split(b"\t") for line in text.split(b"\n") if line.strip()]
    return [float(row[0]) for row in rows], [row[-1].strip() for row in rows]


def fasta_records(block: FileBlock, text: bytes) -> tuple[list[float], list[bytes]]:
    """Return the labels and letters of the records whose header is among the lines of a block."""
    records = re.split(rb"(?:^|\n)>", text)[1:]
    if records and block.file.compression is None:
        records[-1] += _rest_of_record(block)
    labels, words = [], []
    for record in records:
        header, *lines = record.split(b"\n")
        label = LABEL.search(header)
        if label is None:
            raise DataError(f"{block.file.path}: header {header!r} has no label=...")
        labels.append(float(label[1]))
        words.append(b"".join(line.strip() for line in lines))
    return labels, words


def _begins_with_header(block: FileBlock, text: bytes) -> bool:
    if block.first == 0:
        return text.startswith(b">")
    with open_binary(block.file.path) as file:
        return file.read(1) == b">"


def _rest_of_record(block: FileBlock) -> bytes:
    """Return the lines after a block that begin no record."""
    lines = []
    with open_binary(block.file.path) as file:
        file.seek(block.stop - 1)
        file.readline()
        while (line := file.readline()) and not line.startswith(b">"):
            lines.append(line)
    return b"".join(lines)


read_sequences = reader(Sequences)
