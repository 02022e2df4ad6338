"""Synthetic splice sites; members generate any number of rows.

Rows are drawn in blocks, each from its own seed. So any member can generate any block without a
file, and the first rows do not depend on the number of rows. The planted model is fixed: another
seed gives fresh rows of the same problem, such as a test set.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk
from elasticml.data.files import fingerprint
from elasticml.data.ngrams import cut_letters, sequence_layout
from elasticml.data.source import (
    BlockInfo,
    BlockSummary,
    check_keys,
    check_whole,
    drawn_blocks,
    resolve_chunk_bytes,
    summarise,
)
from elasticml.data.splice import ALPHABET, LENGTH_MIN, draw_splice
from elasticml.data.surveyless import Surveyless
from elasticml.errors import ConfigError
from elasticml.terms import ChunkId

#: Rows drawn from one seed.
BLOCK_ROWS: Final = 4096
#: Spawn key that separates these draws from others with the same seed.
_PURPOSE: Final = 0x5911CE
_OPENERS: Final[dict[str, Callable[..., Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSequences:
    """Letters (n, length) uint8, indices into ``"ACGT"``, and labels (n,), 1.0 or -1.0."""

    letters: NDArray[np.uint8]
    labels: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceSource(Surveyless):
    """Synthetic splice sites; made by :func:`synthetic_splice`."""

    rows: int
    seed: int = 0
    length: int = 141
    positive_share: float = 0.03
    ngrams: tuple[int, int] = (1, 4)
    #: Number of features of the training data, which must match.
    n_columns: int | None = None

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        width = {} if self.n_columns is None else {"n_columns": self.n_columns}
        return {
            "format": "synthetic_splice",
            "rows": self.rows,
            "seed": self.seed,
            "length": self.length,
            "positive_share": self.positive_share,
            "ngrams": list(self.ngrams),
            **width,
        }

    def fingerprint(self) -> str:
        """Digest the spec."""
        return fingerprint(replace(self, n_columns=None).spec())

    def blocks(self) -> list[BlockInfo]:
        """Return blocks of 4096 rows."""
        return drawn_blocks(self.rows, BLOCK_ROWS, self.length + 8)

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Generate one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        drawn = _draw_block(self, block)
        layout = sequence_layout(ALPHABET, self.length, self.ngrams)
        first = ChunkId(self.fingerprint(), block, 0)
        chunks = cut_letters(drawn.letters, drawn.labels, ALPHABET, self.ngrams, first, size)
        return chunks, summarise(block, chunks, layout)

    def with_columns(self, n_columns: int) -> Self:
        """Return the source if it has ``n_columns`` features; others would have another meaning.

        Raises
        ------
        ConfigError
            When the numbers differ.
        """
        own = sequence_layout(ALPHABET, self.length, self.ngrams).n_columns
        if own != n_columns:
            raise ConfigError(
                f"synthetic sequences of {self.length} letters have {own} features, the training "
                f"data {n_columns}; set the same data.length and data.ngrams",
                key="data.length",
            )
        return replace(self, n_columns=n_columns)


def synthetic_splice(
    rows: int,
    *,
    seed: int = 0,
    length: int = 141,
    positive_share: float = 0.03,
    ngrams: Sequence[int] = (1, 4),
    n_columns: int | None = None,
) -> SpliceSource:
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
    for name, number, least in (
        ("rows", rows, 1),
        ("seed", seed, 0),
        ("length", length, LENGTH_MIN),
    ):
        check_whole(name, number, least)
    if not isinstance(positive_share, int | float) or not 0 < positive_share < 1:
        raise ConfigError(
            f"data.positive_share is {positive_share!r}, wanted a number between 0 and 1",
            key="data.positive_share",
        )
    try:
        lo, hi = ngrams
        sequence_layout(ALPHABET, length, (lo, hi))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data.ngrams is {ngrams!r}, wanted [shortest, longest] from 1 to 4: {error}",
            key="data.ngrams",
        ) from None
    source = SpliceSource(
        rows=rows, seed=seed, length=length, positive_share=positive_share, ngrams=(lo, hi)
    )
    return source if n_columns is None else source.with_columns(n_columns)


def source_from_spec(spec: Mapping[str, Any]) -> SpliceSource:
    """Build the source from a spec with ``format: synthetic_splice``.

    Raises
    ------
    ConfigError
        When a key is unknown or missing, or a setting is out of range.
    """
    check_keys(spec, {"seed", "length", "positive_share", "ngrams", "n_columns"}, {"rows"})
    options = {key: value for key, value in spec.items() if key not in ("format", "rows")}
    return synthetic_splice(spec["rows"], **options)


def _draw_block(source: SpliceSource, block: int) -> LabelledSequences:
    seeds = np.random.SeedSequence(source.seed, spawn_key=(_PURPOSE, block))
    # A short last block is the prefix of a full one: rows do not depend on their number.
    letters, labels = draw_splice(
        np.random.default_rng(seeds), BLOCK_ROWS, source.length, source.positive_share
    )
    n = min(BLOCK_ROWS, source.rows - block * BLOCK_ROWS)
    return LabelledSequences(letters=letters[:n], labels=labels[:n])


def make_splice(
    n: int, seed: int = 0, *, length: int = 141, positive_share: float = 0.03
) -> LabelledSequences:
    """Generate the rows of :func:`synthetic_splice` with these settings in this process.

    Parameters
    ----------
    n, seed, length, positive_share
        As ``rows`` and the other parameters of :func:`synthetic_splice`.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    source = synthetic_splice(
        n, seed=seed, length=length, positive_share=positive_share, ngrams=(1, 1)
    )
    drawn = [_draw_block(source, block.index) for block in source.blocks()]
    return LabelledSequences(
        letters=np.concatenate([part.letters for part in drawn]),
        labels=np.concatenate([part.labels for part in drawn]),
    )


def write_splice(
    path: str | Path,
    n: int,
    seed: int = 0,
    *,
    length: int = 141,
    positive_share: float = 0.03,
) -> None:
    """Write ``make_splice(...)`` as TSV, label first, for ``format: sequences``.

    Parameters
    ----------
    path : path
        Compressed if it ends in ``.gz``, ``.bz2`` or ``.xz``.
    """
    source = synthetic_splice(n, seed=seed, length=length, positive_share=positive_share)
    opener = _OPENERS.get(Path(path).suffix, open)
    letters = np.frombuffer(ALPHABET.encode(), np.uint8)
    with cast(BinaryIO, opener(path, "wb")) as out:
        for block in source.blocks():
            drawn = _draw_block(source, block.index)
            words = letters[drawn.letters]
            lines = [
                b"%d\t%s\n" % (label, word.tobytes())
                for label, word in zip(drawn.labels, words, strict=True)
            ]
            out.write(b"".join(lines))
