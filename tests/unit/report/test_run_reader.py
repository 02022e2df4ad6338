"""Reading run directories in every state in which they can be left."""

import json
import math

import pytest

from elasticml.errors import ConfigError
from elasticml.report.run_reader import parse_history, read_run
from elasticml.story.reader import parse_story
from elasticml.story.summary import summary_from_json
from tests.unit.report.runs import END, LOSS


def test_finished_run_is_read_whole(elastic):
    run = read_run(elastic)
    assert (run.state, run.name, run.notes) == ("finished", "two-classes-taylor", ())
    assert run.history.n_rows == END + 1
    assert run.job is not None
    assert run.job.absent == "taylor"
    assert run.history.kinds[LOSS] == "estimated"


@pytest.mark.parametrize("n_bytes", [1, 17, 59])
def test_truncated_files_are_read_up_to_the_last_whole_line(path, n_bytes):
    (path / "summary.json").unlink()
    whole = read_run(path)
    for name in ("story.jsonl", "history.csv"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-n_bytes])
    cut = read_run(path)
    assert cut.records == whole.records[: len(cut.records)]
    assert len(cut.records) in (len(whole.records) - 1, len(whole.records))
    n = cut.history.n_rows
    assert n == whole.history.n_rows - 1
    assert cut.history.cells["seconds"] == whole.history.cells["seconds"][:n]


def test_history_is_rebuilt_from_the_story_when_its_table_is_missing(path):
    (path / "summary.json").unlink()
    whole = read_run(path)
    (path / "history.csv").unlink()
    run = read_run(path)
    for name in ("objective", "members"):
        assert run.history.column(name).tolist() == whole.history.column(name)[:END].tolist()
    assert run.notes == ("The history was rebuilt from the story: history.csv has no rows.",)


def test_unreadable_lines_are_skipped_and_counted():
    notes = []
    story = '{"t": 1, "event": "A"}\nnoise\n[1]\n{"t": NaN, "event": "B"}\n{"t": 2}\n'
    records = parse_story(story, notes)
    assert [(r.event, r.t) for r in records] == [("A", 1.0), ("B", 1.0)]
    assert notes == ["3 lines of story.jsonl could not be read and were left out."]


def test_damaged_summary_is_reported_and_survived(path):
    (path / "summary.json").write_text('{"name": ')
    run = read_run(path)
    assert run.summary == summary_from_json({})
    assert run.state == "finished"
    assert run.notes[0].startswith("summary.json could not be read")


@pytest.mark.parametrize(
    ("reason", "state"),
    [("gap", "finished"), ("cancelled", "cancelled"), ("failed: no members", "failed")],
)
def test_state_follows_the_reason_of_the_end(tmp_path, reason, state):
    (tmp_path / "story.jsonl").write_text(
        json.dumps({"t": 1.0, "event": "JobEnded", "reason": reason}) + "\n"
    )
    assert read_run(tmp_path).state == state


@pytest.mark.parametrize("make", [None, "file", "empty"])
def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, make):
    path = tmp_path / "r"
    if make == "file":
        path.write_text("x")
    elif make == "empty":
        path.mkdir()
    with pytest.raises(ConfigError, match="name a directory that 'elasticml run' wrote") as caught:
        read_run(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_finished_table_without_a_last_newline_keeps_its_last_row():
    text = "round,objective\n0,0.7\n1,0.5"
    assert parse_history(text, [], finished=True).n_rows == 2
    notes = []
    assert parse_history(text, notes, finished=False).n_rows == 1
    assert notes == ["The last line of history.csv is cut off and was left out."]


def test_cells_that_are_no_number_are_nan():
    history = parse_history("round,objective\n0,inf\n1,\n2,oops\n3,0.5\n", [], finished=True)
    assert [math.isnan(v) for v in history.column("objective")] == [True, True, True, False]
