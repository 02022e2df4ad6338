"""Story records of chunk locations, which a replay needs: ownership, moves and drops.

Only changes are recorded; a steady round has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.chunk_ranges import format_chunk_ranges

StoryEntry = tuple[str, dict[str, Any]]


def _read(event: ev.BlockRead) -> StoryEntry | None:
    if not event.chunks:  # a survey
        return None
    fields = {"member": str(event.member), "block": event.block, "digest": event.digest}
    return "BlockRead", fields


def _loaded(event: ev.ChunksLoaded) -> StoryEntry:
    fields: dict[str, Any] = {
        "member": str(event.member),
        "chunks": format_chunk_ranges(event.chunks),
    }
    if event.source is not None:
        fields |= {"source": str(event.source), "order": event.order}
    return "ChunksLoaded", fields


def _dropped(event: ev.ChunksDropped) -> StoryEntry:
    return "ChunksDropped", {
        "member": str(event.member),
        "chunks": format_chunk_ranges(event.chunks),
    }


def _given(order: cmd.GiveChunks) -> StoryEntry:
    return "ChunksGiven", {
        "member": str(order.member),
        "target": str(order.target),
        "order": order.order,
        "chunks": format_chunk_ranges(order.chunks),
    }


def _owned(order: cmd.Own) -> StoryEntry:
    return "ChunksOwned", {"member": str(order.member), "chunks": format_chunk_ranges(order.chunks)}


def _continued(command: cmd.Continue) -> StoryEntry | None:
    if not command.go_on:
        return "RoundsStopped", {"reason": command.reason}
    return ("SettingsTuned", {"settings": dict(command.tuned)}) if command.tuned else None


_RECORDED: Final[Mapping[type, Callable[[Any], StoryEntry | None]]] = {
    ev.BlockRead: _read,
    ev.ChunksLoaded: _loaded,
    ev.ChunksDropped: _dropped,
    cmd.GiveChunks: _given,
    cmd.Own: _owned,
    cmd.Continue: _continued,
}


def story_entry(message: ev.Event | cmd.Command) -> StoryEntry | None:
    """Return the story record of an event or a command: its name and fields; None for most."""
    make = _RECORDED.get(type(message))
    return None if make is None else make(message)
