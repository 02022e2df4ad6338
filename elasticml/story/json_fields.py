"""JSON of dataclasses, driven by their fields: story records, summaries, job records, checkpoints.

Reading never fails, since files may be damaged or of another version. A missing field has its
default, or the zero of its type, and so has a field whose value is of another type. Fields that a
class does not declare are kept in ``extra``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

J = TypeVar("J", bound="JsonFields")

_EMPTY: Final[Mapping[str, Any]] = {}


#: Metadata of a field that is left out of the JSON while it has its default.
OPTIONAL: Final = MappingProxyType({"optional": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFields:
    """Base of the dataclasses that have a JSON form."""

    #: Fields that the class does not declare; they follow the others.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def fields_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, in the order in which they are declared."""
        values: dict[str, Any] = {}
        kind: Any = type(self)
        for name, omitted in _layout(kind):
            value = getattr(self, name)
            if value is not omitted:
                values[name] = value if value is None or type(value) in _PLAIN else _json(value)
        values.update(self.extra)
        return values


def fields_from_json(kind: type[J], values: Mapping[str, Any]) -> J:
    """Read an object."""
    key: Any = kind
    readers, arguments = _readers(key), dict(_zeros(key))
    extra: dict[str, Any] = {}
    for name, value in values.items():
        read = readers.get(name)
        if read is None:
            extra[name] = value
            continue
        try:
            arguments[name] = read(value)
        except (TypeError, ValueError, OverflowError):
            continue  # as if it were missing
    return kind(**arguments, extra=extra)


def finite(value: object, default: float = math.nan) -> float:
    """Return a value as a finite float, or the default if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        number = float(value)
    except ValueError:
        return default
    return number if math.isfinite(number) else default


@cache
def _layout(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return names in the order of JSON, each with the value with which it is left out.

    A field that a subclass declares again has its place there.
    """
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        for name in inspect.get_annotations(base):
            names.pop(name, None)
            names[name] = None
    by_name = {f.name: f for f in fields(kind)}
    never = object()
    return tuple(
        (name, by_name[name].default if "optional" in by_name[name].metadata else never)
        for name in names
        if name in by_name and name != "extra"
    )


_PLAIN: Final = frozenset({str, int, float, bool, dict})


def _json(value: Any) -> Any:
    if type(value) is tuple:
        return [_json(entry) for entry in value]
    return value.fields_json() if isinstance(value, JsonFields) else value


@cache
def _readers(kind: type[Any]) -> Mapping[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind) if f.name != "extra"}


@cache
def _zeros(kind: type[Any]) -> Mapping[str, Any]:
    """Return the values of required fields that a story may lack."""
    hints = get_type_hints(kind)
    return {
        f.name: _zero(hints[f.name])
        for f in fields(kind)
        if f.default is MISSING and f.default_factory is MISSING
    }


def _zero(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin in (Union, UnionType) or annotation is Any:
        return None
    return {tuple: (), Mapping: _EMPTY}.get(origin) if origin else annotation()


def _reader(annotation: Any) -> Callable[[Any], Any]:
    """Return the function that checks and converts a JSON value; it raises ValueError."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (_reader(kind) for kind in arguments if kind is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is None:  # another dataclass
        for own in ("from_json", "of_record"):
            if read := getattr(annotation, own, None):
                return lambda value: read(_object(value))
        return lambda value: fields_from_json(annotation, _object(value))
    if origin is tuple and arguments[-1] is ...:
        each = _reader(arguments[0])
        return lambda value: tuple([each(entry) for entry in _array(value)])
    if origin is tuple:
        places = [_reader(kind) for kind in arguments]
        return lambda value: tuple(
            [read(entry) for read, entry in zip(places, _array(value), strict=True)]
        )
    item = _reader(arguments[1])
    return lambda value: {str(name): item(entry) for name, entry in _object(value).items()}


def _any(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if value is None:
        raise ValueError("null")
    return value if type(value) is str else str(value)


def _float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    number = finite(value)
    if math.isnan(number):
        raise ValueError("not a finite number")
    return number


def _int(value: Any) -> int:
    return value if type(value) is int else int(_float(value))


def _array(value: Any) -> Iterable[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("not an array")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


_SCALARS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    Any: _any,
    str: _text,
    float: _float,
    int: _int,
    bool: _truth,
}
