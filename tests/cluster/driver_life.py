"""One life of a submitted job's driver, on a Dask scheduler and workers of its own process.

Run with the file of the submission, a folder to work in, the number of workers and, where there is
one, the key that is written in the application's store; the end of the application is printed.
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
    """An application's store: in it is what somebody has written before, and nothing more comes."""

    def __init__(self, written: str) -> None:
        self._written = written

    def get(self, key: str) -> bytes | None:
        return None

    def wait(self, key: str) -> bytes:
        if key != self._written:
            threading.Event().wait()
        return b"1"


class Application:
    """What the driver tells its application."""

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


async def live(submission: Path, folder: Path, workers: int, written: str) -> Application:
    """Drive a job to its end, and return what its application was told."""
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
    told = asyncio.run(live(Path(submission), Path(folder), int(workers), "".join(written)))
    print(json.dumps({"end": told.end, "shares": told.shares}))
