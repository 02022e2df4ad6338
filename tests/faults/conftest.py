"""Jobs in the in-memory world, ended after each test."""

from __future__ import annotations

import pytest_asyncio

from tests.faults.stops import Jobs


@pytest_asyncio.fixture
async def jobs():
    """Makes jobs by their topology, and ends them."""
    made: list[Jobs] = []

    def make(topology: str, **changes) -> Jobs:
        made.append(Jobs(topology, **changes))
        return made[-1]

    yield make
    for job in made:
        await job.world.close()
