"""Positional n-grams: the numbering of a sequence's features, and the encoding of its letters.

A sequence of ``length`` letters over an alphabet of size ``sigma`` has one binary feature for each
n-gram of ``lo <= n <= hi`` letters at each position where it fits. Features are numbered n-major:
first all ``lo``-grams, position by position, then the next longer ones. The n-gram with letters
``a_0 .. a_{n-1}`` (indices into the alphabet) at position p (from 0) has the column

    ``first[n] + p * sigma**n + (a_0 * sigma**(n-1) + ... + a_{n-1})``,

so that the features of one row ascend. 141 letters of ACGT with n = 1..4 have 47,028 features, 558
of them set.

A row is stored as ``length`` one-byte codes: at each position the number of the hi-gram that begins
there, padded beyond the end with the first letter of the alphabet. The shorter n-grams are its
leading letters, so ``X = onehot(codes) @ A`` for a fixed matrix ``A``; see
``fold_weights`` in data/chunks/kernels.py. This requires ``sigma**hi <= 256``. Beyond that the
tables outgrow the caches (and a code its byte), and rows are stored as binary CSR with the same
numbering.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk, Layout, sequence_chunk
from elasticml.data.chunks.rows import Rows, cut, row_bounds
from elasticml.ids import ChunkId

#: Hi-grams that a one-byte code can number.
CODES_MAX = 256
#: Longest n-gram.
N_MAX = 4


def first_columns(sigma: int, length: int, ngrams: tuple[int, int]) -> NDArray[np.int64]:
    """Return the first column of each n-gram length lo..hi, then the number of columns.

    Parameters
    ----------
    sigma : int
        Letters in the alphabet.
    length : int
        Letters in a sequence.
    ngrams : tuple (lo, hi)

    Returns
    -------
    ndarray (hi - lo + 2,), int64
    """
    lo, hi = ngrams
    sizes = [max(length - n + 1, 0) * sigma**n for n in range(lo, hi + 1)]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def sequence_layout(alphabet: str, length: int, ngrams: tuple[int, int]) -> Layout:
    """Return the layout of sequences: codes if one byte suffices, else binary CSR.

    Parameters
    ----------
    alphabet : str
        Distinct letters; their order numbers them.
    length : int
        Letters in a sequence, at least ``hi``.
    ngrams : tuple (lo, hi)
        Shortest and longest n-gram, ``1 <= lo <= hi <= 4``.

    Raises
    ------
    ValueError
        When the alphabet repeats a letter or the n-grams do not fit.
    """
    lo, hi = ngrams
    sigma = len(alphabet)
    if sigma < 2 or len(set(alphabet.upper())) != sigma or not alphabet.isascii():
        raise ValueError(f"alphabet {alphabet!r} needs at least 2 distinct ASCII letters")
    if not 1 <= lo <= hi <= N_MAX:
        raise ValueError(f"ngrams [{lo}, {hi}] need 1 <= shortest <= longest <= {N_MAX}")
    if length < hi:
        raise ValueError(f"sequences of {length} letters hold no {hi}-gram; wanted >= {hi} letters")
    columns = int(first_columns(sigma, length, ngrams)[-1])
    if columns >= 2**31:
        raise ValueError(f"{columns} features, at most {2**31 - 1}; use shorter n-grams")
    if sigma**hi > CODES_MAX:
        return Layout(kind="binary_csr", n_columns=columns)
    return Layout(
        kind="sequence", n_columns=columns, alphabet=alphabet, length=length, ngrams=(lo, hi)
    )


@kernel
def codes_of_letters(letters: NDArray[np.uint8], sigma: int, hi: int) -> NDArray[np.uint8]:
    """Encode each position by the hi-gram that begins there.

    Parameters
    ----------
    letters : ndarray (n, length), uint8
        Numbers below ``sigma``.
    sigma, hi : int
        With ``sigma**hi <= 256``.

    Returns
    -------
    ndarray (n, length), uint8
    """
    n, length = letters.shape
    codes = np.empty((n, length), np.uint8)
    highest = sigma ** (hi - 1)
    for i in range(n):
        code = 0
        for p in range(length - 1, -1, -1):
            code = code // sigma + letters[i, p] * highest
            codes[i, p] = code
    return codes


@kernel
def indices_of_letters(
    letters: NDArray[np.uint8], sigma: int, lo: int, hi: int, first: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the set columns of every row, ascending.

    Parameters
    ----------
    letters : ndarray (n, length), uint8
        Numbers below ``sigma``.
    first : ndarray, int64
        As returned by :func:`first_columns`.

    Returns
    -------
    ndarray (n, k), int32
        ``k = sum over n of (length - n + 1)``, the same for every row.
    """
    rows, length = letters.shape
    k = 0
    for n in range(lo, hi + 1):
        k += length - n + 1
    out = np.empty((rows, k), np.int32)
    for i in range(rows):
        j = 0
        for n in range(lo, hi + 1):
            n_grams = sigma**n
            for p in range(length - n + 1):
                gram = 0
                for q in range(p, p + n):
                    gram = gram * sigma + letters[i, q]
                out[i, j] = first[n - lo] + p * n_grams + gram
                j += 1
    return out


def cut_letters(
    letters: NDArray[np.uint8],
    labels: NDArray[np.float64],
    alphabet: str,
    ngrams: tuple[int, int],
    block: ChunkId,
    chunk_bytes: int,
) -> list[Chunk]:
    """Partition sequences into chunks with the layout of :func:`sequence_layout`.

    Parameters
    ----------
    letters : ndarray (n, length), uint8
        Indices into the alphabet.
    labels : ndarray (n,), float64
    block : ChunkId
        Id of the first chunk; later ones increment its ordinal.
    chunk_bytes : int
        Most bytes of a chunk; a chunk holds at least one row.
    """
    n, length = letters.shape
    sigma, (lo, hi) = len(alphabet), ngrams
    layout = sequence_layout(alphabet, length, ngrams)
    if layout.kind == "binary_csr":
        first = first_columns(sigma, length, ngrams)
        indices = indices_of_letters(letters, sigma, lo, hi, first)
        rows = Rows(
            labels=labels,
            n_columns=layout.n_columns,
            indptr=np.arange(n + 1, dtype=np.int64) * indices.shape[1],
            indices=indices.ravel(),
        )
        return cut(rows, block.source, block.block, chunk_bytes, first_ordinal=block.ordinal)
    codes = codes_of_letters(letters, sigma, hi)
    bounds = row_bounds(np.full(n, length + 8, np.int64), chunk_bytes).tolist()
    return [
        sequence_chunk(
            ChunkId(block.source, block.block, block.ordinal + i), labels[a:b], codes[a:b], layout
        )
        for i, (a, b) in enumerate(pairwise(bounds))
    ]


def letters_of_codes(codes: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
    """Recover the letters' numbers from a sequence chunk's codes; same shape."""
    sigma, hi = len(layout.alphabet), layout.ngrams[1]
    return np.floor_divide(codes, np.uint8(sigma ** (hi - 1)))
