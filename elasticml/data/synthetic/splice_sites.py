"""Synthetic splice sites: the planted model, and a source that members generate themselves.

Rows are drawn in blocks, each from its own seed. So any member can generate any block without a
file, and the first rows do not depend on the number of rows. The planted model is fixed: another
seed gives fresh rows of the same problem, such as a test set.

Every sequence has AG in the middle, as every candidate acceptor site has. True sites follow, more
or less strongly, a position weight matrix (TTTCAG|G with a pyrimidine tract before it), and most
contain a branch-point motif upstream; some decoys follow the matrix at half strength. The
background's share of G and C varies from row to row, so that a single letter says little. The
probabilities are invented (rounded from textbook values for acceptors); no real sequence is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.ngrams import cut_letters, sequence_layout
from elasticml.data.chunks.rows import Rows
from elasticml.data.formats import DrawnRows, Format, Width, reader
from elasticml.data.source import BlockInfo, drawn_blocks
from elasticml.errors import ConfigError
from elasticml.ids import ChunkId
from elasticml.specification.settings_model import AS_PAIR, KEEP_INT, Index

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
    letters = _tables(length)[kind[:, None], np.arange(length), raw]
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


def _plant_branch_points(
    rng: np.random.Generator, letters: NDArray[np.uint8], is_site: NDArray[np.bool_]
) -> None:
    """Write the branch-point motif into most true sites, at one of 23 offsets."""
    n, length = letters.shape
    start = rng.integers(*_BRANCH_OFFSETS, n) + (length - 2) // 2
    rows = np.flatnonzero(is_site & (rng.random(n) < _BRANCH_SHARE) & (start >= 0))
    places = start[rows, None] + np.arange(_BRANCH.size)
    letters[rows[:, None], places] = _BRANCH


#: Two whole numbers.
Pair = Annotated[Sequence[int], AS_PAIR]
#: Rows drawn from one seed.
BLOCK_ROWS: Final = 4096
#: Spawn key that separates these draws from others with the same seed.
_PURPOSE: Final = 0x5911CE


class SpliceSource(Format):
    """Return a source of synthetic splice sites that members generate; nothing is drawn yet.

    Parameters
    ----------
    rows : int
        At least 1.
    seed : int
        At least 0. Another seed gives fresh rows of the same problem.
    length : int
        Letters in a row, at least 8.
    positive_share : float
        Probability that a row is a true site, between 0 and 1.
    ngrams : pair of int
        Shortest and longest n-gram, 1 to 4.
    n_columns : int, optional
        Required number of features.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """

    format = "synthetic_splice"
    reader = "synthetic_splice"

    #: The chunks do not depend on it.
    n_columns: Width = Field(default=None, exclude=True)
    rows: DrawnRows = Field(kw_only=False, description="number of examples")
    seed: Index = 0
    length: Annotated[int, Field(ge=LENGTH_MIN, le=2**16)] = 141
    positive_share: Annotated[float, Field(gt=0, lt=1), KEEP_INT] = 0.03
    ngrams: Pair = (1, 4)

    def check(self) -> None:
        """Check constraints between fields."""
        try:
            self._layout()
        except ValueError as error:
            raise ValueError(
                f"ngrams: got {list(self.ngrams)}, wanted [shortest, longest] from 1 to 4: {error}"
            ) from None
        if self.n_columns is not None:
            self.with_columns(self.n_columns)

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 4096 rows."""
        return drawn_blocks(self.rows, BLOCK_ROWS, self.length + 8)

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Generate the letters of one block."""
        seeds = np.random.SeedSequence(self.seed, spawn_key=(_PURPOSE, block))
        # A short last block is the prefix of a full one: rows do not depend on their number.
        letters, labels = draw_splice(
            np.random.default_rng(seeds), BLOCK_ROWS, self.length, self.positive_share
        )
        n = min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS)
        yield Rows(labels=labels[:n], n_columns=self._layout().n_columns, dense=letters[:n])

    def layout_of(self, rows: Rows) -> Layout:
        """Return the layout of sequences."""
        return self._layout()

    def cut(self, rows: Rows, first: ChunkId, chunk_bytes: int) -> list[Chunk]:
        """Partition letters into chunks of codes."""
        letters, ngrams = np.asarray(rows.dense, np.uint8), (self.ngrams[0], self.ngrams[1])
        return cut_letters(letters, rows.labels, ALPHABET, ngrams, first, chunk_bytes)

    def with_columns(self, n_columns: int) -> Self:
        """Return the source if it has ``n_columns`` features; others would have another meaning.

        Raises
        ------
        ConfigError
            When the numbers differ.
        """
        own = self._layout().n_columns
        if own != n_columns:
            raise ConfigError(
                f"synthetic sequences of {self.length} letters have {own} features, the training "
                f"data {n_columns}; set the same data.length and data.ngrams"
            )
        return self.model_copy(update={"n_columns": n_columns})

    def _layout(self) -> Layout:
        return sequence_layout(ALPHABET, self.length, (self.ngrams[0], self.ngrams[1]))


synthetic_splice = reader(SpliceSource)
