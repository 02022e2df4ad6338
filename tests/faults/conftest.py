"""Jobs in the in-memory world, ended after each test."""

from __future__ import annotations

import pytest_asyncio

from tests.faults.phase_stops import Jobs
from tests.frozen_behaviour import note_fault
from tests.memory_world import TRANSPORTS


@pytest_asyncio.fixture(params=TRANSPORTS)
async def jobs(request):
    """Makes jobs by their topology, over each transport, and ends them."""
    made: list[Jobs] = []

    def make(topology: str, **changes) -> Jobs:
        made.append(Jobs(topology, transport=request.param, **changes))
        return made[-1]

    yield make
    for number, job in enumerate(made):
        test = f"{request.node.path.name}::{request.node.name} {number}"
        if request.node.path.name == "test_grid.py":
            note_fault(test, job.world)
        await job.world.close()
