"""Story records of chunk locations, which a replay needs: ownership, moves and drops.

Only changes are recorded; a steady round has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from elasticml.control import commands as cmd
from elasticml.control import events as ev
from elasticml.control.chunk_runs import runs_of

Told = tuple[str, dict[str, Any]]


def _read(event: ev.BlockRead) -> Told | None:
    if not event.chunks:  # a survey
        return None
    fields = {"member": str(event.member), "block": event.block, "digest": event.digest}
    return "BlockRead", fields


def _loaded(event: ev.ChunksLoaded) -> Told:
    fields: dict[str, Any] = {"member": str(event.member), "chunks": runs_of(event.chunks)}
    if event.source is not None:
        fields |= {"source": str(event.source), "order": event.order}
    return "ChunksLoaded", fields


def _dropped(event: ev.ChunksDropped) -> Told:
    return "ChunksDropped", {"member": str(event.member), "chunks": runs_of(event.chunks)}


def _given(order: cmd.GiveChunks) -> Told:
    return "ChunksGiven", {
        "member": str(order.member),
        "target": str(order.target),
        "order": order.order,
        "chunks": runs_of(order.chunks),
    }


def _owned(order: cmd.Own) -> Told:
    return "ChunksOwned", {"member": str(order.member), "chunks": runs_of(order.chunks)}


def _continued(command: cmd.Continue) -> Told | None:
    if not command.go_on:
        return "RoundsStopped", {"reason": command.reason}
    return ("SettingsTuned", {"settings": dict(command.tuned)}) if command.tuned else None


_RECORDED: Final[Mapping[type, Callable[[Any], Told | None]]] = {
    ev.BlockRead: _read,
    ev.ChunksLoaded: _loaded,
    ev.ChunksDropped: _dropped,
    cmd.GiveChunks: _given,
    cmd.Own: _owned,
    cmd.Continue: _continued,
}


def told_of(message: ev.Event | cmd.Command) -> Told | None:
    """Return the story record of an event or a command: its name and fields; None for most."""
    make = _RECORDED.get(type(message))
    return None if make is None else make(message)
