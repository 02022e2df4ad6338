"""An edited story is refused, and the line is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticml.errors import ConfigError, DataError
from elasticml.jobs.run_directory import RunDirectory
from elasticml.story.reader import read_story
from elasticml.story.records import records_from_json
from elasticml.story.summary import StorySeal

RECORDS = [{"t": 0.5 * k, "event": "RoundEnded", "round": k, "gap": None} for k in range(6)]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, StorySeal]:
    """Return a run's directory, and its summary's digest of the story."""
    with RunDirectory(tmp_path / "run").open({"name": "x"}) as directory:
        directory.record(RECORDS[:2])
        directory.record(RECORDS[2:])
        return tmp_path / "run", StorySeal(**directory.seal)


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    story = path / "story.jsonl"
    story.write_text("\n".join([*change(story.read_text().splitlines()), ""]))


def test_an_unchanged_story_is_read(run: tuple[Path, StorySeal]) -> None:
    assert read_story(*run) == records_from_json(RECORDS)
    assert run[1].records == len(RECORDS)


def replace(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[3].replace('"round": 3', '"round": 4'), *lines[4:]]


def rewrite(lines: list[str]) -> list[str]:
    return [*lines[:3], json.dumps(RECORDS[3]), *lines[4:]]


@pytest.mark.parametrize(
    ("change", "line", "why"),
    [
        (replace, 4, "its seal is of another text"),
        (rewrite, 4, "it has no seal"),
        (lambda lines: [*lines[:2], *lines[3:]], 3, "between lines 2 and 3 was removed"),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 3, "or moved"),
        (lambda lines: lines[:-1], 6, "has 5 lines, summary.json says 6"),
        (lambda lines: [*lines[:2], "", *lines[2:]], 3, "it has no seal"),
    ],
    ids=["changed", "unsealed", "removed", "moved", "cut", "empty line"],
)
def test_an_edited_story_is_refused_with_its_line(
    run: tuple[Path, StorySeal],
    change: Callable[[list[str]], list[str]],
    line: int,
    why: str,
) -> None:
    path, seal = run
    edit(path, change)
    with pytest.raises(DataError, match=rf"story.jsonl line {line}: .*{why}") as refused:
        read_story(path, seal)
    assert refused.value.fields["line"] == line


def test_an_incomplete_line_of_a_killed_run_is_skipped(
    run: tuple[Path, StorySeal],
) -> None:
    path, _ = run
    story = path / "story.jsonl"
    story.write_text(story.read_text()[:-20])
    assert read_story(path, None) == records_from_json(RECORDS[:-1])


def test_a_missing_story_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the directory of a run"):
        read_story(tmp_path, None)
