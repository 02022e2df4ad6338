"""Chunk ids of one source as a short text, for the story: ``0.0-11 3.5`` is block, first, last."""

from __future__ import annotations

from collections.abc import Iterable

from elasticml.terms import ChunkId


def runs_of(chunks: Iterable[ChunkId]) -> str:
    """Write chunks of one source; consecutive ones of a block, in ascending order, as one run."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and runs[-1][0] == chunk.block and runs[-1][2] + 1 == chunk.ordinal:
            runs[-1][2] = chunk.ordinal
        else:
            runs.append([chunk.block, chunk.ordinal, chunk.ordinal])
    return " ".join(f"{b}.{i}" if i == j else f"{b}.{i}-{j}" for b, i, j in runs)


def chunks_of(text: str, source: str) -> tuple[ChunkId, ...]:
    """Read back what :func:`runs_of` has written, in the same order.

    Raises
    ------
    ValueError
        When the text is none.
    """
    chunks: list[ChunkId] = []
    for run in text.split():
        block, _, ordinals = run.partition(".")
        first, _, last = ordinals.partition("-")
        for ordinal in range(int(first), int(last or first) + 1):
            chunks.append(ChunkId(source, int(block), ordinal))
    return tuple(chunks)
