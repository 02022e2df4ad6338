"""The report of one run, for runs of every unusual kind."""

import base64
import csv
import json
import re
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

from elasticml.errors import ConfigError
from elasticml.report import lane_zoom
from elasticml.report.lanes import KINDS, make_lanes
from elasticml.report.run_page import rows_to_show, write_report
from elasticml.report.run_reader import read_run
from elasticml.report.style import DistinctTicks
from tests.unit.report.fabricate import fabricate_run

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checker(HTMLParser):
    """Collects ids, references and words; elements must be closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.words, self.labelled = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in named:
            self.ids.append(named["id"])
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href")]
        if tag == "svg":
            self.labelled.append(named.get("aria-labelledby"))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def check(page):
    """Parse a page, check that it is self-contained, and return its content."""
    text = page.read_text()
    result = Checker()
    result.feed(text)
    assert result.open == []
    assert len(result.ids) == len(set(result.ids))
    assert all(link.startswith(("#", "data:")) or "//" not in link for link in result.links)
    local = {link[1:] for link in result.links if link.startswith("#")}
    local |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert local <= set(result.ids)
    assert "@import" not in text
    # Scripts are inline, and only those of the lanes.
    assert set(re.findall(r"<script[^>]*>", text)) <= {
        "<script>",
        '<script type="application/json" id="lanes-data">',
    }
    for label in result.labelled:
        assert label is not None
        assert set(label.split()) <= set(result.ids)
    return result


def test_report_is_self_contained_with_its_plots_beside_it(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=40, at=10, back=20)
    page = write_report(path)
    result = check(page)
    words = " ".join(result.words)
    assert "cause:" not in page.read_text()
    assert len(result.labelled) == 5
    for message in (
        "14 → 7 → 14",
        "70,000 examples",
        "stand-in rounds",
        "7 members lost",
        "finished",
    ):
        assert message in words
    assert "history.csv" in result.links
    pngs = sorted(p.name for p in path.glob("*.png"))
    assert pngs == [
        "auprc.png",
        "lanes.png",
        "members.png",
        "objective-zoom.png",
        "objective.png",
    ]
    assert all((path / p).read_bytes().startswith(b"\x89PNG") for p in pngs)
    assert not list(path.glob(".*"))


def test_ticks_have_the_digits_that_tell_them_apart():
    ticks = DistinctTicks().format_ticks
    assert ticks([0.69312, 0.693125]) == ["0.69312", "0.693125"]
    assert ticks([0.69312001, 0.69312002]) == ["0.69312001", "0.69312002"]
    assert ticks([0.1, 0.2, 0.30000000000000004, 2000.0]) == ["0.1", "0.2", "0.3", "2000"]


def test_every_figure_and_column_is_in_the_legend(tmp_path):
    page = write_report(fabricate_run(tmp_path / "r", rounds=15, at=5, back=10))
    text = page.read_text()
    labels = re.findall(r"<dt>(.*?)</dt>", text.partition('class="legend"')[0])
    assert labels
    assert [label for label in labels if not label.startswith('<a href="#word-')] == []
    heads = set(re.findall(r'<th scope="col">(.*?)</th>', text.partition("Table of rounds")[2]))
    explained = set(re.findall(r'<dt id="word-[^"]*">(.*?)</dt>', text))
    assert heads - explained == set()


def lanes_of(page):
    data = re.search(r'id="lanes-data">(.*?)</script>', page.read_text())[1]
    return json.loads(data)


def test_lanes_to_zoom_have_every_interval_or_a_bounded_number_of_them(tmp_path, monkeypatch):
    path = fabricate_run(tmp_path / "r", members=4, lose=2, rounds=40, at=10, back=20)
    lanes = make_lanes(read_run(path).records)
    exact = lanes_of(write_report(path))
    assert [len(row) // 3 for row in exact["lanes"]] == [len(lanes.intervals[k]) for k in range(4)]
    assert {kind["name"] for kind in exact["kinds"]} == set(KINDS)
    assert len([mark for mark in exact["marks"] if mark[2] == "×"]) == 2
    monkeypatch.setattr(lane_zoom, "INTERVALS_MAX", 80)
    few = lanes_of(write_report(path))
    assert sum(len(row) // 3 for row in few["lanes"]) <= 80
    for row in few["lanes"]:
        assert row[::3] == sorted(row[::3])
        assert row[-2] == pytest.approx(lanes.end_s, abs=1e-3)


def test_warnings_of_the_summary_and_long_waits_are_at_the_top(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=15, at=5, back=10)
    summary = json.loads((path / "summary.json").read_text())
    summary["notes"] = ["column 'y' is nearly <the> label"]
    (path / "summary.json").write_text(json.dumps(summary))
    story = [json.loads(line) for line in (path / "story.jsonl").read_text().splitlines()]
    for record in story:
        if record["event"] == "ExchangeEnded":
            record["compute_s"] = {slot: 1e-4 for slot in record["compute_s"]}
    (path / "story.jsonl").write_text("".join(json.dumps(r) + "\n" for r in story))
    top = write_report(path).read_text().partition("</header>")[0]
    assert "column &#39;y&#39; is nearly &lt;the&gt; label" in top
    assert "About 1 member pays for these data" in top


def test_report_is_the_same_bytes_each_time_and_leaves_no_setting_behind(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=15, at=5, back=10)
    before = dict(mpl.rcParams)
    first = write_report(path).read_bytes()
    assert write_report(path).read_bytes() == first
    assert dict(mpl.rcParams) == before


def test_colours_follow_the_page_s_scheme(tmp_path):
    text = write_report(fabricate_run(tmp_path / "r", rounds=15, at=5, back=10)).read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    left = set(re.findall(r"(?<!,)#[0-9a-f]{6}\b", drawn))
    assert left == set()


def test_page_elsewhere_includes_the_history(tmp_path):
    path = fabricate_run(tmp_path / "a b", rounds=4, at=1, back=2)
    page = write_report(path, tmp_path / "out" / "page.html")
    (link,) = [result for result in check(page).links if result.startswith("data:text/csv;base64,")]
    assert base64.b64decode(link.partition(",")[2]) == (path / "history.csv").read_bytes()
    assert (tmp_path / "out" / "lanes.png").exists()


def test_unwritable_path_is_refused_in_one_line(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=2, at=1, back=2)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; check the path"):
        write_report(path, tmp_path / "file" / "page.html")


def edit_history(path, change):
    rows = list(csv.DictReader((path / "history.csv").read_text().splitlines()))
    for row in rows:
        change(row)
    with (path / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def only_header(path):
    line = (path / "history.csv").read_text().splitlines()[0]
    (path / "history.csv").write_text(line + "\n")
    begin = (path / "story.jsonl").read_text().splitlines()[:3]
    (path / "story.jsonl").write_text("\n".join(begin) + "\n")
    (path / "summary.json").unlink()


ODD = {
    "zero rounds": only_header,
    "nan objective": lambda p: edit_history(p, lambda r: r.update(objective="nan")),
    "infinite objective": lambda p: edit_history(p, lambda r: r.update(objective="inf")),
    "negative objective": lambda p: edit_history(p, lambda r: r.update(objective="-1e300")),
    "constant objective": lambda p: edit_history(p, lambda r: r.update(objective="0")),
    "blank everything": lambda p: edit_history(p, lambda r: r.update(dict.fromkeys(r, ""))),
    "huge bytes": lambda p: edit_history(p, lambda r: r.update(moved_bytes="1e18")),
    "with a gap": lambda p: edit_history(p, lambda r: r.update(gap=10.0 ** -int(r["round"]))),
    "zero gap": lambda p: edit_history(p, lambda r: r.update(gap="0")),
    "no story": lambda p: (p / "story.jsonl").unlink(),
    "empty story": lambda p: (p / "story.jsonl").write_text(""),
    "no history": lambda p: (p / "history.csv").unlink(),
    "empty history": lambda p: (p / "history.csv").write_text(""),
    "foreign history": lambda p: (p / "history.csv").write_text("a,b\n1,2\n"),
    "bytes that are no text": lambda p: (p / "history.csv").write_bytes(b"\xff\xfe\x00round\n\x80"),
    "no summary": lambda p: (p / "summary.json").unlink(),
    "summary of nulls": lambda p: (p / "summary.json").write_text(
        json.dumps(dict.fromkeys(json.loads((p / "summary.json").read_text())))
    ),
    "summary of lists": lambda p: (p / "summary.json").write_text(
        json.dumps({key: [1] for key in json.loads((p / "summary.json").read_text())})
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name",
    ["zero rounds", *(pytest.param(k, marks=pytest.mark.slow) for k in ODD if k != "zero rounds")],
)
def test_unusual_run_still_has_a_report(tmp_path, name):
    path = fabricate_run(tmp_path / "r", rounds=6, at=2, back=4)
    ODD[name](path)
    result = check(write_report(path))
    assert "Settings" in result.words


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "shape",
    [
        {"members": 1, "lose": 0, "rounds": 3, "at": 9, "back": 9},
        {"members": 1, "lose": 0, "rounds": 0, "at": 9, "back": 9},
        {"members": 1, "lose": 0, "rounds": 1, "at": 9, "back": 9},
        {"members": 2, "lose": 2, "rounds": 30, "at": 10, "back": 20},
        {"members": 4, "lose": 2, "rounds": 30, "at": 10, "back": 20, "how": "notice"},
        {"members": 80, "lose": 30, "rounds": 20, "at": 5, "back": 10, "test": False},
    ],
)
def test_run_of_any_shape_has_a_report(tmp_path, shape):
    path = fabricate_run(tmp_path / "r", **shape)
    result = check(write_report(path))
    assert ("No test set was evaluated." in result.words) == (shape.get("test") is False)


@pytest.mark.filterwarnings("error")
def test_names_with_characters_of_html_and_of_formulas_are_shown_unchanged(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=3, at=1, back=2)
    summary = json.loads((path / "summary.json").read_text())
    summary["name"] = '<b>$x_$ & "y"'
    (path / "summary.json").write_text(json.dumps(summary))
    result = check(write_report(path))
    assert summary["name"] in "".join(result.words)


def test_interrupted_run_is_shown_as_interrupted(tmp_path):
    path = fabricate_run(tmp_path / "r", rounds=6, at=2, back=4, finished=False)
    story = (path / "story.jsonl").read_text().splitlines()
    (path / "story.jsonl").write_text("\n".join(story[:-2]) + '\n{"t": 9.1, "ev')
    words = " ".join(check(write_report(path)).words)
    assert "unfinished" in words
    assert "The last line of story.jsonl is cut off and was left out." in words


def test_long_table_is_thinned_but_complete_around_each_change(tmp_path):
    run = read_run(fabricate_run(tmp_path / "r", rounds=300, at=103, back=207))
    shown = rows_to_show(run)
    assert len(shown) <= 80
    assert {0, 10, 20, 102, 103, 104, 105, 206, 207, 208, 300} <= set(shown)
    assert rows_to_show(run, rows_max=400) == list(range(301))


def test_missing_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        write_report(tmp_path / "none", tmp_path / "out.html")
    assert list(tmp_path.iterdir()) == []
