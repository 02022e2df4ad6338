"""Read a trace of pre-emptions, as from a cluster's log: when, which members, for how long."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasticml.errors import ConfigError, one_line
from elasticml.specification.settings_model import read_settings
from elasticml.specification.simulator import WorldOptions, trace_entry

#: Columns that identify the members; a file has exactly one of them.
WHO = ("slot", "member", "count")
COLUMNS = "time, away and one of slot, member and count"


def options_from_section(section: Mapping[str, Any] | None) -> WorldOptions:
    """Read the ``simulate`` section of a job, and the pre-emptions of the file that it names.

    Raises
    ------
    ConfigError
        When a key is unknown, a value is out of range, or the file is invalid.
    """
    options = read_settings(WorldOptions, section, "simulate")
    random = options.preemption
    if random is None or random.trace is None:
        return options
    # Without a rate nothing is random: the other keys apply to the file's entries.
    path = "simulate.preemption.trace"
    common = {"how": random.how, "grace": random.grace}
    entries = [trace_entry({**entry, **common}, path) for entry in read_preemptions(random.trace)]
    return replace(
        options,
        preemption=None if random.rate is None else replace(random, trace=None),
        trace=(*options.trace, *entries),
    )


def read_preemptions(path: str | Path) -> list[dict[str, Any]]:
    """Read a trace of pre-emptions from a CSV file.

    Its first line names the columns: ``time`` (seconds since the start of the job), ``away``
    (seconds until a new container comes; blank: never), and the members: ``slot``, ``member``
    (``3.1`` means the current member of slot 3), or ``count`` (that many of the last slots). Lines
    with the same ``time`` and ``away`` are one pre-emption.

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
        When the file cannot be read or a value is out of range; it names file and line.
    """
    try:
        # Spreadsheets write a byte-order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ConfigError(
            f"simulate.preemption.trace: cannot read {path}: {reason}; give a CSV file with the "
            f"columns {COLUMNS}"
        ) from None
    rows = list(csv.reader(text.splitlines()))
    head = [name.strip() for name in rows[0]] if rows else []
    who = [name for name in WHO if name in head]
    if len(who) != 1 or not {"time", "away"} <= set(head):
        raise ConfigError(
            f"simulate.preemption.trace: {path}: line 1: got the columns {', '.join(head)!r}, "
            f"wanted {COLUMNS}"
        )
    lines = [
        _line(dict(zip(head, row, strict=False)), who[0], f"{path}: line {k}")
        for k, row in enumerate(rows[1:], start=2)
        if any(cell.strip() for cell in row)
    ]
    return _entries(lines, who[0] == "count")


def _line(cells: dict[str, str], who: str, where: str) -> tuple[float, float | None, int]:
    """Return time, seconds away, and slot or count of a line."""
    at = _number(cells, "time", where)
    away = _number(cells, "away", where) if cells.get("away", "").strip() else None
    text = cells.get(who, "").strip()
    number = text.split(".")[0] if who == "member" else text
    if not number.isdecimal() or (who == "count" and int(number) < 1):
        expected = {"slot": "a slot, counted from 0", "member": "a member such as 3.1"}
        raise ConfigError(
            f"simulate.preemption.trace: {where}: {who}: got {text!r}, wanted "
            f"{expected.get(who, 'a whole number from 1 on')}"
        )
    return at, away, int(number)


def _number(cells: dict[str, str], name: str, where: str) -> float:
    text = cells.get(name, "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"simulate.preemption.trace: {where}: {name}: got {text!r}, wanted seconds from 0 on"
        )
    return value


def _entries(
    lines: Iterable[tuple[float, float | None, int]], are_counts: bool
) -> list[dict[str, Any]]:
    """Merge lines with the same time and duration into one entry; counts stay separate."""
    if are_counts:
        return [{"at": at, "lose": n, "away": away} for at, away, n in lines]
    slots: dict[tuple[float, float | None], set[int]] = {}
    for at, away, slot in lines:
        slots.setdefault((at, away), set()).add(slot)
    return [{"at": at, "lose": sorted(lost), "away": away} for (at, away), lost in slots.items()]
