"""Dataclasses that are frozen for the type checker, and quick to make.

A class that is frozen at run time sets each of its fields through ``object.__setattr__``, and takes
three times as long to make. A driver makes about thirty records in each exchange, which all members
wait for: a tenth of its time. Here ``frozen=True`` means the same to the type checker. At run time
it gives equality and a hash, and nothing prevents an assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from collections.abc import Callable

    def dataclass(*, frozen: bool = False, **settings: bool) -> Callable[[type], type]:
        """Return the decorator :func:`dataclasses.dataclass`; ``frozen`` only gives a hash."""
        return dataclasses.dataclass(unsafe_hash=frozen, **settings)
