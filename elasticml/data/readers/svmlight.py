"""Read svmlight (libsvm) text: ``label index:value index:value ... # comment``, one row a line.

Columns are numbered from 1 by default. With ``zero_based="auto"`` the first 8 MiB of the text
decide for all of it: an index 0 there makes it zero-based, else it is one-based, and an index
0 later on is an error. All members decide alike, as they read the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, cast

import numpy as np

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import Rows, block_layout, cut
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, merge_layout_kinds, summarise
from elasticml.data.readers import svmlight_short as short
from elasticml.data.readers.file_parts import Listing, Part
from elasticml.data.readers.files import (
    Piece,
    absolute,
    block_pieces,
    file_info,
    line_number,
    once_per_version,
    text_blocks,
)
from elasticml.data.source import (
    BlockInfo,
    resolve_chunk_bytes,
)
from elasticml.data.storage.untrusted_files import reads_untrusted_files
from elasticml.errors import DataError
from elasticml.specification.data import SvmlightSpec

ZeroBased = Literal["auto"] | bool

_UNSORTED = "{} rows with unsorted indices were sorted"
_QID = "{} query numbers (qid:) were ignored"
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def read_svmlight(
    path: str,
    *,
    zero_based: ZeroBased = "auto",
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> SvmlightSource:
    """Return a source for an svmlight file; nothing is read yet.

    Parameters
    ----------
    path : str
        Local path or fsspec URL of a file, of a folder of files, or a pattern such as
        ``"logs/*.svm"``. In one file gzip, bzip2 and xz are recognised by the first bytes, in
        several by the suffix.
    zero_based : "auto", True or False
        Whether columns are numbered from 0; "auto" inspects the first 8 MiB of text.
    dtype : "float64" or "float32"
        Type of the stored values.
    n_columns : int, optional
        Number of columns; values beyond them are dropped and counted in a note.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> from sklearn.datasets import dump_svmlight_file
    >>> dump_svmlight_file(X, y, "train.svm")
    >>> em.Job(em.CoCoA(), em.read_svmlight("train.svm"), stop=stop).run(client).summary["features"]
    5
    """
    spec = SvmlightSpec(path=str(path), zero_based=zero_based, dtype=dtype, n_columns=n_columns)
    return source_of(spec)


def source_of(spec: SvmlightSpec) -> SvmlightSource:
    """Build the source from the options of ``format: svmlight``."""
    return SvmlightSource(
        path=absolute(spec.path),
        zero_based=spec.zero_based,
        dtype=spec.dtype,
        n_columns=spec.n_columns,
    )


@reads_untrusted_files
@dataclass(frozen=True, slots=True, kw_only=True)
class SvmlightSource:
    """Svmlight files in blocks of 8 MiB; one block for each that is compressed."""

    path: str
    zero_based: ZeroBased
    dtype: Dtype
    n_columns: int | None = None
    #: Kept by a source that lists its files once.
    listing: Listing | None = field(default=None, compare=False, repr=False)

    @property
    def needs_survey(self) -> bool:
        """Whether blocks must be surveyed first: never."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: text is worth it, if a change of the file can be detected."""
        return self._files().are_versioned

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return {
            "format": "svmlight",
            "path": self.path,
            "zero_based": self.zero_based,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, sizes, modification times and options."""
        return self._files().fingerprint(self.spec())

    def blocks(self) -> list[BlockInfo]:
        """Return byte ranges; raises ConfigError or DataError for a missing or empty file."""
        return [part.block for part in self._files().blocks]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read the rows that begin in one block; see :class:`elasticml.data.source.Source`."""
        files = self._files()
        at = files.block(block)
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        name = files.fingerprint(self.spec())
        base = self._base(files.parts[0])
        chunks: list[Chunk] = []
        layouts: list[Layout] = []
        counts: dict[str, int] = {}
        for piece in block_pieces(at.part.path, at.index, at.part.info):
            rows = replace(self, path=at.part.path)._parse(piece, base, counts)
            if len(rows.labels) or not layouts:
                layouts.append(block_layout(rows, self.dtype))
            start = len(chunks)
            chunks += cut(rows, name, block, size, dtype=self.dtype, first_ordinal=start)
        files.check(at.part)
        kinds = [chunk.layout.kind for chunk in chunks]
        layout = Layout(
            kind=merge_layout_kinds(kinds) if kinds else "binary_csr",
            dtype=self.dtype,
            n_columns=max((part.n_columns for part in layouts), default=0),
        )
        return chunks, summarise(block, chunks, layout, counts=counts, index_base=base)

    def survey(self, block: int) -> BlockSummary:
        """Read and summarise a block; this format does not need it."""
        return self.read(block, None, 1)[1]

    def with_stats(self, facts: DatasetStats) -> SvmlightSource:
        """Return a source with the columns and the index base of the training data."""
        base = facts.index_base
        zero_based = self.zero_based if base is None else base == 0
        return replace(self, n_columns=facts.n_columns, zero_based=zero_based)

    def with_columns(self, n_columns: int) -> SvmlightSource:
        """Return a source with ``n_columns`` columns; values beyond them are dropped."""
        return replace(self, n_columns=n_columns)

    def listed_once(self) -> SvmlightSource:
        """Return a source that lists its files once."""
        return replace(self, listing=self._files())

    def _files(self) -> Listing:
        return self.listing or Listing(self.path, "svmlight", lambda part: text_blocks(part.info))

    def _base(self, first: Part) -> int:
        if self.zero_based == "auto":
            return _find_base(first.path, first.info.token)
        return 0 if self.zero_based else 1

    def _parse(self, piece: Piece, base: int, counts: dict[str, int]) -> Rows:
        """Parse whole lines; add the counts of notes to ``counts``."""
        text = piece.text
        is_short = len(text) <= short.SHORT_BYTES
        if is_short:
            n_lines, n_colons = text.count(b"\n"), text.count(b":")
        else:
            from elasticml.data.readers import svmlight_kernels as kernels  # imports numba

            raw = kernels.as_bytes(text)
            n_lines, n_colons = kernels.count_lines_and_colons(raw)
        n_lines += 1
        out = short.Parsed(
            labels=np.empty(n_lines),
            indptr=np.zeros(n_lines + 1, np.int64),
            indices=np.empty(n_colons, np.int32),
            values=np.empty(n_colons),
            slow=np.empty((n_lines + n_colons, 3), np.int64),
            counters=np.empty(short.N_COUNTERS, np.int64),
        )
        limit = -1 if self.n_columns is None else self.n_columns
        if is_short:
            short.parse(text, base, limit, out)
        else:
            kernels.parse(raw, base, limit, out)
        labels, indptr, indices, values, slow, counters = out
        totals = counters.tolist()
        if totals[short.ERROR]:
            self._refuse_token(piece, totals[short.ERROR], totals[short.ERROR_AT], base)
        inexact = slow[: totals[short.SLOW]]
        exact = np.array([float(text[a:b]) for a, b in inexact[:, :2].tolist()], dtype=np.float64)
        infinite = ~np.isfinite(exact)
        if infinite.any():
            at = int(inexact[np.argmax(infinite), 0])
            self._refuse_token(piece, short.BAD_VALUE, at, base)
        is_label = inexact[:, 2] < 0
        labels[-1 - inexact[is_label, 2]] = exact[is_label]
        values[inexact[~is_label, 2]] = exact[~is_label]
        n_rows, stored = totals[short.ROWS], totals[short.STORED]
        indptr, indices, values = indptr[: n_rows + 1], indices[:stored], values[:stored]
        if totals[short.UNSORTED]:
            sort_rows = short.sort_rows if is_short else kernels.sort_rows
            repeated = sort_rows(indptr, indices, values)
            if repeated >= 0:
                self._refuse_row(piece, repeated)
        dropped = f"{{}} values in columns beyond the {self.n_columns} of the model were dropped"
        for sentence, place in (
            (_UNSORTED, short.UNSORTED),
            (_QID, short.QID),
            (dropped, short.DROPPED),
        ):
            if totals[place]:
                counts[sentence] = counts.get(sentence, 0) + totals[place]
        spanned = totals[short.LAST_COLUMN] + 1 if self.n_columns is None else self.n_columns
        return Rows(
            labels=labels[:n_rows],
            n_columns=spanned,
            indptr=indptr,
            indices=indices,
            values=None if totals[short.OTHERS] == 0 and not len(inexact) else values,
        )

    def _refuse_token(self, piece: Piece, error: int, at: int, base: int) -> NoReturn:
        """Raise the error for the invalid token at byte ``at``."""
        text = piece.text
        start = text.rfind(b"\n", 0, at) + 1
        token = _token_at(text, at)
        line, column = line_number(self.path, piece, at), at - start + 1
        raise DataError(
            f"{self.path}, line {line}, column {column}: {self._complaint(token, error, base)}",
            path=self.path,
            line=line,
            column=column,
        )

    def _complaint(self, token: str, error: int, base: int) -> str:
        index, _, value = token.partition(":")
        shown = repr(token if len(token) <= 40 else token[:37] + "...")
        if error == short.BAD_LABEL:
            return f"label is {shown}, wanted one finite number"
        if error == short.NEGATIVE_INDEX:
            return f"feature index is {index}, wanted an integer of at least {base}"
        if error == short.ZERO_INDEX:
            because = (
                " (no index 0 in its first 8 MiB)"
                if self.zero_based == "auto"
                else " (zero_based: false)"
            )
            return (
                f"feature index is 0 in a file taken as one-based{because}, wanted at least 1; "
                "set zero_based: true if columns are numbered from 0"
            )
        if error == short.LARGE_INDEX:
            return f"feature index is {index}, wanted at most {2**31 - 2 + base}"
        if error == short.BAD_VALUE:
            value = value or token
            hint = (
                "; impute missing values or remove the row" if _NOT_FINITE.fullmatch(value) else ""
            )
            return f"value is {value[:40]!r} in {shown}, wanted a finite number{hint}"
        return f"found {shown}, wanted index:value with a whole number as the index"

    def _refuse_row(self, piece: Piece, row: int) -> NoReturn:
        """Raise the error for a repeated index; ``row`` is the row's number in the piece."""
        at, current_row = 0, -1
        for text in piece.text.split(b"\n"):  # as parsed; a lone carriage return ends no row
            content = text.partition(b"#")[0].split()
            current_row += 1 if content else 0
            if current_row == row and content:
                break
            at += len(text) + 1
        indices: set[int] = set()
        for token in content[1:]:
            if token.startswith(b"qid:"):
                continue
            index = int(token.partition(b":")[0])
            if index in indices:
                break
            indices.add(index)
        line = line_number(self.path, piece, at)
        raise DataError(
            f"{self.path}, line {line}: feature index {index} occurs twice, wanted each once",
            path=self.path,
            line=line,
        )


@once_per_version
def _find_base(path: str, token: str) -> int:
    """Return the index base, 0 or 1, by the first 8 MiB; ``token`` is the file's version."""
    info = file_info(path)
    piece = next(block_pieces(path, 0, info), None)
    text = b"" if piece is None else piece.text
    if len(text) <= short.SHORT_BYTES:
        return 0 if short.has_index_zero(text) else 1
    from elasticml.data.readers import svmlight_kernels as kernels

    return 0 if kernels.has_index_zero(kernels.as_bytes(text)) else 1


def _token_at(text: bytes, at: int) -> str:
    """Return the token that starts at byte ``at``, up to white space or a comment."""
    match = cast("re.Match[bytes]", re.compile(rb"[^\s#]*").match(text, at))
    return match.group().decode("utf-8", "replace")
