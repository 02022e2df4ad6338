"""Labelled sequences from TSV or FASTA, in chunks of n-gram codes.

FASTA is recognised by its first byte, ``>``. The features are the presence of each n-gram at each
position, numbered as in :mod:`elasticml.data.chunks.ngrams`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import numpy as np

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.ngrams import cut_letters, sequence_layout
from elasticml.data.formats import FileFormat, reader
from elasticml.data.readers.files import FileBlock, Piece, line_number
from elasticml.data.readers.sequence_records import RecordOptions, Records, records_of
from elasticml.data.readers.table_encoding import Column
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.specification.settings_model import AS_PAIR

SKIPPED: Final = "{} rows with a letter outside the alphabet were skipped"
#: Two whole numbers.
Pair = Annotated[Sequence[int], AS_PAIR]


class SequenceSource(FileFormat):
    """Return a source for labelled sequences of equal length; nothing is read yet.

    The files are TSV or FASTA.

    Parameters
    ----------
    alphabet : str
        Letters, in the order that numbers the features; case-insensitive.
    ngrams : pair of int
        Shortest and longest n-gram, 1 to 4.
    window : pair of int, optional
        Letters ``[start, stop)`` of each sequence, from 0.
    label : int or str, optional
        TSV: column number (negative: from the right; default 0), or its name in the first line.
        FASTA: key in the header (default ``label``), as in ``> position=7, label=-1``.
    sequence : int or str, optional
        TSV: column of the letters (default -1).
    unknown_letter : {"error", "skip"}
        Effect of a letter outside the alphabet: an error, or its row is skipped and counted.
    n_columns : int, optional
        Required number of features.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> source = em.read_sequences("donors.txt", alphabet="ACGT", ngrams=(1, 3))
    """

    format = "sequences"
    reader = "read_sequences"

    alphabet: str = "ACGT"
    ngrams: Pair = (1, 4)
    window: Pair | None = None
    label: Column | None = None
    sequence: Column | None = None
    unknown_letter: Literal["error", "skip"] = "error"

    def check(self) -> None:
        """Check constraints between fields."""
        start, stop = self.window or (0, self.ngrams[1])
        if not 0 <= start < stop:
            raise ValueError(f"window: got [{start}, {stop}], wanted 0 <= start < stop")
        try:
            sequence_layout(self.alphabet, stop - start, (self.ngrams[0], self.ngrams[1]))
        except ValueError as error:
            raise ConfigError(f"data: {error}", key="data.ngrams") from None

    def options(self) -> dict[str, Any]:
        """Return the options as plain values, on which the chunks depend."""
        return {k: v for k, v in super().options().items() if v is not None and k != "n_columns"}

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return {**super().spec(), "n_columns": self.n_columns}

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Yield the letters of the records of a block."""
        options = RecordOptions(
            alphabet=self.alphabet.upper(),
            label=self.label,
            sequence=self.sequence,
            window=None if self.window is None else (self.window[0], self.window[1]),
            unknown_letter=self.unknown_letter,
        )
        pieces, parse = records_of(block, options)
        length: int | None = None
        parts, n_skipped = list[Records](), 0
        for piece in pieces:
            part = parse(piece.text, length, partial(self._fail, block.file.path, piece))
            n_skipped += part.n_skipped
            if part.labels.size:
                length = part.letters.shape[1]
                parts.append(part)
        yield Rows(
            labels=np.concatenate([part.labels for part in parts] or [np.empty(0)]),
            n_columns=0 if length is None else self._layout(length).n_columns,
            dense=np.concatenate([part.letters for part in parts]) if parts else np.empty((0, 0)),
            notes={SKIPPED: n_skipped},
        )

    def layout_of(self, rows: Rows) -> Layout:
        """Return the layout of sequences."""
        assert rows.dense is not None
        length = rows.dense.shape[1]
        return self._layout(length) if rows.labels.size else Layout(kind="sequence", n_columns=0)

    def cut(self, rows: Rows, first: ChunkId, chunk_bytes: int) -> list[Chunk]:
        """Partition letters into chunks of codes."""
        if not rows.labels.size:
            return []
        letters, ngrams = np.asarray(rows.dense, np.uint8), (self.ngrams[0], self.ngrams[1])
        return cut_letters(letters, rows.labels, self.alphabet.upper(), ngrams, first, chunk_bytes)

    def _layout(self, length: int) -> Layout:
        try:
            layout = sequence_layout(
                self.alphabet.upper(), length, (self.ngrams[0], self.ngrams[1])
            )
        except ValueError as error:
            raise DataError(f"{self.path}: {error}", path=self.path) from None
        if self.n_columns not in (None, layout.n_columns):
            raise DataError(
                f"{self.path}: sequences of {length} letters have {layout.n_columns} features, "
                f"the training data {self.n_columns}; set the same data.window and data.ngrams",
                path=self.path,
            )
        return layout

    def _fail(self, path: str, piece: Piece, line: int, message: str) -> DataError:
        number = line_number(path, piece, 0) + line
        return DataError(f"{path}, line {number}: {message}", path=path, line=number)


read_sequences = reader(SequenceSource)
