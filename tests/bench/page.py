"""Measure what the page of running jobs costs the scheduler, and take its screenshots.

    python tests/bench/page.py [--members 1000] [--seconds 30] [--viewers 1] [--json FILE]
        [--screenshots FOLDER]

The story of a simulated job, in which members are lost and return, is fed to the page of a Dask
scheduler as fast as it was simulated. Viewers in another process ask once a second, as the page
does. Printed are the processor time of the scheduler's process with viewers, less that without, as
a share of one core, and the kilobytes that a viewer gets: at first, and a second from then on.

With ``--screenshots`` nothing is measured; the page is drawn by Chromium in several states.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import yaml
from distributed import Scheduler

from elasticml.runtime.web.page import serve_page
from elasticml.story.compressed_records import CompressedRecords

# Chromium for screenshots is set up by a module of the tests.
sys.path.insert(0, str(harness.ROOT))
Story = list[dict[str, Any]]

#: Examples of each member of the measured job.
EXAMPLES = 10_000


def simulated(job: dict[str, Any]) -> Story:
    """Run ``elasticml simulate`` and return the story."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "elasticml", "simulate", str(path)]
        out = Path(folder) / "run"
        done = subprocess.run(
            [*command, "--out", str(out)],
            cwd=harness.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if not (out / "story.jsonl").exists():
            raise SystemExit(done.stderr)
        return [json.loads(line) for line in (out / "story.jsonl").read_text().splitlines()]


def large_job(members: int, seconds: float) -> dict[str, Any]:
    """Return a job with rounds of about half a second, and losses all the time."""
    return {
        "name": f"{members} members",
        "data": {"format": "synthetic_splice", "rows": 1000},
        "algorithm": {"name": "batch_gradient"},
        "cluster": {"workers": members},
        "stop": {"seconds": seconds},
        "simulate": {
            "seed": 1,
            "costs": {"rows": EXAMPLES * members, "columns": 10_000, "chunks_per_member": 4},
            "compute_s": 4e-5,
            "jitter": 0.1,
            "hosts": max(1, members // 50),
            "preemption": {"rate": 0.5, "away": [2, 8], "count": max(1, members // 200)},
        },
    }


class Agent:
    """What the page reads of a job: a story that grows at its own pace, or all at once."""

    def __init__(self, story: Story, *, live: bool = False, until_s: float = 1e9) -> None:
        self._rest = [record for record in story if record["t"] <= until_s]
        self._start_s = time.monotonic()
        self._live = live
        started = next(r for r in story if r["event"] == "JobStarted")
        self.record = SimpleNamespace(name=started["name"])
        self.journal = SimpleNamespace(story=CompressedRecords())
        if not live:
            self.journal.story.extend(self._rest)

    @property
    def state(self) -> str:
        """The job's state by the last records."""
        last = next((r for r in reversed(self.journal.story[-3:]) if r["event"] == "JobEnded"), {})
        return str(last.get("state", "running"))

    def now_s(self) -> float:
        """Return the seconds since the job started."""
        if self._live:
            return time.monotonic() - self._start_s
        return float(self._rest[-1]["t"])

    def feed(self) -> None:
        """Append the records up to the present."""
        now_s, n = self.now_s(), 0
        while n < len(self._rest) and self._rest[n]["t"] <= now_s:
            n += 1
        self.journal.story.extend(self._rest[:n])
        del self._rest[:n]


@asynccontextmanager
async def served(jobs: dict[str, Any]) -> AsyncGenerator[str]:
    """Yield the address of the page of these jobs."""
    async with Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler:
        page = serve_page(scheduler, jobs)
        yield f"http://127.0.0.1:{scheduler.http_server.port}/elasticml"
        page.close()


def view(url: str, seconds: float) -> None:
    """Ask once a second, as the page does; print the bytes of the replies."""
    token, tag, sizes = "", "", []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        next_s = time.monotonic() + 1.0
        request = urllib.request.Request(f"{url}/jobs.json?job=j&since={token}")
        request.add_header("If-None-Match", tag)
        try:
            with urllib.request.urlopen(request) as reply:
                body, tag = reply.read(), reply.headers["Etag"]
            sizes.append(len(body))
            token = json.loads(body)["token"]
        except urllib.error.HTTPError as error:
            if error.code != 304:
                raise
            sizes.append(0)
        time.sleep(max(0.0, next_s - time.monotonic()))
    print(json.dumps(sizes))


async def measured(story: Story, seconds: float, viewers: int) -> dict[str, Any]:
    """Return processor time and bytes with a number of viewers."""
    agent = Agent(story, live=True)
    async with served({"j": agent}) as url:
        arguments = [sys.executable, __file__, "--view", url, "--seconds", str(seconds)]
        processes = [
            await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
            for _ in range(viewers)
        ]
        began_s, used_s = time.monotonic(), time.process_time()
        while time.monotonic() - began_s < seconds + 1:
            agent.feed()
            await asyncio.sleep(0.05)
        share = (time.process_time() - used_s) / (time.monotonic() - began_s)
        sizes = [json.loads((await process.communicate())[0]) for process in processes]
    return {"share": share, "sizes": sizes, "records": len(agent.journal.story)}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    story = simulated(large_job(args.members, args.seconds + 10))
    without = asyncio.run(measured(story, args.seconds, 0))
    with_them = asyncio.run(measured(story, args.seconds, args.viewers))
    sizes = with_them["sizes"][0]
    return {
        "members": args.members,
        "viewers": args.viewers,
        "records_per_s": round(with_them["records"] / args.seconds, 1),
        "core_share_without_%": round(100 * without["share"], 2),
        "core_share_with_%": round(100 * with_them["share"], 2),
        "page_share_%": round(100 * (with_them["share"] - without["share"]), 2),
        "whole_kB": round(max(sizes) / 1e3, 1),
        "kB_per_s": round((sum(sizes) - max(sizes)) / (len(sizes) - 1) / 1e3, 2),
    }


def spot_job(name: str, **settings: Any) -> dict[str, Any]:
    """Return a job on twelve machines, some of which are taken away and come back."""
    return {
        "name": name,
        "data": {"format": "synthetic_splice", "rows": 6000, "length": 40},
        "algorithm": {"name": "cocoa", "loss": "hinge", "l2": 1e-2},
        "cluster": {"workers": 12},
        "absent": "reload",
        "stop": {"rounds": 120, "gap": 1e-5},
        "simulate": {
            "seed": 3,
            "compute_s": 4e-4,
            "jitter": 0.15,
            "slow": {5: 1.8},
            "hosts": 4,
            "trace": [
                {"at": 6, "lose": [2, 7], "how": "kill", "away": 6},
                {"at": 24, "lose": [4], "how": "kill", "away": 60},
                {"at": 30, "lose": [9, 10], "how": "notice", "grace": 30, "away": 60},
            ],
        },
        **settings,
    }


async def screenshots(folder: Path) -> None:
    """Draw the page in several states."""
    folder.mkdir(parents=True, exist_ok=True)
    story = await asyncio.to_thread(simulated, spot_job("spot-svm"))
    large = await asyncio.to_thread(simulated, large_job(1000, 30))
    print(len(story), "records,", story[-1]["t"], "s", file=sys.stderr)
    # The moment after a notice.
    noticed_s = next(r["t"] for r in story if r["event"] == "MemberNoticed")
    middle = Agent(story, until_s=noticed_s + 1e-3)
    begun = [r for r in story if r["event"] in ("JobStarted", "MemberJoined")]
    reason = "data: /data/train.svm.gz: line 17: got 'x:1', wanted index:value; correct the file"
    ended = {"t": 3.0, "event": "JobEnded", "state": "failed", "reason": reason, "round": 0}
    failed = [
        *begun,
        {**ended, "converged": None, "computations": {}, "digest": "", "cause": "0.1"},
    ]
    done = Agent(story)
    scenes: dict[str, tuple[dict[str, Any], tuple[int, int], bool]] = {
        "none": ({}, (1280, 500), False),
        "loading": ({"a": Agent(begun)}, (1280, 700), False),
        "running": ({"a": middle}, (1280, 1500), False),
        "running-dark": ({"a": middle}, (1280, 1500), True),
        "running-phone": ({"a": middle}, (390, 3000), False),
        "failed": ({"a": Agent(failed)}, (1280, 800), False),
        "three": ({"x": Agent(failed), "y": done, "a": middle}, (1280, 1500), False),
        "done": ({"y": done}, (1280, 1500), False),
        "large": ({"b": Agent(large)}, (1280, 1300), False),
        "large-phone": ({"b": Agent(large)}, (390, 3000), False),
    }
    for name, (jobs, size, dark) in scenes.items():
        async with served(jobs) as url:
            await asyncio.to_thread(_draw, url, folder / f"{name}.png", size, dark)


def _draw(url: str, path: Path, size: tuple[int, int], dark: bool) -> None:
    from tests.browser import browser
    from tests.waiting import until

    ready = "!document.getElementById('none').hidden || document.querySelector('#cards dt')"
    with browser(*size, dark=dark) as driver:
        driver.get(url)
        until(lambda: driver.execute_script(f"return Boolean({ready})"), "the page")
        # The charts are drawn in the frame after their data.
        driver.execute_async_script(
            "const end = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(end))"
        )
        driver.save_screenshot(str(path))
        print(path, driver.get_log("browser"), file=sys.stderr)


def main() -> None:
    """Read the options; measure, or take screenshots."""
    parser = harness.parser(__doc__)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--screenshots", type=Path, help="folder for the pictures")
    parser.add_argument("--view", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    if args.view:
        view(args.view, args.seconds)
    elif args.screenshots:
        asyncio.run(screenshots(args.screenshots))
    else:
        harness.report(measure(args), args.json)


if __name__ == "__main__":
    main()
