"""The report of one run: a self-contained HTML page, and its plots as PNG files if asked."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from elasticml.ids import format_size
from elasticml.report.lane_plot import KIND_WORDS, lanes_picture
from elasticml.report.lane_zoom import lanes_zoom
from elasticml.report.markup import PlainTable, drawing, lead_text, number, render
from elasticml.report.plots import (
    gap_picture,
    gap_time_picture,
    members_picture,
    metric_picture,
    objective_picture,
    objective_zoom,
    validation_picture,
)
from elasticml.report.preemptions import preemptions_table
from elasticml.report.run_reader import TEXT_COLUMNS, RunData, read_run
from elasticml.report.series import (
    absence_windows,
    headline_metric,
    membership_marks,
    metric_name,
    rounds_of,
)
from elasticml.report.style import Picture, png_bytes, styled, write_whole
from elasticml.report.timeline import seconds_text, timeline
from elasticml.report.waiting import time_use
from elasticml.report.words import legend
from elasticml.story.json_fields import finite
from elasticml.story.records import DataLoaded, JobEnded, JobStarted, PolicyDecided, StoryRecord
from elasticml.story.summary import RunSummary

#: Suggestions that may occur in every round; those of one policy are summed up in one entry.
_OFTEN = ("Move", "Replicate", "Discard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, or several of one kind that a policy took in successive rounds."""

    first_round: float
    last_round: float
    at_s: float
    policy: str
    #: A short description.
    what: str
    #: The policy's reason; of several decisions that of the last one.
    why: str
    count: int = 1

    #: The decision is of a kind that may occur in every round.
    is_often: bool = False

    @property
    def rounds(self) -> str:
        """The round, or the first and the last round, as text."""
        if math.isnan(self.first_round):
            return ""
        if self.last_round == self.first_round:
            return f"{self.first_round:.0f}"
        return f"{self.first_round:.0f} to {self.last_round:.0f}"


def decisions(records: Sequence[StoryRecord]) -> tuple[Decision, ...]:
    """List the policies' decisions in order of their beginning, with chunk moves summed up."""
    taken: list[Decision] = []
    # Index of the entry to which the next decision of a policy and kind is added.
    open_at: dict[tuple[str, str], int] = {}
    chunks: dict[int, float] = {}
    for record, round_number in zip(records, rounds_of(records), strict=True):
        if not isinstance(record, PolicyDecided):
            continue
        policy, kind = record.policy, record.suggestion
        place = open_at.get((policy, kind))
        if kind in _OFTEN and place is not None:
            chunks[place] += record.chunks or 0
            old = taken[place]
            taken[place] = Decision(
                first_round=old.first_round,
                last_round=round_number,
                at_s=old.at_s,
                policy=policy,
                what=_often(kind, chunks[place]),
                why=record.why,
                count=old.count + 1,
                is_often=True,
            )
            continue
        if kind in _OFTEN:
            open_at[policy, kind] = len(taken)
            chunks[len(taken)] = record.chunks or 0
        else:
            open_at.clear()  # moves after any other decision make a new entry
        what = _often(kind, chunks[len(taken)]) if kind in _OFTEN else _what(record)
        taken.append(
            Decision(
                first_round=round_number,
                last_round=round_number,
                at_s=record.t,
                policy=policy,
                what=what,
                why=record.why,
                is_often=kind in _OFTEN,
            )
        )
    return tuple(taken)


def decision_rows(records: Sequence[StoryRecord]) -> list[list[str]]:
    """Return the rows of the table of the policies' decisions and reasons."""
    return [
        [
            d.rounds,
            f"{d.at_s:,.2f} s",
            d.policy.replace("_", " "),
            d.what + (f" in {d.count} rounds" if d.count > 1 else ""),
            d.why,
        ]
        for d in decisions(records)
    ]


def decided_by_round(records: Sequence[StoryRecord]) -> dict[float, str]:
    """Describe briefly the decisions before each round, except moves of chunks."""
    by_round: dict[float, list[str]] = {}
    for decision in decisions(records):
        if decision.count == 1 and not decision.is_often:
            by_round.setdefault(decision.first_round, []).append(
                f"{decision.policy.replace('_', ' ')} {decision.what}"
            )
    return {number: "; ".join(texts) for number, texts in by_round.items()}


def _often(kind: str, chunks: float) -> str:
    n = f"{chunks:,.0f} chunk{'' if chunks == 1 else 's'}"
    return {"Move": f"moved {n}", "Replicate": f"copied {n}", "Discard": "dropped copies"}[kind]


def _what(record: PolicyDecided) -> str:
    n = len(record.members or ())
    match record.suggestion:
        case "Retire":
            return f"gave back {n} member{'' if n == 1 else 's'}"
        case "Request":
            return f"asked for {record.count or 0} more"
        case "Tune":
            value = record.value
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            return f"set {record.setting} to {shown}"
        case "Readmit":
            return "brought absent chunks back"
    return record.suggestion.lower()


#: Rows of the history shown in full; a longer history is thinned.
_ROWS_MAX = 80
#: Entries of the timeline shown at once; the rest is folded.
_ENTRIES_MAX = 60

#: Size up to which a page outside the run directory embeds the history.
_CSV_BYTES_MAX = 2_000_000

#: Signs before an objective that is not exact.
_KIND_SIGNS = {"estimated": "~", "bound": "≤"}

#: The sections with plots: heading, plots, and what is said if there are none.
_PICTURES: tuple[
    tuple[str, tuple[Callable[[RunData], Picture | None], ...], str], ...
] = (
    ("Objective", (objective_picture, objective_zoom), "No objective was recorded."),
    ("Certified gap", (gap_picture, gap_time_picture), ""),
    ("Validation score", (validation_picture,), ""),
    ("Test metric and members", (metric_picture, members_picture), ""),
    ("What every member did", (lanes_picture,), "The story records no member's work."),
)  # fmt: skip


def write_report(run_dir: str | Path, out: str | Path | None = None, *, png: bool = False) -> Path:
    """Write the report of a run and return the page's path.

    Parameters
    ----------
    run_dir : path
        A directory of ``elasticml run``; the run may be unfinished, interrupted or without rounds.
    out : path, optional
        The page, by default ``report.html`` in the run directory.
    png : bool
        Whether to write ``objective.png``, ``objective-zoom.png``, ``gap.png``, ``gap-time.png``,
        ``test.png``, ``members.png`` and ``lanes.png`` beside the page, if the run has data for
        them. That takes as long as the page.

    Raises
    ------
    ConfigError
        When ``run_dir`` is not a run directory.
    """
    run = read_run(run_dir)
    page = Path(out) if out is not None else run.path / "report.html"
    pictures = [_pictures(run, page if png else None, *section) for section in _PICTURES]
    started = run.first(JobStarted)
    versions = {} if started is None else started.versions or {}
    job = {} if run.job is None else run.job.json
    text = render(
        "run.html",
        title=run.name,
        run=run,
        lead=_lead(run),
        warnings=_warnings(run),
        cards=_cards(run),
        pictures=pictures,
        containers=preemptions_table(run.records),
        decisions=decision_rows(run.records),
        timeline=timeline(run.records),
        entries_max=_ENTRIES_MAX,
        rounds=_rounds(run, page),
        legend=legend(_words(run)),
        settings=sorted(_flatten(job)),
        versions=", ".join(f"{name} {n}" for name, n in sorted(versions.items())),
    )
    return write_whole(page, text.encode("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSection:
    """A section with plots: one, or two side by side."""

    heading: str
    drawings: Sequence[Markup]
    notes: Sequence[str]
    is_pair: bool


def _pictures(
    run: RunData,
    page: Path | None,
    heading: str,
    draws: Sequence[Callable[[RunData], Picture | None]],
    missing: str,
) -> PictureSection:
    """Return a section with plots, and write the plots beside a page."""
    drawings = []
    for draw in draws:
        picture: Picture | None = styled(draw, run)
        if picture is None:
            continue
        if page is not None:
            write_whole(page.with_name(f"{picture.name}.png"), png_bytes(picture.figure))
        shown = drawing(picture)
        drawings.append(lanes_zoom(run, shown) if picture.name == "lanes" else shown)
    notes = [missing] if missing and not drawings else []
    if metric_picture in draws and headline_metric(run.history) is None:
        notes.append("No test set was evaluated.")
    return PictureSection(heading=heading, drawings=drawings, notes=notes, is_pair=len(draws) > 1)


def _words(run: RunData) -> list[str]:
    """Return the words of the page that need an explanation."""
    columns = [_column_words(name) for name in _table_columns(run)]
    cards = [label for label, *_ in _cards(run)]
    lanes = [*KIND_WORDS.values(), "slot", "notice"] if run.records else []
    decided = ["decided", "policy"] if decisions(run.records) else []
    marks = ["estimate (~)"] if "estimated" in run.history.kinds else []
    rule = ["absent rule"] if run.job is not None and run.job.absent else []
    return [*columns, *cards, *lanes, *decided, *marks, *rule]


def _lead(run: RunData) -> str:
    """Describe the run in one line: algorithm, data, absent rule."""
    loaded = run.first(DataLoaded)
    rows, columns = run.summary.examples, run.summary.features
    if loaded is not None:
        rows = loaded.rows if rows is None else rows
        columns = loaded.features if columns is None else columns
    return lead_text(run.job, rows, columns)


def _warnings(run: RunData) -> list[str]:
    """Return what a reader should know first: waits, notes on the data, how the run failed."""
    summary, loaded = run.summary, run.last(DataLoaded)
    notes = summary.notes or (() if loaded is None else loaded.notes)
    known = [*time_use(run.records).advice(), *run.notes, *notes]
    state = "The run has not ended, or was killed: the page shows what it has written so far."
    ended = [state] if run.state == "unfinished" else []
    missed = [run.unconverged] if run.unconverged else []
    return [*missed, *dict.fromkeys(known), *ended, *filter(None, [summary.error])]


def _cards(run: RunData) -> list[tuple[str, str, str]]:
    """Return label, value and remark of the key figures, from the summary or the history."""
    summary, history = run.summary, run.history
    marks = membership_marks(run.records)
    rounds = _known(summary.rounds, _last(run, "round"))
    seconds = _known(summary.seconds, _last(run, "seconds"))
    stand_ins = int((history.column("stand_ins") > 0).sum())
    cards = [
        ("objective", number(*_objective(run)[:1]), _objective(run)[1]),
        ("gap", number(_known(summary.gap, _last(run, "gap")), 3), _gap_words(summary)),
        ("rounds", number(rounds), _ending(run)),
        ("time", seconds_text(finite(seconds)), ""),
        ("members", *_members(run)),
        ("lost", number(_known(summary.lost, _counted(marks, "lost"))), "members"),
        ("given back", number(_retired(summary, marks)), "members, emptied before"),
        ("container-seconds", number(summary.container_seconds, 4), "members × time"),
        ("returned", number(_known(summary.returned, _counted(marks, "back"))), "members"),
        ("stand-in rounds", number(_known(summary.stand_in_rounds, stand_ins)), ""),
    ]
    if summary.cuda_rounds:
        cards.append(("CUDA rounds", number(summary.cuda_rounds), "computed on a GPU"))
    moved = finite(_known(summary.moved_bytes, _last(run, "moved_bytes")))
    chunks = summary.chunks_moved
    cards.append(
        (
            "moved",
            format_size(moved) if math.isfinite(moved) else "–",
            f"{number(chunks)} chunks" if chunks else "between members",
        )
    )
    kept = summary.validation or {}
    if kept.get("score") is not None:
        label = f"validation {kept['metric'].replace('_', ' ')}"
        of = f"model of round {kept['round']}, {number(kept['rows'])} rows"
        cards.append((label, number(kept["score"], 4), of))
    for name, value in (summary.test or {}).items():
        if math.isfinite(finite(value)):
            cards.append((_column_words(f"test_{name}"), number(finite(value), 4), ""))
    return [card for card in cards if card[1] != "–" or card[0] in ("objective", "rounds")]


def _objective(run: RunData) -> tuple[float | None, str]:
    """Return the final objective and what it covers."""
    summary = run.summary
    if summary.objective is not None:
        return summary.objective, "over all examples"
    if summary.rounds is not None:
        return None, summary.objective_missing_because or "not known over all examples"
    own = run.history.column("objective")
    rows = np.flatnonzero(np.isfinite(own))
    if not len(rows):
        return None, "no round was finished"
    kind = run.history.kinds[rows[-1]]
    return float(own[rows[-1]]), "so far" if kind == "exact" else f"so far, {kind}"


def _known(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


def _gap_words(summary: RunSummary) -> str:
    return "an upper bound" if summary.gap_is_bound else ""


def _ending(run: RunData) -> str:
    """Return whether the run has converged and why, or what stopped it."""
    converged, ended = run.summary.converged, run.last(JobEnded)
    if converged is None and ended is not None:
        converged = ended.converged
    if converged is None:
        return "so far" if run.state == "unfinished" else ""
    if converged:
        return ": ".join(filter(None, ("converged", run.summary.stopped_by)))
    return run.summary.stopped_by or "not converged"


def _members(run: RunData) -> tuple[str, str]:
    """Return the number of members at the start, the fewest, and at the end, with a label."""
    members = run.summary.members
    if members is not None:
        three = [finite(n) for n in (members.start, members.min, members.end)]
    else:
        column = run.history.column("members")
        column = column[np.isfinite(column)]
        three = [column[0], column.min(), column[-1]] if len(column) else [math.nan] * 3
    if not all(math.isfinite(n) for n in three):
        return "–", ""
    return " → ".join(number(n) for n in three), "start, fewest, end"


def _counted(marks: tuple[Any, ...], kind: str) -> int:
    return sum(mark.count for mark in marks if mark.kind == kind)


def _retired(summary: RunSummary, marks: tuple[Any, ...]) -> int | None:
    return summary.retired or _counted(marks, "retired") or None


def _last(run: RunData, column: str) -> float | None:
    """Return a column's last number; None if it has none."""
    values = run.history.column(column)
    valid = values[np.isfinite(values)]
    return float(valid[-1]) if len(valid) else None


def rows_to_show(run: RunData, rows_max: int = _ROWS_MAX) -> list[int]:
    """Choose rows of the history: all of a short run; else evenly spaced, and around changes."""
    n = run.history.n_rows
    if n <= rows_max:
        return list(range(n))
    rounds = run.history.column("round")
    changes = [mark.round for mark in membership_marks(run.records)]
    for window in absence_windows(run.history):
        changes += [window.start_round, window.end_round]
    near = {
        int(i)
        for change in sorted(set(changes))[: rows_max // 8]
        for i in np.flatnonzero(np.abs(rounds - change) <= 1)
    }
    # A step of 1, 2 or 5 times a power of ten gives round numbers.
    room = max(rows_max - len(near) - 2, 1)
    scale = 10 ** math.floor(math.log10(n / room)) if n > room else 1
    step = next(k * scale for k in (1, 2, 5, 10) if n / (k * scale) <= room)
    return sorted(near | set(range(0, n, step)) | {0, n - 1})


def _table_columns(run: RunData) -> list[str]:
    """Return the columns of the history that the table of rounds shows."""
    history = run.history
    return [n for n in history.names if any(history.cells[n]) and n not in TEXT_COLUMNS]


def _column_words(name: str) -> str:
    """Return the name of a column as the legend has it."""
    return f"test {metric_name(name)}" if name.startswith("test_") else name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsTable(PlainTable):
    """The table of rounds, thinned if it is long, and where the whole one is."""

    is_short: bool
    note: str
    #: Address of the whole table: a file beside the page, or its content; empty if neither.
    href: str
    is_copy: bool


def _rounds(run: RunData, page: Path) -> RoundsTable | None:
    """Return the table of rounds; None if no round was finished."""
    history = run.history
    if history.n_rows == 0:
        return None
    names = _table_columns(run)
    shown = rows_to_show(run)
    rows = [[_cell(run, name, i) for name in names] for i in shown]
    decided = decided_by_round(run.records)
    words = [_column_words(n) for n in names]
    if decided:
        numbers = history.column("round")
        words.append("decided")
        rows = [[*row, decided.get(numbers[i], "")] for i, row in zip(shown, rows, strict=True)]
    absent = history.column("absent_examples")
    note = f"{len(shown)} of {history.n_rows} rows" if len(shown) < history.n_rows else "every row"
    csv_path = run.path / "history.csv"
    href, is_copy = "", False
    if csv_path.is_file() and page.parent.resolve() == run.path.resolve():
        href = "history.csv"
    elif csv_path.is_file() and csv_path.stat().st_size <= _CSV_BYTES_MAX:
        copy = base64.b64encode(csv_path.read_bytes()).decode("ascii")
        href, is_copy = f"data:text/csv;base64,{copy}", True
    elif csv_path.is_file():
        note += ", the whole table is in the run directory's history.csv"
    return RoundsTable(
        names=words,
        rows=rows,
        classes=["away" if absent[i] > 0 else "" for i in shown],
        is_short=history.n_rows <= 15,
        note=note,
        href=href,
        is_copy=is_copy,
    )


def _cell(run: RunData, name: str, row: int) -> str:
    """Format one cell of the history."""
    text = run.history.cells[name][row]
    if name not in run.history.columns or not text:
        return text
    value = float(run.history.columns[name][row])
    if not math.isfinite(value):
        return text
    if name.endswith("_bytes"):
        return format_size(value)
    if name == "gap":
        return ("≤" if run.history.gap_bounds[row] else "") + number(value, 3)
    if name == "objective":
        return _KIND_SIGNS.get(run.history.kinds[row], "") + number(value)
    return f"{value:.3f}" if name == "seconds" else number(value)


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """List nested settings as dotted names and JSON values."""
    flat = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            flat += _flatten(item, f"{name}.")
        else:
            flat.append((name, item if isinstance(item, str) else json.dumps(item, default=str)))
    return flat
