"""Read labelled sequences from TSV or FASTA into chunks of n-gram codes.

FASTA is recognised by its first byte, ``>``. The features are the presence of each n-gram at each
position, numbered as in :mod:`elasticml.data.chunks.ngrams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.ngrams import cut_letters, sequence_layout
from elasticml.data.readers.files import (
    FileInfo,
    Piece,
    absolute,
    file_info,
    fingerprint,
    is_versioned,
    line_number,
    text_blocks,
)
from elasticml.data.readers.sequence_records import RecordOptions, Records, records_of
from elasticml.data.source import (
    BlockInfo,
    BlockSummary,
    DatasetStats,
    resolve_chunk_bytes,
    summarise,
)
from elasticml.data.storage.untrusted_files import reads_untrusted_files
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.specification.data import SequencesSpec

SKIPPED: Final = "{} rows with a letter outside the alphabet were skipped"
_OPTIONS: Final = tuple(option.name for option in fields(RecordOptions))


@reads_untrusted_files
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSource:
    """A file of equal-length sequences; made by :func:`read_sequences`."""

    path: str
    ngrams: tuple[int, int]
    options: RecordOptions
    #: Number of features of the training data, which must match.
    n_columns: int | None = None

    @property
    def needs_survey(self) -> bool:
        """Whether blocks must be surveyed first: never, as there are no vocabularies."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: text is worth it, if a change of the file can be detected."""
        return is_versioned(self.path)

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        options = {name: getattr(self.options, name) for name in _OPTIONS}
        options["window"] = None if self.options.window is None else list(self.options.window)
        options["n_columns"] = self.n_columns
        present = {name: value for name, value in options.items() if value is not None}
        return {"format": "sequences", "path": self.path, "ngrams": list(self.ngrams), **present}

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, options, and the file's size and modification time."""
        return self._fingerprint(file_info(self.path))

    def _fingerprint(self, info: FileInfo) -> str:
        return fingerprint(replace(self, n_columns=None).spec(), info)

    def blocks(self) -> list[BlockInfo]:
        """Return byte ranges of 8 MiB, or the whole file if it is compressed."""
        return text_blocks(file_info(self.path))

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        info = file_info(self.path)
        pieces, parse = records_of(self.path, block, info, self.options)
        parts: list[Records] = []
        length: int | None = None
        n_skipped = 0
        for piece in pieces:
            part = parse(piece.text, length, partial(self._fail, piece))
            n_skipped += part.n_skipped
            if part.labels.size:
                length = part.letters.shape[1]
                parts.append(part)
        counts = {SKIPPED: n_skipped}
        if length is None:
            return [], summarise(block, [], Layout(kind="sequence", n_columns=0), counts=counts)
        layout = self._layout(length)
        chunks = cut_letters(
            np.concatenate([part.letters for part in parts]),
            np.concatenate([part.labels for part in parts]),
            self.options.alphabet,
            self.ngrams,
            ChunkId(self._fingerprint(info), block, 0),
            size,
        )
        return chunks, summarise(block, chunks, layout, counts=counts)

    def survey(self, block: int) -> BlockSummary:
        """Read and summarise a block."""
        return self.read(block, None, 1)[1]

    def with_stats(self, facts: DatasetStats) -> SequenceSource:
        """Return a source that requires the training data's number of features."""
        return self.with_columns(facts.n_columns)

    def with_columns(self, n_columns: int) -> SequenceSource:
        """Return a source that rejects sequences with another number of features."""
        return replace(self, n_columns=n_columns)

    def _layout(self, length: int) -> Layout:
        try:
            layout = sequence_layout(self.options.alphabet, length, self.ngrams)
        except ValueError as error:
            raise DataError(f"{self.path}: {error}", path=self.path) from None
        if self.n_columns not in (None, layout.n_columns):
            raise DataError(
                f"{self.path}: sequences of {length} letters have {layout.n_columns} features, "
                f"the training data {self.n_columns}; set the same data.window and data.ngrams",
                path=self.path,
            )
        return layout

    def _fail(self, piece: Piece, line: int, message: str) -> DataError:
        number = line_number(self.path, piece, 0) + line
        return DataError(f"{self.path}, line {number}: {message}", path=self.path, line=number)


def read_sequences(
    path: str,
    *,
    alphabet: str = "ACGT",
    ngrams: Sequence[int] = (1, 4),
    window: Sequence[int] | None = None,
    label: int | str | None = None,
    sequence: int | str | None = None,
    unknown_letter: str = "error",
    n_columns: int | None = None,
) -> SequenceSource:
    """Return a source for a file of labelled sequences of equal length; nothing is read yet.

    Parameters
    ----------
    path : str
        TSV or FASTA, plain, gz, bz2 or xz; any path or URL that fsspec opens.
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
    return source_of(
        SequencesSpec(
            path=str(path),
            alphabet=alphabet,
            ngrams=ngrams,  # type: ignore[arg-type]
            window=window,  # type: ignore[arg-type]
            label=label,
            sequence=sequence,
            unknown_letter=unknown_letter,  # type: ignore[arg-type]
            n_columns=n_columns,
        )
    )


def source_of(spec: SequencesSpec) -> SequenceSource:
    """Build the source from the options of ``format: sequences``.

    Raises
    ------
    ConfigError
        When the n-grams have too many features for the alphabet.
    """
    grams, span = spec.ngrams, spec.window
    try:
        sequence_layout(spec.alphabet, grams[1] if span is None else span[1] - span[0], grams)
    except ValueError as error:
        raise ConfigError(f"data: {error}", key="data.ngrams") from None
    options = RecordOptions(
        alphabet=spec.alphabet.upper(),
        label=spec.label,
        sequence=spec.sequence,
        window=span,
        unknown_letter=spec.unknown_letter,
    )
    return SequenceSource(
        path=absolute(spec.path), ngrams=grams, options=options, n_columns=spec.n_columns
    )
