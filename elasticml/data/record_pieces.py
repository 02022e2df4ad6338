"""Split a block of a sequence file into whole records, and choose their parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from elasticml.data.files import FileFacts, Piece, block_pieces, open_binary, read_line
from elasticml.data.records import (
    Fail,
    RecordOptions,
    Records,
    parse_fasta,
    parse_tsv,
    tsv_columns,
)
from elasticml.errors import ConfigError, DataError

#: Parses one piece of whole records; takes the length of earlier sequences.
Parse = Callable[[bytes, int | None, Fail], Records]


def records_of(
    path: str, block: int, info: FileFacts, options: RecordOptions
) -> tuple[Iterator[Piece], Parse]:
    """Return a block's pieces, each of whole records, and the function that parses them.

    Parameters
    ----------
    block : int
        Number of a block of :func:`elasticml.data.files.text_blocks`.

    Raises
    ------
    ConfigError
        When the options name a column and the file is FASTA, which has none.
    DataError
        When no column has the name in the options.
    """
    pieces = block_pieces(path, block, info)
    if block:
        with open_binary(path) as source:
            first_line = read_line(source)
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
        return _fasta_records(path, pieces, info), partial(_parse_fasta, options)
    try:
        columns = tsv_columns(first_line, options)
    except KeyError as error:
        raise DataError(
            f"{path}, line 1: no column is named {error.args[0]!r}, found "
            f"{first_line.decode(errors='replace')[:80]!r}; set data.label and data.sequence",
            path=path,
            line=1,
        ) from None
    if options.has_header and not block:
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


def _fasta_records(path: str, pieces: Iterator[Piece], info: FileFacts) -> Iterator[Piece]:
    """Regroup lines into whole records; a record belongs to the block of its header."""
    if info.compression is None:
        for piece in pieces:
            yield _whole_records(path, piece)
        return
    rest = Piece(text=b"", first_line=1, offset=0)
    for piece in pieces:
        text = rest.text + piece.text
        end = text.rfind(b"\n>") + 1
        if end:
            yield replace(rest, text=text[:end])
        rest = _from(replace(rest, text=text), end)
    yield rest


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
        while (line := read_line(source)) and not line.startswith(b">"):
            tail.append(line)
    return replace(piece, text=piece.text + b"".join(tail))


def _from(piece: Piece, start: int) -> Piece:
    """Return the piece without its first ``start`` bytes, which are whole lines."""
    first = piece.first_line
    if first is not None:
        first += piece.text.count(b"\n", 0, start)
    return Piece(text=piece.text[start:], first_line=first, offset=piece.offset + start)
