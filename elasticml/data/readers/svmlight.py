"""Read svmlight (libsvm) text: ``label index:value index:value ... # comment``, one row a line.

Columns are numbered from 1 by default. With ``zero_based="auto"`` the first 8 MiB of the text
decide for all of it: an index 0 there makes it zero-based, else it is one-based, and an index
0 later on is an error. All members decide alike, as they read the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.rows import Rows
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.formats import FileFormat, reader
from elasticml.data.readers.files import (
    FileBlock,
    Piece,
    block_pieces,
    file_info,
    line_number,
    once_per_version,
    text_blocks,
)
from elasticml.errors import DataError

if TYPE_CHECKING:
    from elasticml.data.readers.svmlight_kernels import Parsed

_UNSORTED = "{} rows with unsorted indices were sorted"
_QID = "{} query numbers (qid:) were ignored"
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class SvmlightSource(FileFormat):
    """Return a source for svmlight files; nothing is read yet.

    Parameters
    ----------
    zero_based : "auto", True or False
        Whether columns are numbered from 0; "auto" inspects the first 8 MiB of text.

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

    format = "svmlight"
    suffixes = (".svm", ".svmlight", ".libsvm")
    reader = "read_svmlight"

    zero_based: bool | Literal["auto"] = "auto"

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Yield the rows that begin in one block."""
        base = self._base()
        for piece in block_pieces(block):
            yield self._parse(block.file.path, piece, base)

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return the number of the first column."""
        return {"index_base": self._base()}

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source with the columns and the index base of the training data."""
        base = facts.index_base
        zero_based = self.zero_based if base is None else base == 0
        return self.model_copy(update={"n_columns": facts.n_columns, "zero_based": zero_based})

    def _base(self) -> int:
        if self.zero_based == "auto":
            first = self.files.files[0]
            return _find_base(first.path, first.token)
        return 0 if self.zero_based else 1

    def _parse(self, path: str, piece: Piece, base: int) -> Rows:
        """Parse whole lines."""
        from elasticml.data.readers import svmlight_kernels as kernels

        text = piece.text
        out = _parsed(text, base, -1 if self.n_columns is None else self.n_columns)
        labels, indptr, indices, values, slow, counters = out
        totals = counters.tolist()
        if totals[kernels.ERROR]:
            self._refuse_token(path, piece, totals[kernels.ERROR], totals[kernels.ERROR_AT], base)
        inexact = slow[: totals[kernels.SLOW]]
        exact = np.array([float(text[a:b]) for a, b in inexact[:, :2].tolist()], dtype=np.float64)
        infinite = ~np.isfinite(exact)
        if infinite.any():
            at = int(inexact[np.argmax(infinite), 0])
            self._refuse_token(path, piece, kernels.BAD_VALUE, at, base)
        is_label = inexact[:, 2] < 0
        labels[-1 - inexact[is_label, 2]] = exact[is_label]
        values[inexact[~is_label, 2]] = exact[~is_label]
        n_rows, stored = totals[kernels.ROWS], totals[kernels.STORED]
        indptr, indices, values = indptr[: n_rows + 1], indices[:stored], values[:stored]
        if totals[kernels.UNSORTED]:
            indices, values, repeated = _sorted(indptr, indices, values)
            if repeated is not None:
                _refuse_row(path, piece, repeated)
        dropped = f"{{}} values in columns beyond the {self.n_columns} of the model were dropped"
        sentences = {
            _UNSORTED: kernels.UNSORTED,
            _QID: kernels.QID,
            dropped: kernels.DROPPED,
        }
        spanned = totals[kernels.LAST_COLUMN] + 1 if self.n_columns is None else self.n_columns
        return Rows(
            labels=labels[:n_rows],
            n_columns=spanned,
            indptr=indptr,
            indices=indices,
            values=None if totals[kernels.OTHERS] == 0 and not len(inexact) else values,
            notes={note: totals[at] for note, at in sentences.items() if totals[at]},
        )

    def _refuse_token(self, path: str, piece: Piece, error: int, at: int, base: int) -> NoReturn:
        """Raise the error for the invalid token at byte ``at``."""
        text = piece.text
        start = text.rfind(b"\n", 0, at) + 1
        token = _token_at(text, at)
        line, column = line_number(path, piece, at), at - start + 1
        raise DataError(
            f"{path}, line {line}, column {column}: {self._complaint(token, error, base)}"
        )

    def _complaint(self, token: str, error: int, base: int) -> str:
        from elasticml.data.readers import svmlight_kernels as kernels

        index, _, value = token.partition(":")
        index, shown = _cut(index), repr(_cut(token))
        if error == kernels.BAD_LABEL:
            return f"label is {shown}, wanted one finite number"
        if error == kernels.NEGATIVE_INDEX:
            return f"feature index is {index}, wanted an integer of at least {base}"
        if error == kernels.ZERO_INDEX:
            because = (
                " (no index 0 in its first 8 MiB)"
                if self.zero_based == "auto"
                else " (zero_based: false)"
            )
            return (
                f"feature index is 0 in a file taken as one-based{because}, wanted at least 1; "
                "set zero_based: true if columns are numbered from 0"
            )
        if error == kernels.LARGE_INDEX:
            return f"feature index is {index}, wanted at most {2**31 - 2 + base}"
        if error == kernels.BAD_VALUE:
            value = value or token
            hint = (
                "; impute missing values or remove the row" if _NOT_FINITE.fullmatch(value) else ""
            )
            return f"value is {value[:40]!r} in {shown}, wanted a finite number{hint}"
        return f"found {shown}, wanted index:value with a whole number as the index"


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _refuse_row(path: str, piece: Piece, row: int) -> NoReturn:
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
    line = line_number(path, piece, at)
    raise DataError(f"{path}, line {line}: feature index {index} occurs twice, wanted each once")


@once_per_version
def _find_base(path: str, token: str) -> int:
    """Return the index base, 0 or 1, by the first 8 MiB; ``token`` is the file's version."""
    from elasticml.data.readers import svmlight_kernels as kernels

    piece = next(block_pieces(text_blocks(file_info(path))[0]), None)
    counters = _parsed(b"" if piece is None else piece.text, 1, -1).counters
    return 0 if counters[kernels.ERROR] == kernels.ZERO_INDEX else 1


def _parsed(text: bytes, base: int, limit: int) -> Parsed:
    """Parse whole lines, up to the first error; see :func:`.svmlight_kernels.parse`."""
    from elasticml.data.readers import svmlight_kernels as kernels  # imports numba

    raw = np.frombuffer(text, np.uint8)
    n_lines = int(np.count_nonzero(raw == ord("\n"))) + 1
    n_colons = int(np.count_nonzero(raw == ord(":")))
    out = kernels.Parsed(
        labels=np.empty(n_lines),
        indptr=np.zeros(n_lines + 1, np.int64),
        indices=np.empty(n_colons, np.int32),
        values=np.empty(n_colons),
        slow=np.empty((n_lines + n_colons, 3), np.int64),
        counters=np.empty(kernels.N_COUNTERS, np.int64),
    )
    kernels.parse(raw, base, limit, out)
    return out


def _sorted(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64], int | None]:
    """Return indices and values sorted within rows, and the first row with one index twice."""
    import scipy.sparse

    shape = (indptr.size - 1, int(indices.max(initial=0)) + 1)
    sorted_ = scipy.sparse.csr_array((values, indices, indptr), shape=shape)
    sorted_.sort_indices()
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    twice = np.flatnonzero((np.diff(sorted_.indices) == 0) & (np.diff(rows) == 0))
    repeated = int(rows[twice[0]]) if twice.size else None
    return sorted_.indices.astype(np.int32, copy=False), sorted_.data, repeated


def _token_at(text: bytes, at: int) -> str:
    """Return the token that starts at byte ``at``, up to white space or a comment."""
    match = cast("re.Match[bytes]", re.compile(rb"[^\s#]*").match(text, at))
    return match.group().decode("utf-8", "replace")


read_svmlight = reader(SvmlightSource)
