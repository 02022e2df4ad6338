"""HTML of reports: templates, drawings, formatted numbers. Templates escape what they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from elasticml.report.words import WORDS, anchor

if TYPE_CHECKING:
    from jinja2 import Environment

    from elasticml.protocol.job_record import JobRecord
    from elasticml.report.style import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A table of plain cells."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Each row's class, empty for none.
    classes: Sequence[str] = ()


@cache
def _environment() -> Environment:
    """Return jinja2's environment of the templates: every value is escaped."""
    # Imported here: who follows a job needs it only where a page is drawn.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("elasticml.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(drawing=drawing, anchor=anchor)
    environment.globals.update(style_sheet=style_sheet, words=WORDS)
    return environment


def render(template: str, **values: object) -> Markup:
    """Return a template of ``templates/`` with values, which are escaped."""
    return Markup(_environment().get_template(template).render(values))


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


def drawing(picture: Picture) -> Markup:
    """Return a picture as inline SVG with its caption."""
    from elasticml.report.style import svg_markup  # loads matplotlib, which tables do not need

    svg = svg_markup(picture.figure, picture.name, picture.title, picture.alt)
    return render("drawing.html", svg=Markup(svg), caption=picture.caption)


def style_sheet(scope: str | None = None) -> Markup:
    """Return the style of pages; of ``scope``, a selector, only the palette, for that element."""
    folder = files("elasticml.report")
    palette = folder.joinpath("palette.css").read_text(encoding="utf-8")
    if scope is not None:
        return Markup(palette.replace(":root", scope))
    return Markup(palette + folder.joinpath("page.css").read_text(encoding="utf-8"))
