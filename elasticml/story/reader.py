"""Read stories: lines into records, and a whole story verified against its digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elasticml.errors import ConfigError, DataError
from elasticml.story.hash_chain import SEAL, HashChain
from elasticml.story.json_fields import finite
from elasticml.story.records import StoryRecord, record_from_json
from elasticml.story.summary import StorySeal


def parse_line(line: str) -> dict[str, Any] | None:
    """Parse a line of a story; None if it is no record, because it was cut off or damaged."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("event"), str):
        return None
    values.pop(SEAL, None)
    return values


def parse_story(text: str, notes: list[str]) -> tuple[StoryRecord, ...]:
    """Parse the lines of a story; invalid lines are skipped, with a note.

    A record without a time gets the time of its predecessor.
    """
    records: list[StoryRecord] = []
    unreadable = 0
    last_t = 0.0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        values = parse_line(line)
        if values is not None:
            last_t = values["t"] = finite(values.get("t"), last_t)
            records.append(record_from_json(values))
        elif number == len(lines):
            notes.append("The last line of story.jsonl is cut off and was left out.")
        else:
            unreadable += 1
    if unreadable:
        notes.append(f"{unreadable} lines of story.jsonl could not be read and were left out.")
    return tuple(records)


def read_story(run_dir: Path, sealed: StorySeal | None) -> list[StoryRecord]:
    """Read all records, in order.

    Parameters
    ----------
    run_dir : Path
    sealed : StorySeal or None
        From the run's summary. Without it, a story that lacks its end looks like that of a run that
        was killed.

    Raises
    ------
    ConfigError
        When there is no story.
    DataError
        When it was changed; it names the first changed line.
    """
    path = run_dir / "story.jsonl"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name the directory of a run", path=str(path)
        ) from None
    lines = text.split("\n")
    # A run that was killed may have left an incomplete line.
    last = lines.pop()
    if last and sealed is not None:
        lines.append(last)
    chain = HashChain()
    records: list[StoryRecord] = []
    for number, line in enumerate(lines, 1):
        holds = chain.holds(line)
        if not holds:
            raise _edited(path, number, _why(holds, number))
        records.append(record_from_json(parse_line(line) or {}))
    if sealed is not None and (chain.length, chain.last) != (sealed.records, sealed.seal):
        expected = sealed.records
        raise _edited(
            path,
            min(chain.length, expected) + 1,
            f"the story has {chain.length} lines, summary.json says {expected}",
        )
    if not records:
        raise DataError(f"{path} is empty; nothing can be replayed", path=str(path))
    return records


def _why(holds: bool | None, number: int) -> str:
    if holds is None:
        return "it has no seal: it was added by hand, cut off, or written by an older version"
    before = f", or what was between lines {number - 1} and {number} was removed or moved"
    return "its seal is of another text: it was changed" + (before if number > 1 else "")


def _edited(path: Path, line: int, why: str) -> DataError:
    return DataError(
        f"{path} line {line}: the story was changed: {why}; replay an unchanged copy",
        path=str(path),
        line=line,
    )
