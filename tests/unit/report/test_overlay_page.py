"""Several runs compared."""

import numpy as np
import pytest
from matplotlib.text import Text

from elasticml.errors import ConfigError
from elasticml.report.overlay_page import (
    choose_rounds,
    draw,
    table,
    text_table,
    write_overlay,
)
from elasticml.report.overlay_plot import overlay_picture, spread, time_picture
from elasticml.report.run_reader import read_run
from elasticml.report.style import ABSENCE, styled
from tests.unit.report.fabricate import fabricate_run
from tests.unit.report.test_run_page import check

KINDS = ("none", "stall", "ignore", "taylor")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [
        fabricate_run(
            root / kind, absent=kind, lose=7 if kind != "none" else 0, rounds=60, at=20, back=40
        )
        for kind in KINDS
    ]


def test_plot_has_a_named_line_for_each_run_and_the_absence_shaded(runs):
    picture = styled(overlay_picture, [read_run(run) for run in runs], list(KINDS))
    left, right = picture.figure.axes
    for ax in (left, right):
        assert len(ax.lines) == len(KINDS)
        words = {text.get_text() for text in ax.texts}
        assert set(KINDS) <= words
        (shade,) = [p for p in ax.patches if p.get_facecolor()[:3] == pytest.approx(rgb(ABSENCE))]
        assert (shade.get_x(), shade.get_width()) == (20, 20)
    assert right.get_title(loc="left") == "Test AUPRC"


@pytest.mark.parametrize("drawing", [overlay_picture, time_picture])
def test_the_longest_names_end_within_the_plot_and_before_the_next_panel(runs, drawing):
    names = [f"ignore_rescaled {letter * 9}" for letter in "abcd"]
    picture = styled(drawing, [read_run(run) for run in runs], names)
    figure = picture.figure
    figure.canvas.draw()
    ends = [ax.get_tightbbox().x0 for ax in figure.axes[1:]] + [figure.bbox.x1]
    for ax, end in zip(figure.axes, ends, strict=True):
        named = [text.get_window_extent() for text in ax.texts if text.get_text()[:6] == "ignore"]
        assert len(named) == len(names)
        assert max(box.x1 for box in named) < end


def test_a_panels_title_ends_before_the_note_beside_it(runs):
    picture = styled(overlay_picture, [read_run(run) for run in runs], list(KINDS))
    picture.figure.canvas.draw()
    for ax in picture.figure.axes:
        (note,) = [text for text in ax.texts if text.get_text().startswith("begins at")]
        titles = [text for text in ax.get_children() if isinstance(text, Text)]
        (title,) = [text for text in titles if text.get_text() == ax.get_title(loc="left")]
        assert title.get_window_extent().x1 < note.get_window_extent().x0


def rgb(code):
    return tuple(int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_draw_writes_the_file_it_names(runs, tmp_path, ending):
    out = draw(runs, KINDS, tmp_path / f"deep/figure.{ending}")
    assert out.read_bytes()[:4] in (b"\x89PNG", b"<svg")
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_table_reads_the_evaluated_objective_and_metric(runs):
    rows = table(runs, KINDS, rounds=[20, 30, 60])
    for row, path in zip(rows, runs, strict=True):
        history = read_run(path).history
        full = history.column("objective_full")[[20, 30, 60]]
        assert [c.value for c in row.objective] == full.tolist()
        assert [c.value for c in row.test] == history.column("test_auprc")[[20, 30, 60]].tolist()
    assert [row.label for row in rows] == list(KINDS)


def test_row_that_was_not_evaluated_shows_the_estimate_and_an_earlier_metric(runs):
    (row,) = table(runs[3:], ["taylor"], rounds=[35, 61])
    estimate, beyond = row.objective
    assert (estimate.exact, estimate.round) == (False, 35)
    assert (row.test[0].round, beyond.value) == (30, None)
    lines = text_table([row]).splitlines()
    assert lines[0] == "objective over all examples"
    assert lines[1].split() == ["round", "35", "61"]
    assert lines[2].split() == ["taylor", f"~{estimate.value:.5f}", "–"]
    assert "@30" in lines[6]
    assert lines[-2:] == [
        "~ the driver's own figure, an estimate while examples are absent",
        "@ taken from that round, the last one evaluated before",
    ]


def test_rounds_are_chosen_from_the_runs(runs, tmp_path):
    assert choose_rounds([read_run(run) for run in runs]) == (15, 20, 30, 39, 45, 60)
    long = fabricate_run(tmp_path / "long", rounds=300)
    assert choose_rounds([read_run(long)]) == (100, 150, 199, 250, 300)


def test_page_compares_the_runs_and_is_self_contained(runs, tmp_path):
    page = write_overlay(runs, None, tmp_path / "overlay.html")
    result = check(page)
    assert len(result.labelled) == 2
    assert {"4 runs compared", "splice-stall", "Objective by time"} <= set(result.words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["overlay.html", "overlay.png"]


def test_equal_names_are_distinguished_by_their_directories(tmp_path):
    twins = [fabricate_run(tmp_path / n, rounds=3, at=1, back=2) for n in ("one", "two")]
    labels = [row.label for row in table(twins, rounds=[3])]
    assert labels == ["splice-taylor (one)", "splice-taylor (two)"]


@pytest.mark.filterwarnings("error")
def test_runs_without_rounds_or_test_set_are_drawn_too(tmp_path):
    plain = fabricate_run(tmp_path / "plain", rounds=5, at=1, back=2, test=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "story.jsonl").write_text('{"t": 0.0, "event": "JobStarted", "name": "$empty"}\n')
    result = check(write_overlay([plain, empty], None, tmp_path / "o.html"))
    assert "$empty" in result.words
    check(
        write_overlay([empty], ["a rather long name for a run of no rounds"], tmp_path / "p.html")
    )
    assert draw([empty], None, tmp_path / "e.png").exists()


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


def test_names_are_spread_apart_and_moved_no_more_than_needed():
    np.testing.assert_allclose(spread([0.5, 0.5, 0.9], 0.1), [0.45, 0.55, 0.9])
    np.testing.assert_allclose(spread([0.0, 0.0], 0.2), [0.0, 0.2])
    np.testing.assert_allclose(spread([0.95, 1.4], 0.2), [0.8, 1.0])
    rng = np.random.default_rng(0)
    for _ in range(50):
        places = spread(np.sort(rng.random(7)), 0.1)
        assert (np.diff(places) >= 0.1 - 1e-12).all()
        assert min(places) >= 0
        assert max(places) <= 1 + 1e-12
