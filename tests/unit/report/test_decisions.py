"""The certified gap, and the decisions of policies."""

import pytest

from elasticml.report.overlay_page import write_overlay
from elasticml.report.overlay_plot import gap_comparison
from elasticml.report.plots import gap_picture
from elasticml.report.run_page import decided_by_round, decisions, write_report
from elasticml.report.run_reader import read_run
from elasticml.report.series import membership_marks
from elasticml.report.style import styled
from elasticml.report.timeline import timeline
from elasticml.story.records import record_from_json, records_from_json
from tests.unit.report.fabricate import fabricate_run
from tests.unit.report.fabricate_cocoa import BOUND, KNEE, ROUNDS, fabricate_cocoa, records


def story():
    return records_from_json(records())


@pytest.fixture
def run(tmp_path):
    return read_run(fabricate_cocoa(tmp_path / "run"))


def test_a_bound_of_the_gap_is_drawn_differently_from_the_gap(run):
    picture = styled(gap_picture, run)
    ax = picture.figure.axes[0]
    assert ax.get_yscale() == "log"
    known = [line for line in ax.lines if line.get_marker() == "o"]
    exact, bound = (set(line.get_xdata().tolist()) for line in known)
    assert bound == {r for r in BOUND if r % 2 == 0}
    assert exact == {r for r in range(0, ROUNDS, 2)} - bound
    assert known[0].get_markerfacecolor() != known[1].get_markerfacecolor()
    dashed = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.is_dashed()]
    assert {line.get_xdata()[1] for line in dashed if line.get_xdata()[1] > 1} >= bound
    assert "2 of 15 certificates are upper bounds" in picture.alt


def test_the_gap_at_which_the_job_stops_is_drawn(run):
    texts = [text.get_text() for text in styled(gap_picture, run).figure.axes[0].texts]
    assert "stops at 1e-06" in texts


def test_a_run_without_certificates_has_no_plot_of_them(tmp_path):
    run = read_run(fabricate_run(tmp_path / "run", rounds=20, at=5, back=10))
    assert styled(gap_picture, run) is None


def test_released_members_are_marked_as_released(run):
    marks = [(mark.kind, mark.round, mark.count) for mark in membership_marks(run.records)]
    assert marks == [("retired", KNEE, 3)]


def test_repeated_decisions_are_grouped_and_the_others_listed():
    balanced, knee = decisions(story())
    assert (balanced.rounds, balanced.what, balanced.count) == ("1 to 3", "moved 12 chunks", 3)
    assert balanced.why == "slot 3 takes 1.3 times as long"
    assert (knee.rounds, knee.what) == (f"{KNEE}", "gave back 3 members")
    assert knee.why.endswith("4 members become 1")
    assert decided_by_round(story()) == {KNEE: "knee gave back 3 members"}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"suggestion": "Request", "count": 4}, "asked for 4 more"),
        (
            {"suggestion": "Tune", "setting": "local_epochs", "value": 0.123456},
            "set local_epochs to 0.1235",
        ),
        ({"suggestion": "Readmit", "group": 1}, "brought absent chunks back"),
        ({"suggestion": "Replicate", "chunks": 1}, "copied 1 chunk"),
    ],
)
def test_every_kind_of_decision_has_its_words(fields, what):
    record = {"t": 1.0, "event": "PolicyDecided", "round": 1, "policy": "p", "why": "w", **fields}
    assert [d.what for d in decisions([record_from_json(record)])] == [what]


def test_the_timeline_has_released_members_and_not_every_move():
    texts = [entry.text for entry in timeline(story())]
    assert "3 members given back, emptied: 1.1, 2.1, 3.1." in texts
    assert sum(text.startswith("Decided by") for text in texts) == 1


def test_the_page_has_decisions_with_their_reasons(tmp_path):
    path = fabricate_cocoa(tmp_path / "run")
    page = write_report(path).read_text()
    assert "What policies decided" in page
    assert "knee &lt;0.1 against 0.2 decades a round&gt;: 4 members become 1" in page
    assert "<td>knee gave back 3 members</td>" in page  # in the table of rounds
    assert "<td>≤0.01</td>" in page
    assert ">given back<" in page
    assert sorted(p.name for p in path.glob("*.png")) == [
        "gap-time.png",
        "gap.png",
        "lanes.png",
        "members.png",
        "objective-zoom.png",
        "objective.png",
    ]


def test_runs_compared_show_their_gaps(tmp_path):
    twins = [fabricate_cocoa(tmp_path / name) for name in ("without", "with")]
    runs = [read_run(path) for path in twins]
    gaps = styled(gap_comparison, runs, ["without", "with"])
    assert [ax.get_yscale() for ax in gaps.figure.axes] == ["log", "log"]
    assert all(ax.get_ylim()[1] > 1.0 for ax in gaps.figure.axes)  # the first gap is visible
    assert not any("begins at" in t.get_text() for ax in gaps.figure.axes for t in ax.texts)
    page = write_overlay(twins, ["without", "with"], tmp_path / "both.html").read_text()
    assert "Certified gap" in page


def test_runs_without_gaps_are_compared_without_that_plot(tmp_path):
    runs = [read_run(fabricate_run(tmp_path / "plain", rounds=5, at=1, back=2))]
    assert styled(gap_comparison, runs, ["plain"]) is None
