"""Compact text of chunk ids of one source, for the story: ``0.0-11 3.5`` (block.first-last)."""

from __future__ import annotations

from collections.abc import Iterable

from elasticml.ids import ChunkId


def format_chunk_ranges(chunks: Iterable[ChunkId]) -> str:
    """Format chunk ids of one source; consecutive ascending ones of a block become one range."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and runs[-1][0] == chunk.block and runs[-1][2] + 1 == chunk.ordinal:
            runs[-1][2] = chunk.ordinal
        else:
            runs.append([chunk.block, chunk.ordinal, chunk.ordinal])
    return " ".join(f"{b}.{i}" if i == j else f"{b}.{i}-{j}" for b, i, j in runs)


def parse_chunk_ranges(text: str, source: str) -> tuple[ChunkId, ...]:
    """Parse the text that :func:`format_chunk_ranges` returned, in the same order.

    Raises
    ------
    ValueError
        When the text is malformed.
    """
    chunks: list[ChunkId] = []
    for run in text.split():
        block, _, ordinals = run.partition(".")
        first, _, last = ordinals.partition("-")
        for ordinal in range(int(first), int(last or first) + 1):
            chunks.append(ChunkId(source, int(block), ordinal))
    return tuple(chunks)
