"""Pre-emptions from a file: who was taken when, and for how long, as a cluster's log tells it."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from elasticml.errors import ConfigError

#: What the file's first line may name; the members by one of the middle three.
WHO = ("slot", "member", "count")
COLUMNS = "time, away and one of slot, member and count"


def read_preemptions(path: str | Path) -> list[dict[str, Any]]:
    """Read a trace of pre-emptions from a CSV file.

    Its first line names the columns: ``time`` (seconds since the job began), ``away`` (seconds
    until a new container comes; blank: never), and who goes: ``slot``, ``member`` (``3.1`` is a
    life of slot 3; whoever is in the slot goes), or ``count`` (so many of the last slots). Lines
    that go at one moment for one time are one pre-emption.

    Parameters
    ----------
    path : path

    Returns
    -------
    list of dict
        Entries of ``simulate.trace``: ``at``, ``lose`` and ``away``.

    Raises
    ------
    ConfigError
        Naming file and line, when it cannot be read or a value is out of its range.
    """
    try:
        # Spreadsheets begin the text with a byte-order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"simulate.preemption.trace: cannot read {path}: {reason}; give a CSV file with the "
            f"columns {COLUMNS}",
            path="simulate.preemption.trace",
        ) from None
    rows = list(csv.reader(text.splitlines()))
    head = [name.strip() for name in rows[0]] if rows else []
    who = [name for name in WHO if name in head]
    if len(who) != 1 or not {"time", "away"} <= set(head):
        raise ConfigError(
            f"simulate.preemption.trace: {path}: line 1: got the columns {', '.join(head)!r}, "
            f"wanted {COLUMNS}",
            path="simulate.preemption.trace",
        )
    lines = [
        _line(dict(zip(head, row, strict=False)), who[0], f"{path}: line {k}")
        for k, row in enumerate(rows[1:], start=2)
        if any(cell.strip() for cell in row)
    ]
    return _together(lines, who[0] == "count")


def _line(cells: dict[str, str], who: str, where: str) -> tuple[float, float | None, int]:
    """Return time, seconds away, and slot or count of a line."""
    at = _number(cells, "time", where)
    away = _number(cells, "away", where) if cells.get("away", "").strip() else None
    told = cells.get(who, "").strip()
    number = told.split(".")[0] if who == "member" else told
    if not number.isdecimal() or (who == "count" and int(number) < 1):
        wanted = {"slot": "a slot, counted from 0", "member": "a member such as 3.1"}
        raise ConfigError(
            f"simulate.preemption.trace: {where}: {who}: got {told!r}, wanted "
            f"{wanted.get(who, 'a whole number from 1 on')}",
            path="simulate.preemption.trace",
        )
    return at, away, int(number)


def _number(cells: dict[str, str], name: str, where: str) -> float:
    told = cells.get(name, "").strip()
    try:
        value = float(told)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"simulate.preemption.trace: {where}: {name}: got {told!r}, wanted seconds from 0 on",
            path="simulate.preemption.trace",
        )
    return value


def _together(
    lines: Iterable[tuple[float, float | None, int]], are_counts: bool
) -> list[dict[str, Any]]:
    """Make one entry of what goes at one moment for one time; counts stay as they are."""
    if are_counts:
        return [{"at": at, "lose": n, "away": away} for at, away, n in lines]
    slots: dict[tuple[float, float | None], set[int]] = {}
    for at, away, slot in lines:
        slots.setdefault((at, away), set()).add(slot)
    return [{"at": at, "lose": sorted(found), "away": away} for (at, away), found in slots.items()]
