"""Random kills, pauses, notices and returns: no hang, no double count, no loss without a fault."""

from __future__ import annotations

import pytest

from tests.faults.random_faults import RandomRun, random_run

pytestmark = pytest.mark.asyncio

#: Seeds in one test, so that a failure names few of them.
BATCH = 10


@pytest.mark.parametrize("first", range(0, 60, BATCH))
async def test_job_survives_random_faults_with_exact_sums(first):
    runs: list[RandomRun] = [await random_run(seed) for seed in range(first, first + BATCH)]
    assert [run for run in runs if not run.is_good] == []
    assert sum(run.faults["kills"] for run in runs) > 0


async def test_same_seed_gives_the_same_run():
    assert await random_run(3) == await random_run(3)
