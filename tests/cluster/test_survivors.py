"""A worker that is stopped with SIGSTOP: no member waits for it for ever."""

from __future__ import annotations

import os
import signal

import pytest
from distributed import Client

import elasticml as em
from elasticml.data.synthetic.splice_sites import synthetic_splice

pytestmark = pytest.mark.cluster


def test_a_stopped_worker_holds_up_neither_start_nor_end_and_joins_when_it_answers() -> None:
    job = em.Job(
        em.BatchGradient(l2=1e-3, optimizer="gd", intercept=False, tolerance=0.0, scale="none"),
        synthetic_splice(rows=1500, length=30, seed=5),
        stop=em.Stop(seconds=300.0),
        chunk_size=2048,
    )
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        stopped = cluster.workers()[1].pid or 0
        os.kill(stopped, signal.SIGSTOP)
        try:
            # The plugin is loaded with it.
            handle = job.start(client)
            joined, round_at = {}, 0
            for record in (r for batch in handle.batches() for r in batch):
                if record["event"] == "MemberJoined":
                    joined[record["pid"]] = round_at
                    if record["pid"] == stopped:
                        break
                elif record["event"] == "RoundEnded" and not round_at:
                    round_at = 1
                    os.kill(stopped, signal.SIGCONT)
            handle.cancel()
        finally:
            os.kill(stopped, signal.SIGCONT)
    assert len(joined) == 2
    assert joined[stopped] == 1, "the other had begun"
