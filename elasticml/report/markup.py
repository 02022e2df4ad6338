"""HTML building blocks: escaped text, formatted numbers, tables, figures, the document."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticml.protocol.job_record import JobRecord
    from elasticml.report.style import Picture


def esc(value: object) -> str:
    """Escape a value for use in an element or an attribute."""
    return html.escape(str(value), quote=True)


def number(value: object, digits: int = 6) -> str:
    """Format a number: integers with commas, others with ``digits`` digits; – for none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def lead_text(job: JobRecord | None, examples: int | None, features: int | None) -> str:
    """Describe a job in one line: algorithm, size of the data, absent rule."""
    parts = []
    if job is not None:
        names = [job.algorithm.get(key) for key in ("name", "optimizer", "loss")]
        parts.append(" · ".join(str(name).replace("_", " ") for name in names if name))
    if examples is not None:
        wide = f" × {number(features)} features" if features is not None else ""
        parts.append(f"{number(examples)} examples{wide}")
    if job is not None and job.absent:
        parts.append(f"absent examples: {job.absent}")
    return " — ".join(parts)


def table_html(
    head: Sequence[str], rows: Iterable[Sequence[str]], classes: Sequence[str] = ()
) -> str:
    """Return a table of plain cells; ``classes`` holds each row's class, empty for none."""
    lines = ["".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)]
    body = []
    for i, row in enumerate(rows):
        named = f' class="{esc(classes[i])}"' if i < len(classes) and classes[i] else ""
        body.append(f"<tr{named}>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{lines[0]}</tr></thead>\n'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def drawing(picture: Picture) -> str:
    """Return a picture as inline SVG with its caption."""
    from elasticml.report.style import svg_markup  # loads matplotlib, which tables do not need

    drawn = svg_markup(picture.figure, picture.name, picture.title, picture.alt)
    return (
        f'<figure><div class="scroll">{drawn}</div>'
        f"<figcaption>{esc(picture.caption)}</figcaption></figure>"
    )


def figure(picture: Picture, heading: str | None = None) -> str:
    """Return a section with a picture below its heading."""
    return f"<section><h2>{esc(heading or picture.title)}</h2>\n{drawing(picture)}</section>"


def style_sheet(scope: str | None = None) -> str:
    """Return the style of pages; of ``scope``, a selector, only the palette, for that element."""
    folder = files("elasticml.report")
    palette = folder.joinpath("palette.css").read_text(encoding="utf-8")
    if scope is not None:
        return palette.replace(":root", scope)
    return palette + folder.joinpath("page.css").read_text(encoding="utf-8")


def document(title: str, body: str) -> str:
    """Wrap a body into a self-contained page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style_sheet()}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
