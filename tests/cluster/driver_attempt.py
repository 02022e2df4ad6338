"""One attempt of a submitted job's driver, with its own Dask scheduler and workers.

Run it with the file of the submission, a working folder, the number of workers and, optionally, a
key to write in the application's store; it prints the application's end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from elasticml.clusters.yarn.jobs.job_driver import YarnJob
from elasticml.clusters.yarn.jobs.submission import read_submission
from tests.fake_yarn import FakeApplication


async def run_attempt(
    submission: Path, folder: Path, workers: int, written: str
) -> FakeApplication:
    """Drive a job to its end, and return the calls to its application."""
    from distributed import Scheduler, Worker

    application = FakeApplication()
    if written:
        application.store.put(written, b"1")
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
    print(json.dumps({"end": calls.ended, "shares": calls.shares}))
