"""Workers of a stock cluster that end with a notice: are their chunks elsewhere in time?

    python tests/bench/retirements.py [--runs 20] [--grace 30] [--seed 0] [--mib 512] [--json FILE]

`dask scheduler` and `dask worker` processes, and a job of batch gradient with ``--mib`` of data for
each of ``--members`` members, one holder of every chunk. At random moments a worker drawn from the
seed ends, and another one is started: by ``client.retire_workers``, or by SIGTERM to its nanny, to
its process below a nanny, or to a worker without a nanny; SIGKILL follows at the end of the grace.
Each of ``--runs`` ends is a line; the last line is JSON with the totals: the share of ends without
a lost chunk, the bytes read again from the file, and the seconds of the grace that were not needed.
Pieces with other seeds add up: ``--sum FILE...`` prints the totals of several files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import elasticml as em
from elasticml.clusters.polling import until
from elasticml.data.readers.npz import read_npz
from elasticml.jobs.handle import workers_of
from elasticml.protocol.chunk_ranges import parse_chunk_ranges

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness
from tests.stock_cluster import StockCluster, stock_cluster

MIB = 2**20
COLUMNS = 100
CHUNK_MIB = 1
KINDS = ("retire", "nanny", "below", "alone")
#: Longest wait for anything.
WAIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class End:
    """One worker's end."""

    kind: str
    grace_s: float
    #: Chunks that were lost with the member; 0: drained in time.
    lost_chunks: int
    #: Sent by the member from the notice on.
    moved_mib: float
    #: Read again from the file afterwards.
    reread_mib: float
    #: Story reason of the loss.
    reason: str
    #: Seconds from the action to the member's release, and to the end of its process.
    released_s: float
    ended_s: float


class Story:
    """A job's records, collected in a thread."""

    def __init__(self, handle: em.Handle) -> None:
        self.records: list[dict[str, Any]] = []
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(handle,), daemon=True)
        self._thread.start()

    def _read(self, handle: em.Handle) -> None:
        for record in handle:
            with self._grown:
                self.records.append(record)
                self._grown.notify_all()

    def find(self, event: str, since: int = 0, **fields: Any) -> dict[str, Any] | None:
        """Return the first record of an event with these fields."""
        for record in self.records[since:]:
            if record["event"] == event and all(record.get(k) == v for k, v in fields.items()):
                return record
        return None

    def await_event(self, event: str, since: int = 0, **fields: Any) -> dict[str, Any]:
        """Wait for a record."""
        with self._grown:
            self._grown.wait_for(lambda: self.find(event, since, **fields), WAIT_S)
        record = self.find(event, since, **fields)
        if record is None:
            raise SystemExit(f"no {event} with {fields} within {WAIT_S:g} s")
        return record


def write_dense(path: Path, mib: int) -> None:
    """Write this many MiB of dense examples of two classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(mib * MIB // (8 * COLUMNS), COLUMNS))
    np.savez(path, X=X, y=np.sign(X @ rng.normal(size=COLUMNS)))


class Bench:
    """A stock cluster, a job on it, and workers that end."""

    def __init__(self, cluster: StockCluster, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.options = options
        self.random = random.Random(options.seed)
        self.kinds: dict[str, str] = {}
        self.client = cluster.client()
        for _ in range(options.members):
            self.start_worker()
        cluster.await_workers(self.client, options.members)

    def start_worker(self) -> None:
        """Start a worker that will end in a way drawn now."""
        name = f"w{len(self.kinds)}"
        self.kinds[name] = self.random.choice(self.options.kinds)
        environment = {"ELASTICML_GRACE": str(self.options.grace)}
        nanny = ["--no-nanny"] if self.kinds[name] == "alone" else []
        self.cluster.worker(name, *nanny, environment=environment)

    def addresses(self) -> dict[str, str]:
        """Return the connected workers: addresses by name."""
        return {str(w["name"]): address for address, w in workers_of(self.client).items()}

    def run(self, handle: em.Handle) -> list[End]:
        """End workers, one after the other."""
        story = Story(handle)
        story.await_event("RoundEnded", round=5)
        ends = []
        for _ in range(self.options.runs):
            time.sleep(self.random.uniform(0.0, self.options.pause))
            ends.append(self.end_one(story))
            print(json.dumps(asdict(ends[-1])), flush=True)
        handle.cancel()
        story.await_event("JobEnded")
        return ends

    def joined(self, story: Story) -> dict[str, tuple[str, str]]:
        """Return the members that are alive: name and address of their workers, by member id."""
        names = {address: name for name, address in self.addresses().items()}
        lost = {r["member"] for r in story.records if r["event"] == "MemberLost"}
        return {
            r["member"]: (names[r["address"]], r["address"])
            for r in list(story.records)
            if r["event"] == "MemberJoined" and r["member"] not in lost and r["address"] in names
        }

    def end_one(self, story: Story) -> End:
        """End one worker, start another one, and return what became of its chunks."""
        wanted = self.options.members - 1
        until(lambda: len(self.joined(story)) >= wanted, wait_s=WAIT_S, every_s=0.05)
        members = self.joined(story)
        if len(members) < wanted:
            raise SystemExit(f"only {len(members)} members have joined")
        member = self.random.choice(sorted(members))
        name, address = members[member]
        process, grace_s = self.cluster.processes[name], self.options.grace
        kind = self.kinds[name]
        pid = self.cluster.pid(self.client, name) if kind == "below" else process.pid
        since, began_s = len(story.records), time.monotonic()
        self.start_worker()
        killer = threading.Timer(grace_s, os.killpg, (process.pid, signal.SIGKILL))
        if kind == "retire":
            retiring = threading.Thread(
                target=self.client.retire_workers, args=([address],), daemon=True
            )
            retiring.start()
        else:
            os.kill(pid, signal.SIGTERM)
        killer.start()
        lost = story.await_event("MemberLost", since, member=member)
        released_s = time.monotonic() - began_s
        process.wait(WAIT_S)
        ended_s = time.monotonic() - began_s
        killer.cancel()
        if lost["chunks"]:
            lost_at = story.records.index(lost)
            story.await_event("RoundEnded", lost_at, absent_examples=0)
        after = story.records[since:]
        reread = sum(
            len(parse_chunk_ranges(r["chunks"], ""))
            for r in after
            if r["event"] == "ChunksLoaded" and r.get("source") is None
        )
        moved = [r["bytes"] for r in after if r["event"] == "ChunksMoved" and r["source"] == member]
        return End(
            kind=kind,
            grace_s=grace_s,
            lost_chunks=lost["chunks"],
            moved_mib=round(sum(moved) / MIB, 1),
            reread_mib=float(reread * CHUNK_MIB),
            reason=lost["reason"],
            released_s=round(released_s, 2),
            ended_s=round(ended_s, 2),
        )


def totals(ends: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of many ends, for each grace."""
    results: dict[str, Any] = {}
    for grace_s in sorted({end["grace_s"] for end in ends}):
        some = [end for end in ends if end["grace_s"] == grace_s]
        drained = [end for end in some if not end["lost_chunks"]]
        unused = [grace_s - end["released_s"] for end in drained]
        results[f"{grace_s:g} s"] = {
            "ends": len(some),
            "drained": len(drained) / len(some),
            "kinds": {k: sum(e["kind"] == k for e in some) for k in KINDS},
            "reread_mib": sum(end["reread_mib"] for end in some),
            "reread_mib_of_drained": sum(end["reread_mib"] for end in drained),
            "moved_mib": round(sum(end["moved_mib"] for end in some), 1),
            "unused_s": {
                "min": round(min(unused), 2),
                "median": round(statistics.median(unused), 2),
                "max": round(max(unused), 2),
            }
            if unused
            else None,
        }
    return results


def main() -> None:
    """End workers and print what became of their chunks."""
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--grace", type=float, default=30.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mib", type=int, default=512, help="data of each member")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--pause", type=float, default=5.0, help="longest pause between two ends")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="only add up files")
    options = parser.parse_args()
    if options.sum:
        ends = [end for path in options.sum for end in json.loads(path.read_text())["ends"]]
        harness.report(totals(ends))
        return
    harness.one_thread()
    with tempfile.TemporaryDirectory() as name, stock_cluster(Path(name)) as cluster:
        path = Path(name) / "dense.npz"
        write_dense(path, options.mib * options.members)
        job = em.Job(
            em.BatchGradient(
                loss="logistic",
                l2=1e-4,
                optimizer="gd",
                intercept=False,
                tolerance=0.0,
                scale="none",
            ),
            read_npz(str(path)),
            name="retirements",
            absent="reload",
            holders=1,
            chunk_size=f"{CHUNK_MIB} MiB",
            stop=em.Stop(rounds=10_000_000),
            evaluate=False,
        )
        bench = Bench(cluster, options)
        with bench.client:
            ends = [asdict(end) for end in bench.run(job.start(bench.client))]
    harness.report(totals(ends))
    if options.json is not None:
        harness.report({"mib": options.mib, "seed": options.seed, "ends": ends}, options.json)


if __name__ == "__main__":
    main()
