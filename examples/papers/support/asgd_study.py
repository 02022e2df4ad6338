"""Common parts of the asynchronous SGD study: size, names, figures, and timed runs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.asgd_figures import Panel
from support.asgd_virtual import MeasuredCosts, Run, Shape, free_run, loop_of, measure

from examples.papers.support.nic_model import GIGABIT, INFINIBAND, Link

LINKS: dict[str, Link] = {"Gigabit Ethernet": GIGABIT, "InfiniBand": INFINIBAND}
PAPER, OURS = "ASGD, the paper's rule", "ASGD, default"
SGD, BATCH = "SimuParallelSGD", "BATCH"


@dataclass(kw_only=True)
class Budget:
    """How large experiments are; ``quick`` makes them toys."""

    seeds: int
    quick: bool = False
    #: Seconds after which an experiment starts no further seed.
    limit_s: float = math.inf
    #: Seeds of the last experiment that were run.
    done: int = 0
    measured: dict[str, MeasuredCosts] = field(default_factory=dict)

    def each(self, name: str) -> Iterator[int]:
        """Yield seeds, and report progress on stderr."""
        began_s = time.perf_counter()
        self.done = 0
        for seed in range(self.seeds):
            if seed and time.perf_counter() - began_s > self.limit_s:
                return
            yield seed
            self.done += 1
            spent_s = time.perf_counter() - began_s
            left_s = spent_s / self.done * (self.seeds - self.done)
            print(
                f"{name}: {self.done} of {self.seeds}, {spent_s:.0f} s, {left_s:.0f} s to go",
                file=sys.stderr,
                flush=True,
            )

    def few(self, n: int, quick: int) -> int:
        """Choose a size."""
        return quick if self.quick else n

    def taken(self, shape: Shape, **settings: Any) -> MeasuredCosts:
        """Measure, once, the duration of a worker loop's batches on this machine."""
        rule = "paper" if settings.get("mode") == "paper" else "default"
        name = f"{shape.name}, {rule}"
        if settings.get("share", 1.0) != 1.0:
            name += ", an eighth of the state"
        if name not in self.measured:
            loop = loop_of(shape, **{**settings, "batch": 500})
            self.measured[name] = measure(shape, loop, repeats=self.few(15, 2))
        return self.measured[name]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The result of an experiment."""

    title: str
    panels: tuple[Panel, ...]
    #: Heading and table.
    tables: tuple[tuple[str, str], ...]


def number(value: float) -> str:
    """Format three digits; "–" for a value that was not reached."""
    return f"{value:.3g}" if math.isfinite(value) else "–"


def timed(
    budget: Budget,
    shape: Shape,
    link: Link,
    n: int,
    samples: float,
    *,
    seconds: float = math.inf,
    **settings: Any,
) -> Run:
    """Run without arithmetic, by the paper's rule unless the settings say otherwise."""
    options = {"mode": "paper", **settings}
    loop, taken = loop_of(shape, **options), budget.taken(shape, **options)
    return free_run(None, loop, taken, link, n_members=n, samples=samples, seconds=seconds)


def cost_rows(measured: Mapping[str, MeasuredCosts]) -> list[list[str]]:
    """Return the measured costs as rows of a table, in microseconds and bytes."""
    return [
        [
            name,
            f"{1e6 * t.sample_s:.3f}",
            f"{1e6 * t.batch_s:.1f}",
            f"{1e6 * t.post_s:.1f}",
            f"{1e6 * t.merge_s:.1f}",
            f"{1e6 * t.pass_s:.3f}",
            f"{t.message_bytes:,}",
        ]
        for name, t in measured.items()
    ]
