"""The pages of a run, of runs of every unusual kind, and of several runs."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
from html.parser import HTMLParser

import matplotlib as mpl
import pytest
from click.testing import CliRunner
from markupsafe import Markup

from elasticml.cli.report import report
from elasticml.errors import ConfigError
from elasticml.report import lane_zoom
from elasticml.report.lanes import KINDS, make_lanes
from elasticml.report.overlay_page import choose_rounds, draw, table, text_table, write_overlay
from elasticml.report.overlay_plot import overlay_picture, time_picture
from elasticml.report.run_page import rows_to_show, write_report
from elasticml.report.run_reader import read_run
from elasticml.report.style import DistinctTicks, styled
from tests.unit.report.runs import END, LOSS, RETURN, edit_story, edit_summary, write_elastic_run

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


def pictures_in(folder):
    return sorted(path.stem for path in folder.glob("*.png"))


def test_the_page_of_a_run_is_self_contained_and_its_plots_are_files_if_asked(elastic, path):
    before = dict(mpl.rcParams)
    assert pictures_in(path) == []
    page = write_report(path, png=True)
    assert dict(mpl.rcParams) == before
    result = check(page)
    words = " ".join(result.words)
    assert len(result.labelled) == 5
    for message in (
        "members 14 → 7 → 14 start, fewest, end",
        "700 examples × 8 features",
        "lost 7 members",
        "returned 7 members",
        "stand-in rounds 20",
        "rounds 60 60 rounds",
        "finished",
        "s whole group brought absent chunks back 7 members free, 7 needed",
    ):
        assert message in " ".join(words.split())
    assert "cause:" not in page.read_text()
    assert "history.csv" in result.links
    assert pictures_in(path) == ["lanes", "members", "objective", "objective-zoom", "test"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in path.glob("*.png"))
    assert not list(path.glob(".*"))
    # The bytes of the job's own report, in the colours of the page.
    text = page.read_text()
    assert text == (elastic / "report.html").read_text()
    assert 'id="lanes-data"' in text
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert re.findall(r"(?<!,)#[0-9a-f]{6}\b", drawn) == []


def test_the_page_has_certificates_and_the_reasons_of_policies(certified, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(certified, path)
    edit_history(path, lambda r: r.update(gap_is_bound=str(int(r["round"]) in (1, 5))))
    edit_story(path, lambda r: r.update(why="a <b>") if r.get("policy") == "knee" else None)
    page = write_report(path, png=True)
    words = " ".join(" ".join(check(page).words).split())
    assert re.search(r"\d+ 0\.\d+ s knee gave back 3 members a <b> ", words)
    assert re.search(r"redeal moved \d+ chunks in \d+ rounds", words)
    assert "given back 3 members, emptied before" in words
    assert "What policies decided" in words
    assert "<td>knee gave back 3 members</td>" in page.read_text()  # in the table of rounds
    assert re.search(r"<td>≤[\d.]+</td>", page.read_text())
    assert "upper bound" in page.read_text()
    expected = ["gap", "gap-time", "lanes", "members", "objective", "objective-zoom"]
    assert pictures_in(path) == expected


def test_every_figure_and_column_is_in_the_legend(elastic):
    text = (elastic / "report.html").read_text()
    labels = re.findall(r"<dt>(.*?)</dt>", text.partition('class="legend"')[0])
    assert labels
    assert [label for label in labels if not label.startswith('<a href="#word-')] == []
    heads = set(re.findall(r'<th scope="col">(.*?)</th>', text.partition("Table of rounds")[2]))
    explained = set(re.findall(r'<dt id="word-[^"]*">(.*?)</dt>', text))
    assert heads - explained <= {"decided"}


def lanes_of(run):
    page = lane_zoom.lanes_zoom(run, Markup())
    return json.loads(re.search(r'id="lanes-data">(.*?)</script>', page)[1])


def test_lanes_to_zoom_have_every_interval_or_a_bounded_number_of_them(elastic, monkeypatch):
    run = read_run(elastic)
    lanes = make_lanes(run.records)
    exact = lanes_of(run)
    assert [len(row) // 3 for row in exact["lanes"]] == [len(lanes.intervals[k]) for k in range(14)]
    assert {kind["name"] for kind in exact["kinds"]} == set(KINDS)
    assert len([mark for mark in exact["marks"] if mark[2] == "×"]) == 7
    monkeypatch.setattr(lane_zoom, "INTERVALS_MAX", 280)
    few = lanes_of(run)
    assert sum(len(row) // 3 for row in few["lanes"]) <= 280
    for row in few["lanes"]:
        assert row[::3] == sorted(row[::3])
        assert row[-2] == pytest.approx(lanes.end_s, abs=1e-3)


def shorten_computing(record):
    if record["event"] == "ExchangeEnded":
        record["compute_s"] = {slot: 1e-4 for slot in record["compute_s"]}


@pytest.mark.filterwarnings("error")
def test_warnings_and_long_waits_are_at_the_top_and_names_are_shown_unchanged(path):
    name, note = '<b>$x_$ & "y"', "column 'y' is nearly <the> label"
    edit_summary(path, name=name, notes=[note])
    edit_story(path, shorten_computing)
    page = write_report(path)
    assert name in "".join(check(page).words)
    top = page.read_text().partition("</header>")[0]
    assert "column &#39;y&#39; is nearly &lt;the&gt; label" in top
    assert "About 1 member pays for these data" in top


def test_page_elsewhere_of_an_interrupted_run_includes_the_history(path, tmp_path):
    (path / "summary.json").unlink()
    story = (path / "story.jsonl").read_text().splitlines()
    (path / "story.jsonl").write_text("\n".join(story[:-4]) + '\n{"t": 9.1, "ev')
    page = tmp_path / "out" / "page.html"
    done = CliRunner().invoke(report, [str(path), "--png", "--out", str(page)])
    assert (done.exit_code, done.output) == (0, f"report      {page}\n")
    seen = check(page)
    words = " ".join(seen.words)
    assert "unfinished" in words
    assert "The last line of story.jsonl is cut off and was left out." in words
    (link,) = [one for one in seen.links if one.startswith("data:text/csv;base64,")]
    assert base64.b64decode(link.partition(",")[2]) == (path / "history.csv").read_bytes()
    assert (tmp_path / "out" / "lanes.png").exists()
    two = CliRunner().invoke(report, [str(path), str(path), "--png"])
    assert "--png: got several runs or labels, wanted one run" in two.output
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; check the path"):
        write_report(path, tmp_path / "file" / "page.html")
    with pytest.raises(ConfigError, match="does not exist"):
        write_report(tmp_path / "none", tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


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
    "negative objective": lambda p: edit_history(p, lambda r: r.update(objective="-1e300")),
    "blank everything": lambda p: edit_history(p, lambda r: r.update(dict.fromkeys(r, ""))),
    "huge bytes": lambda p: edit_history(p, lambda r: r.update(moved_bytes="1e18")),
    "with a gap": lambda p: edit_history(p, lambda r: r.update(gap=0.5 ** int(r["round"]))),
    "no story": lambda p: (p / "story.jsonl").unlink(),
    "no history": lambda p: (p / "history.csv").unlink(),
    "foreign history": lambda p: (p / "history.csv").write_text("a,b\n1,2\n"),
    "bytes that are no text": lambda p: (p / "history.csv").write_bytes(b"\xff\xfe\x00round\n\x80"),
    "no summary": lambda p: (p / "summary.json").unlink(),
    "summary of lists": lambda p: (p / "summary.json").write_text(
        json.dumps({key: [1] for key in json.loads((p / "summary.json").read_text())})
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name",
    ["zero rounds", *(pytest.param(k, marks=pytest.mark.slow) for k in ODD if k != "zero rounds")],
)
def test_unusual_run_still_has_a_report(path, name):
    ODD[name](path)
    result = check(write_report(path))
    assert "Settings" in result.words


# --- several runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(elastic, tmp_path_factory):
    """A run without faults, and one with stand-ins."""
    calm = write_elastic_run(tmp_path_factory.mktemp("calm") / "run", faults=False)
    return [calm, elastic]


@pytest.mark.parametrize("drawing", [overlay_picture, time_picture])
def test_the_longest_names_end_within_the_plot_and_before_the_next_panel(runs, drawing):
    names = [f"ignore_rescaled {letter * 9}" for letter in "ab"]
    figure = styled(drawing, [read_run(run) for run in runs], names).figure
    figure.canvas.draw()
    ends = [ax.get_tightbbox().x0 for ax in figure.axes[1:]] + [figure.bbox.x1]
    for ax, end in zip(figure.axes, ends, strict=True):
        named = [text.get_window_extent() for text in ax.texts if text.get_text()[:6] == "ignore"]
        assert len(named) == len(names)
        assert max(box.x1 for box in named) < end


def test_a_comparison_reads_the_evaluated_objective_and_metric_or_shows_an_estimate(runs):
    rows = table(runs, ["calm", "taylor"], rounds=[LOSS, LOSS + 5, END])
    assert [row.label for row in rows] == ["calm", "taylor"]
    for row, path in zip(rows, runs, strict=True):
        history = read_run(path).history
        chosen = [LOSS, LOSS + 5, END]
        assert [c.value for c in row.objective] == history.column("objective")[chosen].tolist()
        assert [c.value for c in row.test] == history.column("test_average_precision")[
            chosen
        ].tolist()
    (row,) = table(runs[1:], ["taylor"], rounds=[33, END + 1])
    estimate, beyond = row.objective
    assert (estimate.exact, estimate.round) == (False, 33)
    assert (row.test[0].round, beyond.value) == (30, None)
    lines = text_table([row]).splitlines()
    assert lines[0] == "objective over all examples"
    assert lines[1].split() == ["round", "33", f"{END + 1}"]
    assert lines[2].split() == ["taylor", f"~{estimate.value:.5f}", "–"]
    assert "@30" in lines[6]
    assert lines[-2:] == [
        "~ the driver's own figure, an estimate while examples are absent",
        "@ taken from that round, the last one evaluated before",
    ]
    assert choose_rounds([read_run(run) for run in runs]) == (15, LOSS, 30, 39, 45, END)


def test_the_page_of_several_runs_is_self_contained(runs, certified, path, tmp_path):
    page = write_overlay([*runs, certified], None, tmp_path / "overlay.html")
    result = check(page)
    assert {"3 runs compared", "svm", "Objective by time", "Certified gap"} <= set(result.words)
    # Equal names are distinguished by their directories.
    labels = [row.label for row in table([runs[1], path], rounds=[3])]
    assert labels == ["two-classes-taylor (run)", "two-classes-taylor (r)"]
    draw(runs, ["calm", "taylor"], tmp_path / "deep/figure.svg")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["figure.svg"]
    without = write_overlay(runs, ["a", "b"], tmp_path / "plain.html").read_text()
    assert "Certified gap" not in without


@pytest.mark.filterwarnings("error")
def test_runs_without_rounds_are_drawn_too(runs, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "story.jsonl").write_text('{"t": 0.0, "event": "JobStarted", "name": "$empty"}\n')
    result = check(write_overlay([runs[0], empty], None, tmp_path / "o.html"))
    assert "$empty" in result.words
    assert draw([empty], None, tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("n_runs", "labels", "out", "message"),
    [
        (0, None, "a.png", "got 0 run directories"),
        (2, ["x"], "a.png", "got 1 labels for 2 runs"),
        (1, None, "a.gif", "must end in .png or .svg, got '.gif'"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(runs, tmp_path, n_runs, labels, out, message):
    with pytest.raises(ConfigError, match=message):
        draw(runs[:n_runs], labels, tmp_path / out)
    assert list(tmp_path.iterdir()) == []


def test_ticks_have_the_digits_that_tell_them_apart():
    ticks = DistinctTicks().format_ticks
    assert ticks([0.69312, 0.693125]) == ["0.69312", "0.693125"]
    assert ticks([0.69312001, 0.69312002]) == ["0.69312001", "0.69312002"]
    assert ticks([0.1, 0.2, 0.30000000000000004, 2000.0]) == ["0.1", "0.2", "0.3", "2000"]


def test_long_table_is_thinned_but_complete_around_each_change(elastic):
    run = read_run(elastic)
    shown = rows_to_show(run, rows_max=30)
    assert len(shown) <= 30
    assert {0, LOSS - 1, LOSS, LOSS + 1, RETURN - 1, RETURN, RETURN + 1, END} <= set(shown)
    assert rows_to_show(run) == list(range(END + 1))
