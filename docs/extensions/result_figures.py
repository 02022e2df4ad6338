"""The directive ``figures``: tables and charts from the result files in ``docs/figures``.

A result file is one JSON object with ``title``, ``date``, ``command``, ``machine``, ``columns``,
``rows`` and ``notes``, or with a list ``tables`` of such objects, which inherit what they lack from
the file. ``text`` is a paragraph above the table. Tables of the peers' milliseconds get a summary
of their ratios (``peer_ratios.py``). ``chart: {"label": column, "bars": [columns],
"log": true, "unit": text}`` adds bars below it. The file's ``image`` comes last.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import peer_ratios
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

matplotlib.use("Agg")
FIGURES = Path(__file__).resolve().parents[1] / "figures"
_INHERITED = ("date", "command", "machine")
_BLUES = ("#2563a8", "#9db8d6", "#d6863b", "#7a7a7a", "#5a9367")


def tables_of(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a result file, each complete.

    Raises
    ------
    ValueError
        When a table lacks a key, or a row has another length than the columns.
    """
    content = json.loads(path.read_text())
    parts = content.get("tables", [content])
    tables = [{**{k: content[k] for k in _INHERITED if k in content}, **part} for part in parts]
    for table in tables:
        missing = {"title", "columns", "rows", *_INHERITED} - table.keys()
        if missing:
            raise ValueError(f"{path.name}: {table.get('title')}: no {', '.join(sorted(missing))}")
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise ValueError(f"{path.name}: {table['title']}: {row} does not fit the columns")
    return tables


class Figures(SphinxDirective):
    """All result files, or those that the content names, one section for each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a section for every file."""
        self.env.note_reread()  # a new result file belongs on the page
        names = [line.strip() for line in self.content if line.strip()]
        paths = [FIGURES / f"{name}.json" for name in names] or sorted(FIGURES.glob("*.json"))
        sections: list[nodes.Node] = []
        for path in sorted(paths, key=lambda path: json.loads(path.read_text()).get("order", 100)):
            self.env.note_dependency(str(path))
            sections.append(self._section(path))
        return sections

    def _section(self, path: Path) -> nodes.section:
        content = json.loads(path.read_text())
        tables = tables_of(path)
        section = nodes.section(ids=[nodes.make_id(path.stem)])
        section += nodes.title(text=content.get("title", tables[0]["title"]))
        self.state.document.note_explicit_target(section, section)
        if "tables" in content:
            section += self._paragraphs(content)
        for i, table in enumerate(tables):
            if "tables" in content:
                section += nodes.rubric(text=table["title"])
            section += self._paragraphs(table)
            if path.stem in peer_ratios.FILES:
                section += self._ratios(table)
            section += _table(table)
            if "chart" in table:
                section += self._chart(table, f"{path.stem}-{i}")
            section += [self._text(note) for note in table.get("notes", ())]
            section += _origin(table)
        if "tables" in content:
            section += [self._text(note) for note in content.get("notes", ())]
        if "image" in content:
            section += nodes.image(uri=content["image"], alt=content["title"])
        return section

    def _paragraphs(self, table: dict[str, Any]) -> list[nodes.Node]:
        return [self._text(table["text"])] if table.get("text") else []

    def _ratios(self, table: dict[str, Any]) -> list[nodes.Node]:
        rows = peer_ratios.ratios(table["columns"], table["rows"])
        text = "elasticml's time divided by another's, over the rows below that both reached:"
        return [self._text(text), _table({"columns": peer_ratios.COLUMNS, "rows": rows})]

    def _text(self, text: str) -> nodes.paragraph:
        # Inline markup of the page's own parser: `code`, links.
        parsed, _ = self.parse_inline(text)
        return nodes.paragraph(text, "", *parsed)

    def _chart(self, table: dict[str, Any], stem: str) -> nodes.Node:
        folder = Path(self.env.app.srcdir) / "generated" / "charts"
        folder.mkdir(parents=True, exist_ok=True)
        _draw_bars(table, folder / f"{stem}.svg")
        return nodes.image(
            uri=f"generated/charts/{stem}.svg", alt=table["title"], classes=["diagram"]
        )


def _table(table: dict[str, Any]) -> nodes.table:
    columns = table["columns"]
    group = nodes.tgroup(cols=len(columns))
    group += [nodes.colspec(colwidth=1) for _ in columns]
    group += nodes.thead("", _row(columns))
    group += nodes.tbody("", *(_row(row) for row in table["rows"]))
    return nodes.table("", group)


def _row(cells: list[Any]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=_shown(cell))) for cell in cells))


def _shown(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _origin(table: dict[str, Any]) -> nodes.paragraph:
    return nodes.paragraph(
        "",
        "",
        nodes.emphasis(text=f"{table['date']} · {table['machine']} · "),
        nodes.literal(text=table["command"]),
    )


def _draw_bars(table: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    chart, columns = table["chart"], table["columns"]
    label = columns.index(chart["label"])
    series = [columns.index(name) for name in chart["bars"]]
    rows = [row for row in table["rows"] if any(_is_number(row[i]) for i in series)]
    height = 0.8 / len(series)
    figure, axes = plt.subplots(figsize=(7.2, 0.7 + len(rows) * (0.16 + 0.16 * len(series))))
    for k, i in enumerate(series):
        places = [n + (k - (len(series) - 1) / 2) * height for n in range(len(rows))]
        values = [row[i] if _is_number(row[i]) else 0 for row in rows]
        bars = axes.barh(places, values, height, color=_BLUES[k], label=columns[i])
        axes.bar_label(bars, [f" {v:g}" if v else "" for v in values], fontsize=8)
    axes.set_yticks(range(len(rows)), [str(row[label]) for row in rows], fontsize=9)
    axes.invert_yaxis()
    if chart.get("log"):
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel(chart.get("unit", ""), fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("figures", Figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
