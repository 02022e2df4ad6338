"""Events and commands as JSON, for the links between the driver and its members.

Fields are read back by their annotations, so a record needs no code of its own here.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from elasticml.errors import RemoteProtocolError, one_line, shown
from elasticml.ids import ChunkId, ChunkInfo, MemberId, chunk_id, member_id
from elasticml.protocol import commands, events

_RECORDS: dict[str, type[Any]] = {
    name: cls
    for module in (commands, events)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
}
#: What a field of a plain type may have.
_PLAIN: dict[Any, tuple[type, ...]] = {
    **{kind: (kind,) for kind in (int, str, bool)},
    float: (int, float),
}
_HINTS: dict[type[Any], dict[str, Any]] = {}


def encode(record: commands.Command | events.Event) -> dict[str, Any]:
    """Write a record as ``{"type": name, field: value, ...}``, without fields at their default."""
    body: dict[str, Any] = {"type": type(record).__name__}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            body[field.name] = _plain(value)
    return body


def decode(body: Mapping[str, Any]) -> Any:
    """Read a record back.

    Raises
    ------
    RemoteProtocolError
        When the type is unknown or a field does not fit it.
    """
    cls = _RECORDS.get(body.get("type", ""))
    if cls is None:
        raise RemoteProtocolError(f"message of unknown type {body.get('type')!r}")
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = typing.get_type_hints(cls)
    try:
        return cls(**{k: _typed(v, hints[k]) for k, v in body.items() if k != "type"})
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"message {body.get('type')} does not fit: {one_line(error)}"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, (MemberId, ChunkId)):
        return str(value)
    if isinstance(value, ChunkInfo):
        return [str(value.id), value.rows, value.nbytes]
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def _typed(value: Any, hint: Any) -> Any:
    if value is None:
        if hint is None or hint is Any or type(None) in typing.get_args(hint):
            return None
        raise TypeError("a field is null")
    if hint is MemberId:
        return member_id(value)
    if hint is ChunkId:
        return chunk_id(value)
    if hint is ChunkInfo:
        return ChunkInfo(id=chunk_id(value[0]), rows=value[1], nbytes=value[2])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple(_typed(v, arguments[0]) for v in value)
    if origin in (typing.Union, types.UnionType):
        present = [a for a in arguments if a is not type(None)]
        return _typed(value, present[0])
    if origin is typing.Literal and value not in arguments:
        raise ValueError(f"{shown(value)} is none of {arguments}")
    kind = getattr(hint, "__supertype__", hint)  # an ExchangeId is an int
    if kind in _PLAIN and type(value) not in _PLAIN[kind]:
        raise TypeError(f"{shown(value)} is no {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value
