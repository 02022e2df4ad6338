"""Partials added in the order that a story gives: ``((0+2)+1)`` is what the tree has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticml.errors import DataError
from elasticml.ids import Mask
from elasticml.training.array_buffers import Vector, merge


@dataclass(slots=True)
class Sums:
    """The sums of an exchange.

    Each is known by the mask of the slots in it: sums of the same members, written down in the
    same order, have the same bits wherever in the tree they were made.
    """

    #: None where nobody's share is in it.
    total: Vector | None = None
    by_mask: dict[Mask, Vector] = field(default_factory=dict)


def add_up(order: str, partials: Mapping[int, Vector], reduce: str) -> Sums:
    """Add partials as parenthesised: the first of a parenthesis, then the others one by one.

    Parameters
    ----------
    order : str
        Slots, ``+`` and parentheses; empty where there is nothing to add.
    partials : mapping of ndarray
        By slot; not changed.
    reduce : {"sum", "max"}

    Raises
    ------
    DataError
        When the order is no such text, or names a slot that has no partial.
    """
    sums = Sums()
    if order:
        reader = _Reader(order, partials, reduce, sums.by_mask)
        _, sums.total = reader.group()
        reader.finish()
    return sums


class _Reader:
    """Reads an order from left to right, adding as it goes."""

    def __init__(
        self, order: str, partials: Mapping[int, Vector], reduce: str, sums: dict[Mask, Vector]
    ) -> None:
        self._order = order
        self._partials = partials
        self._reduce = reduce
        self._sums = sums
        self._at = 0

    def group(self) -> tuple[Mask, Vector]:
        """Read a slot, or a parenthesis of groups."""
        if not self._takes("("):
            return self._slot()
        mask, first = self.group()
        total = first.copy()
        while self._takes("+"):
            other, partial = self.group()
            mask = Mask(mask | other)
            merge(total, partial, self._reduce)
        if not self._takes(")"):
            raise self._wrong("a parenthesis is not closed")
        self._sums[mask] = total
        return mask, total

    def finish(self) -> None:
        """See that nothing is left."""
        if self._at != len(self._order):
            raise self._wrong(f"{self._order[self._at :]!r} is left over")

    def _takes(self, sign: str) -> bool:
        found = self._order.startswith(sign, self._at)
        self._at += found
        return found

    def _slot(self) -> tuple[Mask, Vector]:
        end = self._at
        while end < len(self._order) and self._order[end].isdecimal():
            end += 1
        text, self._at = self._order[self._at : end], end
        if not text or int(text) not in self._partials:
            raise self._wrong(f"slot {text!r} has no share in it")
        mask = Mask(1 << int(text))
        self._sums[mask] = self._partials[int(text)]
        return mask, self._sums[mask]

    def _wrong(self, why: str) -> DataError:
        return DataError(f"the story's order of additions {self._order!r} cannot be read: {why}")
