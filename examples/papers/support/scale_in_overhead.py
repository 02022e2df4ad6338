"""The cost of a scale-in on real worker processes: to decide, to copy, to restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from distributed import Client
from support.elastic_comparison import markdown

import elasticml as em
from elasticml.data.readers.arrays import ArraySource

#: Initial members of every run.
MEMBERS = 16


@dataclass(frozen=True, kw_only=True)
class ScaleIn:
    """One scale-in of a run; seconds."""

    before: int
    after: int
    #: From the end of the previous round to the policy's decision.
    decide_s: float
    #: From there to the arrival of the last chunk.
    copy_s: float
    #: From there to the next round's beginning: emptied members leave, the tree is rebuilt.
    restart_s: float
    copied_bytes: int

    @property
    def total_s(self) -> float:
        """Total time in which the job does not compute."""
        return self.decide_s + self.copy_s + self.restart_s


def scale_ins(story: Sequence[Mapping[str, Any]]) -> list[ScaleIn]:
    """Read the scale-ins that policies ordered from a run's story."""
    results: list[ScaleIn] = []
    ended_s = 0.0
    rows = [r for r in story if r["event"] == "RoundEnded"]
    members = {int(r["round"]): int(r["members"]) for r in rows}
    for k, record in enumerate(story):
        if record["event"] == "RoundEnded":
            ended_s = record["t"]
        if record["event"] != "PolicyDecided" or record["suggestion"] != "Retire":
            continue
        begins = next((r for r in story[k:] if r["event"] == "RoundStarted"), None)
        if begins is None:
            continue
        at = int(begins["round"])
        moved = [r for r in story[k : story.index(begins)] if r["event"] == "ChunksMoved"]
        copied_s = moved[-1]["t"] if moved else record["t"]
        results.append(
            ScaleIn(
                before=members[at - 1],
                after=members.get(at, 0),
                decide_s=record["t"] - ended_s,
                copy_s=copied_s - record["t"],
                restart_s=begins["t"] - copied_s,
                copied_bytes=sum(int(r["bytes"]) for r in moved),
            )
        )
    return results


def overhead_table(names: Sequence[str], source_of: Callable[[str], ArraySource]) -> str:
    """Run 16, 4, 1 and 16, 4, 2 members for real on each data set and tabulate the scale-ins."""
    rows = []
    with em.LocalCluster(MEMBERS) as cluster, Client(cluster) as client:
        for name in names:
            for least in (1, 2):
                for scaled in run(name, source_of(name), least, client):
                    rate = scaled.copied_bytes / 2**20 / max(scaled.copy_s, 1e-9)
                    rows.append(
                        [
                            name,
                            f"{scaled.before} to {scaled.after}",
                            f"{1e3 * scaled.decide_s:.1f}",
                            f"{1e3 * scaled.copy_s:.1f}",
                            f"{1e3 * scaled.restart_s:.1f}",
                            f"{1e3 * scaled.total_s:.1f}",
                            f"{scaled.copied_bytes / 2**20:.2f}",
                            f"{rate:.0f}",
                        ]
                    )
                cluster.scale(MEMBERS)  # released workers are gone
    head = ["data", "members", "decide ms", "copy ms", "restart ms", "total ms", "MiB", "MiB/s"]
    words = "Table 3: overhead of each scale-in, on 16 real worker processes of this machine"
    return f"{words} (measured):\n\n{markdown(head, rows)}"


def run(name: str, source: ArraySource, least: int, client: Client) -> list[ScaleIn]:
    """Scale in twice, at the knee, on a cluster of 16 workers."""
    knee = {"name": "knee", "to": [4, least], "layout": "partitions"}
    job = em.Job(
        em.CoCoA(loss="hinge", l2=0.01, mode="paper"),
        source,
        name=f"{name}-scale-in-{least}",
        policies=[knee],
        partitions=MEMBERS,
        holders=1,
        stop=em.Stop(rounds=40, gap=1e-7),
        members=em.settings.Members(start=MEMBERS),
        evaluate=False,
    )
    handle = job.start(client)
    result = handle.result()
    handle.forget()
    return scale_ins(result.story)


def mean_total_s(scaled: Sequence[ScaleIn]) -> float:
    """Average the costs of scale-ins, as the elastic-CoCoA paper's Table 3 does."""
    return mean(s.total_s for s in scaled)
