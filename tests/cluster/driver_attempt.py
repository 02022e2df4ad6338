"""One attempt of a submitted job's driver, with its own Dask scheduler and workers.

Run it with the file of the submission, a working folder, the number of workers and, optionally, a
key to write in the application's store; it prints the application's end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from elasticml.clusters.yarn.jobs.job_driver import YarnJob
from elasticml.clusters.yarn.jobs.submission import read_submission


class Store:
    """An application's store with given content; it receives nothing more."""

    def __init__(self, written: str) -> None:
        self._written = written

    def get(self, key: str) -> bytes | None:
        return None

    def wait(self, key: str) -> bytes:
        if key != self._written:
            threading.Event().wait()
        return b"1"


class Application:
    """The calls that the driver makes to its application."""

    def __init__(self, written: str) -> None:
        self.kv = Store(written)
        self.shares: list[float] = []
        self.end: tuple[str, str] | None = None

    def set_progress(self, share: float) -> None:
        self.shares.append(share)

    def shutdown(self, status: str, diagnostics: str) -> None:
        self.end = (status, diagnostics)

    def get_containers(self, services: Any = None, states: Any = None) -> list[Any]:
        return []


async def run_attempt(submission: Path, folder: Path, workers: int, written: str) -> Application:
    """Drive a job to its end, and return the calls to its application."""
    from distributed import Scheduler, Worker

    application = Application(written)
    local = {"host": "127.0.0.1", "dashboard": False}
    async with Scheduler(port=0, **local) as scheduler:
        started = [await Worker(scheduler.address, nthreads=1, **local) for _ in range(workers)]
        job = read_submission(submission.read_bytes())
        await YarnJob(job, scheduler, application, folder).run()
        for worker in started:
            await worker.close()
    return application


if __name__ == "__main__":
    submission, folder, workers, *written = sys.argv[1:]
    calls = asyncio.run(run_attempt(Path(submission), Path(folder), int(workers), "".join(written)))
    print(json.dumps({"end": calls.end, "shares": calls.shares}))
