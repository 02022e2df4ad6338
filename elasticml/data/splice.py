"""A planted model of acceptor splice sites, from which synthetic sequences are drawn.

Every sequence has AG in the middle, as every candidate site has. True sites follow, more or less
strongly, a position weight matrix (TTTCAG|G with a pyrimidine tract before it), and most contain a
branch-point motif upstream; some decoys follow the matrix at half strength. The background's share
of G and C varies from row to row, so that a single letter says little. The probabilities are
invented (rounded from textbook values for acceptors); no real sequence is used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import kernel

ALPHABET: Final = "ACGT"
LENGTH_MIN: Final = 8

#: Background probabilities of A, C, G, T: rich in A and T, balanced, rich in G and C.
_BACKGROUNDS: Final = ((0.34, 0.16, 0.16, 0.34), (0.29, 0.21, 0.21, 0.29), (0.22, 0.28, 0.28, 0.22))
#: Offset from the A of the middle AG -> probabilities of A, C, G, T at a true site.
_SITE: Final = {
    -6: (0.30, 0.16, 0.10, 0.44),
    -5: (0.20, 0.14, 0.10, 0.56),
    -4: (0.12, 0.10, 0.08, 0.70),
    -3: (0.10, 0.10, 0.06, 0.74),
    -2: (0.16, 0.22, 0.14, 0.48),
    -1: (0.08, 0.64, 0.04, 0.24),
    0: (1.0, 0.0, 0.0, 0.0),
    1: (0.0, 0.0, 1.0, 0.0),
    2: (0.32, 0.15, 0.38, 0.15),
    3: (0.26, 0.21, 0.17, 0.36),
}
#: The pyrimidine tract: offsets and probabilities.
_TRACT: Final = (range(-18, -6), (0.23, 0.23, 0.13, 0.41))
#: The branch-point motif, CTAAC, and the range of offsets where it may begin.
_BRANCH: Final = np.array([1, 3, 0, 0, 1], np.uint8)
_BRANCH_OFFSETS: Final = (-42, -19)
_BRANCH_SHARE: Final = 0.7
#: Strength with which a row follows the site's matrix: none, decoy, weak site, strong site.
_STRENGTHS: Final = (0.0, 0.5, 0.9, 1.5)
_DECOY_SHARE: Final = 0.04
_WEAK_SHARE: Final = 0.2


def draw_splice(
    rng: np.random.Generator, n: int, length: int, positive_share: float
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Draw candidate sites and their labels.

    Parameters
    ----------
    n : int
        Rows.
    length : int
        Letters in a row, at least 8; the A of the middle AG is at ``(length - 2) // 2``.
    positive_share : float
        Probability that a row is a true site.

    Returns
    -------
    letters : ndarray (n, length), uint8
        Indices into ``"ACGT"``.
    labels : ndarray (n,), float64
        1 for a true site, -1 otherwise.
    """
    is_site = rng.random(n) < positive_share
    chance = rng.random(n)
    strength = np.where(
        is_site, np.where(chance < _WEAK_SHARE, 2, 3), np.where(chance < _DECOY_SHARE, 1, 0)
    )
    background = rng.integers(0, len(_BACKGROUNDS), n)
    kind = strength * len(_BACKGROUNDS) + background
    raw = np.frombuffer(rng.bytes(n * length), np.uint8).reshape(n, length)
    letters = _look_up(_tables(length), kind, raw)
    _plant_branch_points(rng, letters, is_site)
    return letters, np.where(is_site, 1.0, -1.0)


@lru_cache(maxsize=4)
def _tables(length: int) -> NDArray[np.uint8]:
    """Return the letter for each (kind of row, position, random byte): probabilities in 256ths."""
    centre = (length - 2) // 2
    site = np.zeros((length, 4))
    for offset in _TRACT[0]:
        if centre + offset >= 0:
            site[centre + offset] = _TRACT[1]
    for offset, chances in _SITE.items():
        if 0 <= centre + offset < length:
            site[centre + offset] = chances
    is_free = site.sum(axis=1) == 0
    tables = []
    for strength in _STRENGTHS:
        for background in np.array(_BACKGROUNDS):
            full = np.where(is_free[:, None], background, site)
            mixed = full**strength * background ** (1.0 - strength)
            mixed[centre : centre + 2] = site[centre : centre + 2]
            ends = np.cumsum(mixed / mixed.sum(axis=1, keepdims=True), axis=1)
            bounds = np.round(256 * ends).astype(np.int64)
            # (length, 4) bounds against 256 bytes -> (length, 256) letters
            tables.append((np.arange(256)[None, :, None] >= bounds[:, None, :3]).sum(axis=2))
    stacked = np.array(tables, np.uint8)
    stacked.flags.writeable = False
    return stacked


@kernel
def _look_up(
    tables: NDArray[np.uint8], kind: NDArray[np.int64], raw: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    n, length = raw.shape
    letters = np.empty((n, length), np.uint8)
    for i in range(n):
        table = tables[kind[i]]
        for p in range(length):
            letters[i, p] = table[p, raw[i, p]]
    return letters


def _plant_branch_points(
    rng: np.random.Generator, letters: NDArray[np.uint8], is_site: NDArray[np.bool_]
) -> None:
    """Write the branch-point motif into most true sites, at one of 23 offsets."""
    n, length = letters.shape
    start = rng.integers(*_BRANCH_OFFSETS, n) + (length - 2) // 2
    rows = np.flatnonzero(is_site & (rng.random(n) < _BRANCH_SHARE) & (start >= 0))
    places = start[rows, None] + np.arange(_BRANCH.size)
    letters[rows[:, None], places] = _BRANCH
