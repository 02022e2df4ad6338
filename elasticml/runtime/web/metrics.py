"""The figures of jobs as Prometheus metrics: in its text format, and for ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elasticml.report.live import LiveJob


@dataclass(slots=True, kw_only=True)
class Family:
    """A metric with its samples: labels and value."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of a job at a scrape."""

    live: LiveJob
    #: Seconds since the job started.
    now_s: float
    is_running: bool
    #: Whether a long story is still being read: then the figures are those of an earlier time.
    is_behind: bool = False


def families(jobs: Iterable[Reading]) -> list[Family]:
    """Return the metrics of jobs.

    A sample whose value is unknown is left out.
    """
    made = {
        name: Family(name=f"elasticml_job_{name}", kind="gauge", text=text)
        for name, text in (
            ("objective", "Objective of the last round"),
            ("gap", "Certified duality gap, or an upper bound of it"),
            ("gap_is_bound", "1 if the gap is only an upper bound"),
            ("round", "Number of finished rounds"),
            ("running", "1 while the job loads or trains"),
            ("members", "Members by state"),
            ("absent_examples", "Examples that no member owns"),
            ("moving_chunks", "Chunks on their way to another owner"),
            ("moved_bytes_total", "Bytes of chunks that changed owners"),
            ("worker_seconds_total", "Seconds of participation, summed over members"),
            ("lost_members_total", "Members lost"),
            ("checkpoint_age_seconds", "Seconds since the last checkpoint"),
            ("drain_deadline_seconds", "Seconds until the first leaving member is gone"),
        )
    }
    for name, family in made.items():
        family.kind = "counter" if name.endswith("_total") else "gauge"
    for job in jobs:
        live, now_s, status = job.live, job.now_s, job.live.status
        labels = {"job": live.job, "name": status.name}
        made["running"].samples.append((labels, float(job.is_running)))
        if job.is_behind:
            continue
        values: dict[str, float | None] = {
            "objective": status.objective,
            "gap": status.gap,
            "gap_is_bound": None if status.gap is None else float(status.gap_is_bound),
            "round": status.round,
            "absent_examples": status.absent_examples,
            "moving_chunks": sum(n for _, _, n in live.moves.values()),
            "moved_bytes_total": live.moved_bytes,
            "worker_seconds_total": live.container_s,
            "lost_members_total": live.lost,
        }
        if job.is_running:
            deadlines = [
                s.deadline_s
                for s in live.slots.values()
                if s.state == "leaving" and s.deadline_s is not None
            ]
            if deadlines:
                values["drain_deadline_seconds"] = max(0.0, min(deadlines) - now_s)
            if live.checkpoint_s is not None:
                values["checkpoint_age_seconds"] = max(0.0, now_s - live.checkpoint_s)
        for name, value in values.items():
            if value is not None:
                made[name].samples.append((labels, float(value)))
        for state, n in live.counts().items():
            made["members"].samples.append(({**labels, "state": state}, float(n)))
    return list(made.values())


def exposition(metrics: Iterable[Family]) -> str:
    """Return metrics in Prometheus' text format, version 0.0.4."""
    lines = []
    for family in metrics:
        lines.append(f"# HELP {family.name} {family.text}.")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            named = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{named}}} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Collector:
    """Gives the metrics to ``prometheus_client`` at each scrape of ``/metrics``."""

    def __init__(self, jobs: Callable[[], Iterable[Reading]]) -> None:
        self._jobs = jobs

    def describe(self) -> list[Any]:
        """Reserve no names: another scheduler in this process may have the same."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics with their present values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in families(self._jobs()):
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            names = list(dict.fromkeys(name for labels, _ in family.samples for name in labels))
            metric = kind(family.name, f"{family.text}.", labels=names)
            for labels, value in family.samples:
                metric.add_metric([labels[name] for name in names], value)
            yield metric


def register_collector(
    jobs: Callable[[], Iterable[Reading]],
) -> Callable[[], None]:
    """Add the metrics to Dask's ``/metrics`` if ``prometheus_client`` is installed.

    Returns
    -------
    callable
        It withdraws them.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return lambda: None
    collector = _Collector(jobs)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)
