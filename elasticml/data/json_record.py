"""JSON of dataclasses by the types of their fields: statistics of data, and encodings of tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from elasticml.errors import shown


class JsonRecord:
    """Base of dataclasses that travel as JSON."""

    __slots__ = ()
    #: Whether fields at their default are left out.
    without_defaults: ClassVar[bool] = False
    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON-able dict."""
        kind: Any = type(self)
        made: dict[str, Any] = _adapter(kind).dump_python(
            self, mode="json", exclude_defaults=self.without_defaults
        )
        return made

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild a record from ``to_json()``; raises ValueError for another one."""
        kind: Any = cls
        try:
            made: Self = _adapter(kind).validate_python(record)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(map(str, first["loc"]))
            raise ValueError(f"{at}: got {shown(first['input'])}: {first['msg']}") from None
        return made


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
