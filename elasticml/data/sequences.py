"""Sequences with labels, read from TSV or FASTA into chunks of n-gram codes.

Which of the two a file is, its first byte says: FASTA begins with ``>``. Features are the presence
of each n-gram at each position; :mod:`elasticml.data.ngrams` numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np

from elasticml.data.chunk import Chunk, Layout
from elasticml.data.files import (
    FileFacts,
    Piece,
    absolute,
    file_facts,
    fingerprint,
    line_number,
    tells_versions,
    text_blocks,
)
from elasticml.data.ngrams import cut_letters, sequence_layout
from elasticml.data.record_pieces import records_of
from elasticml.data.records import RecordOptions, Records
from elasticml.data.source import (
    BlockInfo,
    BlockSummary,
    DataFacts,
    check_keys,
    resolve_chunk_bytes,
    summarise,
)
from elasticml.errors import ConfigError, DataError
from elasticml.terms import ChunkId

SKIPPED: Final = "{} rows with a letter outside the alphabet were skipped"
_OPTIONS: Final = tuple(option.name for option in fields(RecordOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSource:
    """A file of equal-length sequences; made by :func:`read_sequences`."""

    path: str
    ngrams: tuple[int, int] = (1, 4)
    options: RecordOptions = field(default_factory=RecordOptions)
    #: Features of the training data, which these sequences must have too.
    n_columns: int | None = None

    @property
    def needs_survey(self) -> bool:
        """Never: there are no vocabularies."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether blocks are worth a cache: text is, where a changed file can be told."""
        return tells_versions(self.path)

    def spec(self) -> dict[str, Any]:
        """Name the source in a JSON-able dict."""
        given = {name: getattr(self.options, name) for name in _OPTIONS}
        given["window"] = None if self.options.window is None else list(self.options.window)
        given["n_columns"] = self.n_columns
        named = {name: value for name, value in given.items() if value is not None}
        return {"format": "sequences", "path": self.path, "ngrams": list(self.ngrams), **named}

    def fingerprint(self) -> str:
        """Digest path, options, and the file's size and age."""
        return self._fingerprint(file_facts(self.path))

    def _fingerprint(self, facts: FileFacts) -> str:
        return fingerprint(replace(self, n_columns=None).spec(), facts)

    def blocks(self) -> list[BlockInfo]:
        """List ranges of 8 MiB, or the whole file where it is compressed."""
        return text_blocks(file_facts(self.path))

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        facts = file_facts(self.path)
        pieces, parse = records_of(self.path, block, facts, self.options)
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
            ChunkId(self._fingerprint(facts), block, 0),
            size,
        )
        return chunks, summarise(block, chunks, layout, counts=counts)

    def survey(self, block: int) -> BlockSummary:
        """Summarise a block as reading it does."""
        return self.read(block, None, 1)[1]

    def with_facts(self, facts: DataFacts) -> SequenceSource:
        """Read with the training data's features."""
        return self.with_columns(facts.n_columns)

    def with_columns(self, n_columns: int) -> SequenceSource:
        """Refuse sequences with another number of features: their columns mean other things."""
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
    """Name a file of equal-length sequences with labels; nothing is read.

    Parameters
    ----------
    path : str
        TSV or FASTA, plain, gz, bz2 or xz; anything that fsspec opens.
    alphabet : str
        Letters in the order in which features number them; case does not matter.
    ngrams : pair of int
        Shortest and longest n-gram, 1 to 4.
    window : pair of int, optional
        Letters ``[start, stop)`` of each sequence, from 0.
    label : int or str, optional
        TSV: column, by number (0; negative from the right) or by its name in the first line.
        FASTA: key in the header (``label``), as in ``> position=7, label=-1``.
    sequence : int or str, optional
        TSV: column of the letters (-1).
    unknown_letter : {"error", "skip"}
        What a letter outside the alphabet means: an error, or that its row is left out and counted.
    n_columns : int, optional
        Number of features that the sequences must have.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    if unknown_letter not in ("error", "skip"):
        raise ConfigError(
            f"data.unknown_letter is {unknown_letter!r}, wanted 'error' or 'skip'",
            key="data.unknown_letter",
        )
    for name, column in (("label", label), ("sequence", sequence)):
        if isinstance(column, bool) or not isinstance(column, int | str | None):
            raise ConfigError(
                f"data.{name} is {column!r}, wanted a column number or name", key=f"data.{name}"
            )
    grams, span = _pair("ngrams", ngrams), None if window is None else _pair("window", window)
    if span is not None and not 0 <= span[0] < span[1]:
        raise ConfigError(
            f"data.window is [{span[0]}, {span[1]}], wanted 0 <= start < stop", key="data.window"
        )
    try:
        sequence_layout(alphabet, grams[1] if span is None else span[1] - span[0], grams)
    except ValueError as error:
        raise ConfigError(f"data: {error}", key="data.ngrams") from None
    options = RecordOptions(
        alphabet=alphabet.upper(),
        label=label,
        sequence=sequence,
        window=span,
        unknown_letter="skip" if unknown_letter == "skip" else "error",
    )
    return SequenceSource(path=absolute(path), ngrams=grams, options=options, n_columns=n_columns)


def source_from_spec(spec: Mapping[str, Any]) -> SequenceSource:
    """Make the source that a spec with ``format: sequences`` names.

    Raises
    ------
    ConfigError
        When a key is unknown or missing, or a setting is out of range.
    """
    check_keys(spec, {*_OPTIONS, "ngrams", "n_columns"}, {"path"})
    given = {key: value for key, value in spec.items() if key not in ("format", "path")}
    return read_sequences(str(spec["path"]), **given)


def _pair(name: str, given: Any) -> tuple[int, int]:
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in pair):
        raise ConfigError(f"data.{name} is {given!r}, wanted two whole numbers", key=f"data.{name}")
    return pair[0], pair[1]
