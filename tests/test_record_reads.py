"""Records of jobs and stories, history rows and summaries are read by attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from elasticml.protocol.job_record import JobRecord
from elasticml.story.history import HistoryRow
from elasticml.story.records import JobBegun, StoryRecord, UnknownRecord
from elasticml.story.summary import RunSummary

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "elasticml"

#: Files that may read by key: those that parse a record.
ALLOWED = {
    "elasticml/story",
    "elasticml/protocol/job_record.py",
    # Dataset statistics have a JSON form of their own.
    "elasticml/data/dataset_stats.py",
}
#: What a record of a story or a job, a row or a summary is called.
NAMES = {
    *("record", "_record", "spec", "row", "summary"),
    *("first", "last", "ended", "started", "loaded", "begun"),
}
#: Keys that only a story record has: code that reads one has not parsed it.
TELLING = {"event", "cause"}

KEYS = {
    *TELLING,
    "t",
    *(
        f.name
        for kind in (*StoryRecord.kinds.values(), RunSummary, JobRecord)
        for f in fields(kind)
    ),
    "evaluate",
    *(name for name, value in vars(HistoryRow).items() if isinstance(value, property)),
}


def reads(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, last name of the receiver, and key of each ``x["key"]`` and ``x.get("key")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            value, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            value, key = node.func.value, node.args[0]
            if node.func.attr != "get":
                continue
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield node.lineno, getattr(value, "attr", getattr(value, "id", "")), key.value


def string_keyed(source: str) -> list[str]:
    """Reads of a record, a row or a summary by key."""
    return [
        f"line {line}: {name}[{key!r}]"
        for line, name, key in reads(ast.parse(source))
        if key in TELLING or (name in NAMES and key in KEYS)
    ]


def is_allowed(name: str) -> bool:
    return any(name == allowed or name.startswith(f"{allowed}/") for allowed in ALLOWED)


def test_records_are_read_by_attribute_outside_their_room() -> None:
    wrong = {
        name: string_keyed(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
        if not is_allowed(name := str(path.relative_to(ROOT)))
    }
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_the_check_sees_a_read_by_key() -> None:
    source = 'x = record["reason"]; y = run.summary.get("gap"); z = anything["event"]'
    assert string_keyed(source) == [
        "line 1: record['reason']",
        "line 1: summary['gap']",
        "line 1: anything['event']",
    ]
    assert string_keyed('record.get("members"); self._record["algorithm"]["loss"]') == [
        "line 1: record['members']",
        "line 1: _record['algorithm']",
    ]
    assert string_keyed('algorithm["loss"]; row["gap"] = 1.0') == []


def test_every_record_is_listed_in_the_contracts() -> None:
    page = (ROOT / "docs" / "explanation" / "contracts.md").read_text()
    events = StoryRecord.kinds.keys() - {JobBegun.__name__, UnknownRecord.__name__}
    assert {event for event in events if f"`{event}`" not in page} == set()
