"""Pre-emption on a real YARN: seconds until a job knows, has its chunks safe and continues.

    python tests/bench/yarn_preemption.py [--times 3] [--max-wait 5] [--algorithm cocoa]

A mini YARN, a cluster of six worker containers in the queue ``ml``, a job on ijcnn1; an application
in ``prod`` pre-empts seven containers and gives them back, ``--times`` times. Prints, in seconds
after the ResourceManager's decision (from its log, at the level that shows marks), when the notice
was in Python, the last chunk of the leaving members was safe, the next round was complete, and
SIGTERM came; then how many marked containers survived because others were released for them, the
examples that were ever absent, and the final gap. ``ELASTICML_DATA`` is the folder of the data
sets.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.clusters.minihadoop.mini_settings import Preemption
from elasticml.clusters.minihadoop.mini_yarn import MiniYarn
from elasticml.clusters.minihadoop.test_tenant import Tenant
from elasticml.clusters.yarn.skein_client import SkeinClient

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

MEMBERS, TAKEN = 6, 7
WAIT_S = 180.0
HEAD = (
    "| marks | notice | chunks safe | next round | SIGTERM | marked | gone | lived on | absent |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
CLASS = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
_MARK = re.compile(r"^(\S+ \S+) DEBUG .*MARK_CONTAINER_FOR_PREEMPTION.*(container_\w+)", re.M)


class Story:
    """A running job's records, each with its time of day."""

    def __init__(self, handle: em.Handle) -> None:
        self.records: list[dict[str, Any]] = []
        self.began_s = float("inf")
        self._grown = threading.Condition()
        threading.Thread(target=self._read, args=(handle,), daemon=True).start()

    def _read(self, handle: em.Handle) -> None:
        for record in handle:
            with self._grown:
                # The record with the least delay between writing and reading dates the start of the
                # job best.
                self.began_s = min(self.began_s, time.time() - record["t"])
                self.records.append(dict(record))
                self._grown.notify_all()

    def wait(self, is_so: Any, what: str) -> None:
        """Wait until a condition holds for the records."""
        with self._grown:
            if not self._grown.wait_for(lambda: is_so(self.records), timeout=WAIT_S):
                sys.exit(f"not within {WAIT_S:g} s: {what}")

    def since(self, index: int, *events: str) -> list[dict[str, Any]]:
        """List the records of these events from a position on."""
        return [r for r in self.records[index:] if r["event"] in events]

    def at(self, record: dict[str, Any]) -> float:
        """Return the time of day of a record, seconds."""
        return self.began_s + float(record["t"])


def whole(members: int, index: int) -> Any:
    """Return whether a round with this many members and all examples has ended since."""
    return lambda records: any(
        r["event"] == "RoundEnded" and r["members"] == members and not r["absent_examples"]
        for r in records[index:]
    )


def decisions(log: Path, since_s: float) -> list[float]:
    """Read the times of day at which the ResourceManager marked containers."""
    results = []
    for stamp, _ in _MARK.findall(log.read_text(errors="replace")):
        at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        if at >= since_s:
            results.append(at)
    return sorted(results)


def one(story: Story, tenant: Tenant, log: Path) -> str:
    """Make YARN take and give back containers once; return a row of the table."""
    story.wait(whole(MEMBERS, len(story.records)), "a round of all members")
    index, began_s = len(story.records), time.time()
    tenant.take(TAKEN)
    tenant.wait(TAKEN, WAIT_S)
    story.wait(lambda rs: any(r["event"] == "MemberLost" for r in rs[index:]), "a loss")
    lost = story.since(index, "MemberLost")
    last = story.records.index(lost[-1])
    story.wait(lambda rs: any(r["event"] == "RoundEnded" for r in rs[last + 1 :]), "a round")
    tenant.give_back()
    story.wait(whole(MEMBERS, len(story.records)), "a round of all members")
    decided = decisions(log, began_s)
    records = story.since(index, "Reclaimed")
    if not decided or not records:
        return f"| – | {len(decided)} marks in the log | {len(records)} notices | | | | | | |"
    zero_s = decided[0]
    first = [r for r in records if story.at(r) <= story.at(records[0]) + 1.0]
    gone = story.since(index, "MemberLost")
    safe_s = max(story.at(r) for r in gone[: len(first)])
    after = next(r for r in story.since(index, "RoundEnded") if story.at(r) >= safe_s)
    stopped = [story.at(r) - zero_s for r in story.since(index, "ContainerStopping")]
    # Marked, but alive when the mark expired: another container was released for it.
    marked = {r["marked"] for r in records if r["marked"]}
    lived = marked - {r["member"] for r in gone}
    absent = max((r["absent_examples"] for r in story.since(index, "RoundEnded")), default=0)
    term = f"{min(stopped):.2f}" if stopped else "–"
    return (
        f"| {len(decided)} | {story.at(records[0]) - zero_s:.2f} | {safe_s - zero_s:.2f} | "
        f"{story.at(after) - zero_s:.2f} | {term} | {len(marked)} | {len(gone)} | {len(lived)} | "
        f"{absent} |"
    )


def main() -> None:
    """Run the study."""
    parser = harness.parser(__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--max-wait", type=float, default=5.0)
    parser.add_argument("--algorithm", choices=["cocoa", "batch_gradient"], default="cocoa")
    options = parser.parse_args()
    folder = harness.DATA
    data = em.read_svmlight(str((folder / "ijcnn1" / "ijcnn1.trn.svm.gz").resolve()))
    algorithm: Any = (
        em.CoCoA(loss="hinge", l2=1e-2, tolerance=0.0, intercept=False, scale="none")
        if options.algorithm == "cocoa"
        else em.BatchGradient(
            l2=1e-4,
            optimizer="gd",
            step="constant",
            step_size=1e-6,
            intercept=False,
            tolerance=0.0,
            scale="none",
        )
    )
    import skein

    with MiniYarn(preemption=Preemption(max_wait_s=options.max_wait)) as yarn:
        os.environ.update(yarn.environment())
        urllib.request.urlopen(f"{yarn.rm_url}/logLevel?log={CLASS}&level=DEBUG").close()
        log = yarn.root / "logs" / "resource.log"
        with (
            skein.Client(log=False) as skein_client,
            Tenant(SkeinClient(skein_client)) as tenant,
            em.YarnCluster(
                environment=f"venv://{sys.prefix}",
                n_workers=MEMBERS,
                worker_memory="1 GiB",
                scheduler_memory="1 GiB",
                queue="ml",
                skein_client=skein_client,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            client.wait_for_workers(MEMBERS, timeout=WAIT_S)
            job = em.Job(algorithm, data, stop=em.Stop(rounds=10**6), evaluate=False)
            handle = job.start(client)
            story = Story(handle)
            print(HEAD, flush=True)
            for _ in range(options.times):
                print(one(story, tenant, log), flush=True)
            handle.cancel()
            result = handle.result()
            last = result.history[-1]
            print(
                f"\n{len(result.history)} rounds, gap {last['gap']}, {result.summary['lost']} lost"
            )
            print(result.summary.get("preemptions"))


if __name__ == "__main__":
    main()
