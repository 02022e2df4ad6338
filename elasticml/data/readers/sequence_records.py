"""Parse the records of sequence files: tab-separated lines, or FASTA with the label in the header.

A block is a byte range; it is regrouped here into whole records before they are parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.ngrams import UNKNOWN, letter_table
from elasticml.data.readers.files import (
    DataFile,
    FileBlock,
    Piece,
    block_pieces,
    open_binary,
    read_line,
)
from elasticml.data.storage.untrusted_files import LINE_BYTES_MAX
from elasticml.errors import ConfigError, DataError

#: Builds the error for a line (from 0, within the parsed text) and a description.
Fail = Callable[[int, str], DataError]

TSV_LABEL: Final = 0
TSV_SEQUENCE: Final = -1
FASTA_LABEL: Final = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Which fields to take from each record."""

    alphabet: str
    #: TSV: column number (negative: from the right) or name in the first line; FASTA: header key.
    label: int | str | None
    #: TSV only: column of the letters; by default the last.
    sequence: int | str | None
    #: Letters ``[start, stop)`` of each sequence, from 0; by default all.
    window: tuple[int, int] | None
    unknown_letter: Literal["error", "skip"]

    @property
    def has_header(self) -> bool:
        """Whether a TSV file's first line names its columns."""
        return isinstance(self.label, str) or isinstance(self.sequence, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Parsed records: labels (n,) float64, letters (n, length) uint8 indices into the alphabet."""

    labels: NDArray[np.float64]
    letters: NDArray[np.uint8]
    #: Records skipped because of a letter outside the alphabet.
    n_skipped: int


@dataclass(frozen=True, slots=True)
class _Raw:
    labels: list[float]
    sequences: list[bytes]
    #: Line of each record, from 0.
    lines: list[int]


def tsv_columns(first_line: bytes, options: RecordOptions) -> tuple[int, int]:
    """Return the numbers of the label and sequence columns; names are looked up in ``first_line``.

    Raises
    ------
    KeyError
        With the missing name.
    """
    names = [field.strip().decode(errors="replace") for field in first_line.split(b"\t")]

    def number(column: int | str | None, default: int) -> int:
        if not isinstance(column, str):
            return default if column is None else column
        if column not in names:
            raise KeyError(column)
        return names.index(column)

    return number(options.label, TSV_LABEL), number(options.sequence, TSV_SEQUENCE)


def parse_tsv(
    text: bytes, columns: tuple[int, int], options: RecordOptions, length: int | None, fail: Fail
) -> Records:
    """Parse lines of tab-separated fields; blank lines are skipped.

    Parameters
    ----------
    text : bytes
        Whole lines, without the header line.
    columns : tuple of int
        Numbers of the label and sequence columns.
    length : int or None
        Letters in every sequence after the window is applied; None: those of the first sequence.

    Raises
    ------
    DataError
        Built by ``fail``: a missing field, a label that is not a number, a wrong length or letter.
    """
    label_at, sequence_at = columns
    raw = _Raw([], [], [])
    for number, line in enumerate(text.split(b"\n")):
        if not line.strip():
            continue
        fields = line.split(b"\t")
        try:
            label, sequence = fields[label_at], fields[sequence_at]
        except IndexError:
            columns_text = f"columns {label_at} and {sequence_at} for label and sequence"
            raise fail(
                number, f"{len(fields)} tab-separated fields, wanted {columns_text}"
            ) from None
        raw.labels.append(_label(label, number, fail))
        raw.sequences.append(sequence.strip())
        raw.lines.append(number)
    return _letters(raw, options, length, fail)


def parse_fasta(text: bytes, options: RecordOptions, length: int | None, fail: Fail) -> Records:
    """Parse FASTA records: a header ``> ..., label=1, ...``, then lines of letters.

    Parameters
    ----------
    text : bytes
        Whole records.
    length : int or None
        As for :func:`parse_tsv`.

    Raises
    ------
    DataError
        Built by ``fail``: no label in a header, text before the first header, a wrong length or
        letter.
    """
    key = options.label if isinstance(options.label, str) else FASTA_LABEL
    pattern = re.compile(rb"(?:^|[\s,;|>])" + re.escape(key.encode()) + rb"\s*[=:]\s*([^\s,;|]*)")
    raw = _Raw([], [], [])
    parts: list[bytes] = []
    for number, line in enumerate(text.split(b"\n")):
        if line.startswith(b">"):
            if raw.lines:
                raw.sequences.append(b"".join(parts))
            parts = []
            match = pattern.search(line)
            if match is None:
                raise fail(number, f"the header holds no {key}=..., wanted a label; set data.label")
            raw.labels.append(_label(match.group(1), number, fail))
            raw.lines.append(number)
        elif raw.lines:
            parts.append(line.strip())
        elif line.strip():
            raise fail(number, "letters before the first header, wanted a line that begins with >")
    if raw.lines:
        raw.sequences.append(b"".join(parts))
    return _letters(raw, options, length, fail)


def _label(text: bytes, line: int, fail: Fail) -> float:
    try:
        label = float(text)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        shown = text.decode(errors="replace")[:40]
        raise fail(line, f"label {shown!r} is not a finite number; check data.label")
    return label


def _letters(raw: _Raw, options: RecordOptions, length: int | None, fail: Fail) -> Records:
    """Apply the window, check lengths, and encode letters as numbers."""
    sequences, start = raw.sequences, 0
    if options.window is not None:
        start, stop = options.window
        _check_lengths(sequences, raw.lines, lambda n: n >= stop, f"at least {stop}", fail)
        sequences = [sequence[start:stop] for sequence in sequences]
    elif sequences:
        expected = len(sequences[0]) if length is None else length
        text = f"{expected} as in the first; set data.window to cut them"
        _check_lengths(sequences, raw.lines, lambda n: n == expected, text, fail)
    n = len(sequences)
    width = len(sequences[0]) if n else 0
    characters = np.frombuffer(b"".join(sequences), np.uint8).reshape(n, width)
    letters = letter_table(options.alphabet)[characters]
    labels = np.array(raw.labels, np.float64)
    is_bad: NDArray[np.bool_] = (letters == UNKNOWN).any(axis=1)
    if not is_bad.any():
        return Records(labels=labels, letters=letters, n_skipped=0)
    if options.unknown_letter == "error":
        i = int(np.argmax(is_bad))
        p = int(np.argmax(letters[i] == UNKNOWN))
        raise fail(
            raw.lines[i],
            f"letter {chr(characters[i, p])!r} at position {start + p} is not in the alphabet "
            f"{options.alphabet}; set data.unknown_letter to skip to drop such rows",
        )
    n_skipped = int(is_bad.sum())
    return Records(labels=labels[~is_bad], letters=letters[~is_bad], n_skipped=n_skipped)


def _check_lengths(
    sequences: Sequence[bytes],
    lines: Sequence[int],
    fits: Callable[[int], bool],
    expected: str,
    fail: Fail,
) -> None:
    for sequence, line in zip(sequences, lines, strict=True):
        if not fits(len(sequence)):
            raise fail(line, f"a sequence of {len(sequence)} letters, wanted {expected}")


# Split a block of a sequence file into whole records, and choose their parser.

#: Parses one piece of whole records; takes the length of earlier sequences.
Parse = Callable[[bytes, int | None, Fail], Records]


def records_of(block: FileBlock, options: RecordOptions) -> tuple[Iterator[Piece], Parse]:
    """Return a block's pieces, each of whole records, and the function that parses them.

    Parameters
    ----------
    block : FileBlock
        A block of :func:`elasticml.data.readers.files.text_blocks`.

    Raises
    ------
    ConfigError
        When the options name a column and the file is FASTA, which has none.
    DataError
        When no column has the name in the options.
    """
    path, pieces = block.file.path, block_pieces(block)
    if block.first:
        with open_binary(path) as source:
            first_line = read_line(source, path)
    else:
        first = next(pieces, Piece(text=b"", first_line=1, offset=0))
        first_line = first.text.partition(b"\n")[0]
        pieces = chain([first], pieces)
    if first_line.startswith(b">"):
        if options.sequence is not None or isinstance(options.label, int):
            raise ConfigError(
                f"{path} is FASTA, which has no columns; leave out data.sequence and set "
                "data.label to a key of its headers",
                path=path,
            )
        return _fasta_records(block.file, pieces), partial(_parse_fasta, options)
    try:
        columns = tsv_columns(first_line, options)
    except KeyError as error:
        raise DataError(
            f"{path}, line 1: no column is named {error.args[0]!r}, found "
            f"{first_line.decode(errors='replace')[:80]!r}; set data.label and data.sequence",
            path=path,
            line=1,
        ) from None
    if options.has_header and not block.first:
        pieces = _without_first_line(pieces)
    return pieces, partial(_parse_tsv, columns, options)


def _parse_fasta(options: RecordOptions, text: bytes, length: int | None, fail: Fail) -> Records:
    return parse_fasta(text, options, length, fail)


def _parse_tsv(
    columns: tuple[int, int], options: RecordOptions, text: bytes, length: int | None, fail: Fail
) -> Records:
    return parse_tsv(text, columns, options, length, fail)


def _without_first_line(pieces: Iterator[Piece]) -> Iterator[Piece]:
    first = next(pieces)
    _, newline, rest = first.text.partition(b"\n")
    size = len(first.text) - len(rest)
    yield Piece(text=rest, first_line=2 if newline else 1, offset=size)
    yield from pieces


def _fasta_records(file: DataFile, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Regroup lines into whole records; a record belongs to the block of its header."""
    if file.compression is None:
        for piece in pieces:
            yield _whole_records(file.path, piece)
        return
    rest = Piece(text=b"", first_line=1, offset=0)
    for piece in pieces:
        text = rest.text + piece.text
        end = text.rfind(b"\n>") + 1
        if end:
            yield replace(rest, text=text[:end])
        rest = _from(replace(rest, text=text), end)
        _check_record(file.path, len(rest.text))
    yield rest


def _check_record(path: str, nbytes: int) -> None:
    if nbytes > LINE_BYTES_MAX:
        raise DataError(
            f"{path}: a record is longer than {LINE_BYTES_MAX} bytes, wanted headers that begin "
            "with >",
            path=path,
        )


def _whole_records(path: str, piece: Piece) -> Piece:
    """Drop the lines of a record that began in an earlier block, and complete the last one."""
    if piece.offset and not piece.text.startswith(b">"):
        start = piece.text.find(b"\n>") + 1
        piece = _from(piece, start if start else len(piece.text))
    if not piece.text:
        return piece
    tail = []
    with open_binary(path) as source:
        source.seek(piece.offset + len(piece.text))
        n_tail = 0
        while (line := read_line(source, path)) and not line.startswith(b">"):
            tail.append(line)
            n_tail += len(line)
            _check_record(path, n_tail)
    return replace(piece, text=piece.text + b"".join(tail))


def _from(piece: Piece, start: int) -> Piece:
    """Return the piece without its first ``start`` bytes, which are whole lines."""
    first = piece.first_line
    if first is not None:
        first += piece.text.count(b"\n", 0, start)
    return Piece(text=piece.text[start:], first_line=first, offset=piece.offset + start)
