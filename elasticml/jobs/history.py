"""A job's history: a list of rows that is also a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex, overload

import numpy as np

from elasticml.errors import ConfigError, how_to_install

Row = dict[str, Any]

#: The first columns of the table: those that people look for. Metrics follow, then the other ones.
HEADLINE = ("round", "seconds", "epoch", "objective", "objective_full", "gap")
_METRICS = ("validation_", "holdout_", "test_", "train_")
_MEMBERS = ("members", "absent_examples", "objective_kind", "gap_is_bound")


class History(list[Row]):
    """One row per round, as a mapping, with the state at the start of the round.

    ``history[-1]["gap"]`` is a value of the last row, which is that of the final model. Everything
    else that a ``pandas.DataFrame`` has is computed from :meth:`to_pandas`: ``history["gap"]``,
    ``history.tail()``, ``history.plot("round", "gap")``.
    """

    def columns_in_order(self) -> list[str]:
        """Return the names of all columns: those that people look for first, then the others."""
        names = list(dict.fromkeys(name for row in self for name in row))
        metrics = [name for name in names if name.startswith(_METRICS)]
        first = [name for name in (*HEADLINE, *metrics, *_MEMBERS) if name in names]
        return list(dict.fromkeys([*first, *names]))

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``, (n_rounds + 1, n_columns).

        Raises
        ------
        ConfigError
            When pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError(f"pandas is not installed; {how_to_install('pandas')}") from None
        return pandas.DataFrame(list(self), columns=self.columns_in_order())

    @overload
    def __getitem__(self, key: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, key: slice) -> History: ...

    @overload
    def __getitem__(self, key: Any) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        """Return a row by its index, rows by a slice, or columns by their names."""
        if isinstance(key, slice):
            return History(super().__getitem__(key))
        if isinstance(key, str | list) or np.ndim(key) > 0:
            return self.to_pandas()[key]
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        """Return what a ``DataFrame`` has: its methods, and columns by name."""
        if name.startswith("_"):
            raise AttributeError(f"History has no attribute {name!r}")
        try:
            return getattr(self.to_pandas(), name)
        except ConfigError as error:
            raise AttributeError(error.message) from None

    def __repr__(self) -> str:
        last: Mapping[str, Any] = self[-1] if self else {}
        shown = ((name, last.get(name)) for name in ("objective", "gap", "members"))
        end = ", ".join(f"{name} {value:.6g}" for name, value in shown if value is not None)
        return f"<History of {len(self)} rows{': ' + end if end else ''}>"

    def _repr_html_(self) -> str | None:
        """Return the table, for a notebook; None without pandas."""
        try:
            html: str = self.to_pandas()._repr_html_()
        except ConfigError:
            return None
        return html
