"""Local clusters with real processes and real kills; every wait is for a process and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest
from distributed import Client, Worker, WorkerPlugin

from elasticml.clusters.local.cluster import LocalCluster, LocalWorker
from elasticml.errors import ConfigError, SubmissionError

pytestmark = pytest.mark.cluster

WAIT_S = 30


@pytest.fixture(scope="module")
def shared() -> Generator[LocalCluster]:
    """A cluster that tests only read."""
    with LocalCluster(2, threads=1) as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Generator[LocalCluster]:
    """A cluster of two workers that the test may break."""
    with LocalCluster(2) as cluster:
        yield cluster


@contextlib.contextmanager
def connected(cluster: LocalCluster) -> Generator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended after a while; zombies count as ended."""
    alive = psutil.wait_procs(processes, timeout=WAIT_S)[1]
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def wait_until_ended(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        assert survivors([psutil.Process(pid)]) == []


def forkserver_of(cluster: LocalCluster) -> psutil.Process:
    (forkserver,) = psutil.Process(cluster.scheduler_pid).children()
    return forkserver


def pids(workers: list[LocalWorker]) -> dict[str, int | None]:
    return {worker.name: worker.pid for worker in workers}


# The start.


def test_all_workers_are_registered_when_the_start_returns(shared: LocalCluster) -> None:
    with connected(shared) as client:
        seen = client.run(os.getpid)
    assert seen == {worker.address: worker.pid for worker in shared.workers()}
    assert [worker.state for worker in shared.workers()] == ["running", "running"]


def test_every_process_leads_a_session_of_its_own(shared: LocalCluster) -> None:
    leaders = [shared.scheduler_pid, *(worker.pid for worker in shared.workers())]
    assert [os.getsid(pid or 0) for pid in leaders] == leaders


def test_workers_load_neither_plots_nor_frames(shared: LocalCluster) -> None:
    def loaded() -> list[str]:
        import sys

        heavy = ("bokeh", "pandas", "sklearn", "matplotlib", "pyarrow")
        return [name for name in heavy if name in sys.modules]

    with connected(shared) as client:
        assert set(map(tuple, client.run(loaded).values())) == {()}


def test_numeric_libraries_use_the_threads_of_the_worker(shared: LocalCluster) -> None:
    def limits() -> tuple[str | None, ...]:
        import os

        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        return tuple(os.environ.get(name) for name in names)

    with connected(shared) as client:
        assert set(map(tuple, client.run(limits).values())) == {("1", "1", "1")}


def test_workers_do_not_share_a_random_stream(shared: LocalCluster) -> None:
    def draw() -> tuple[float, float]:
        import random

        import numpy as np

        return random.random(), float(np.random.random())  # noqa: NPY002

    with connected(shared) as client:
        one, other = client.run(draw).values()
    assert (one[0] != other[0], one[1] != other[1]) == (True, True)


def test_dask_computes_on_the_cluster(shared: LocalCluster) -> None:
    with connected(shared) as client:
        assert client.gather(client.map(abs, [-1, 2, -3])) == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers: got 0, wanted a whole number of at least 1"),
        ({"workers": -1}, "workers: got -1"),
        ({"workers": 1.5}, "workers: got 1.5"),
        ({"threads": 0}, "threads: got 0"),
        ({"memory_limit": "much"}, "memory_limit: got 'much', wanted 'auto'"),
        ({"memory_limit": 0}, "memory_limit: got 0, wanted more"),
        ({"grace_s": 0.0}, "grace_s: got 0.0"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s: got nan"),
        ({"workers_max": 0}, "workers_max: got 0"),
        ({"slowdown": {0: 0.5}}, "slowdown: got {0: 0.5}"),
        ({"slowdown": {-1: 2.0}}, "slowdown: got {-1: 2.0}"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LocalCluster(**settings)  # type: ignore[arg-type]
    assert words in caught.value.message


def test_using_a_cluster_that_was_not_started_is_an_error() -> None:
    with pytest.raises(ConfigError, match="not running"):
        LocalCluster(2).scheduler_address


def test_workers_that_do_not_register_in_time_are_an_error_and_terminated(tmp_path: Path) -> None:
    cluster = LocalCluster(2, start_timeout_s=1e-3, log_dir=tmp_path).launch()
    processes = family(cluster.scheduler_pid)
    with pytest.raises(SubmissionError, match=r"wanted 2 registered workers within 0.001 s"):
        cluster.start()
    assert survivors(processes) == []


@pytest.mark.slow
def test_a_scheduler_that_does_not_start_shows_its_last_log_line(tmp_path: Path) -> None:
    cluster = LocalCluster(2, dashboard_address="nowhere.invalid:1", log_dir=tmp_path).launch()
    processes = family(cluster.scheduler_pid)
    with pytest.raises(SubmissionError) as caught:
        cluster.start()
    assert (tmp_path / "scheduler.log").read_text().splitlines()[-1] in caught.value.message
    assert survivors(processes) == []


# Faults.


@pytest.mark.parametrize(
    "how",
    [
        "kill",
        pytest.param("terminate", marks=pytest.mark.slow),
        pytest.param("notice", marks=pytest.mark.slow),
    ],
)
def test_a_lost_worker_is_gone_and_stays_gone(cluster: LocalCluster, how: str) -> None:
    before = pids(cluster.workers())
    cluster.lose(["worker-0"], how=how, grace_s=WAIT_S)  # type: ignore[arg-type]
    wait_until_ended(before["worker-0"] or 0)
    with connected(cluster) as client:
        assert list(client.run(os.getpid).values()) == [before["worker-1"]]
    assert pids(cluster.workers()) == {"worker-1": before["worker-1"]}


@pytest.mark.parametrize("how", ["terminate", pytest.param("notice", marks=pytest.mark.slow)])
def test_a_worker_that_ignores_sigterm_is_killed(cluster: LocalCluster, how: str) -> None:
    stopped = pids(cluster.workers())["worker-0"] or 0
    os.kill(stopped, signal.SIGSTOP)
    cluster.lose(["worker-0"], how=how, grace_s=0.1)  # type: ignore[arg-type]
    wait_until_ended(stopped)
    assert list(pids(cluster.workers())) == ["worker-1"]


def test_a_notice_reaches_the_worker_with_its_grace(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "notice"
    record_notices(cluster, file, forever=False)
    cluster.lose([cluster.workers()[0].address or ""], how="notice", grace_s=WAIT_S)
    assert file.read_text() == f"{WAIT_S} noticed"


def test_a_noticed_worker_ends_at_its_deadline_at_the_latest(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    record_notices(cluster, tmp_path / "notice", forever=True)
    cluster.lose(["worker-0"], how="notice", grace_s=0.2)
    assert list(pids(cluster.workers())) == ["worker-1"]


def record_notices(cluster: LocalCluster, file: Path, *, forever: bool) -> None:
    """Let the workers write received notices to a file, and answer or never answer."""

    def listen(dask_worker: object) -> None:
        async def em_notice(grace_s: float, reason: str) -> str:
            file.write_text(f"{grace_s:g} {reason}")
            if forever:
                await asyncio.Event().wait()
            return "OK"

        dask_worker.handlers["em_notice"] = em_notice  # type: ignore[attr-defined]

    with connected(cluster) as client:
        client.run(listen)


def test_sigterm_ends_a_worker_in_good_order(cluster: LocalCluster, tmp_path: Path) -> None:
    class Closed(WorkerPlugin):
        def teardown(self, worker: Worker) -> None:
            (tmp_path / worker.name).touch()

    pid = pids(cluster.workers())["worker-0"] or 0
    with connected(cluster) as client:
        client.register_plugin(Closed(), name="closed")
        os.kill(pid, signal.SIGTERM)
        wait_until_ended(pid)
    assert [file.name for file in tmp_path.iterdir()] == ["worker-0"]


@pytest.mark.slow
def test_losing_a_worker_that_has_ended_is_no_error(cluster: LocalCluster) -> None:
    os.kill(pids(cluster.workers())["worker-0"] or 0, signal.SIGKILL)
    cluster.lose(["worker-0"], how="notice")
    cluster.lose(["worker-0"], how="kill")
    assert list(pids(cluster.workers())) == ["worker-1"]


@pytest.mark.slow
def test_losing_an_unknown_worker_names_the_known_ones(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster.lose(["worker-7"])
    known = ", ".join(sorted(worker.address or "" for worker in cluster.workers()))
    assert known in caught.value.message


def test_newcomers_have_new_names_and_survivors_keep_their_process(cluster: LocalCluster) -> None:
    before = pids(cluster.workers())
    cluster.lose(["worker-0"])
    cluster.bring_back(2)
    after = pids(cluster.workers())
    assert list(after) == ["worker-1", "worker-2", "worker-3"]
    assert after["worker-1"] == before["worker-1"]


def test_a_standby_is_unknown_to_dask_until_it_is_brought_back(cluster: LocalCluster) -> None:
    cluster.prepare(1)
    cluster.prepare(1)
    standby = cluster.workers()[-1]
    with connected(cluster) as client:
        assert (standby.state, len(client.run(os.getpid))) == ("standby", 2)
        cluster.bring_back(1)
        assert standby.pid in client.run(os.getpid).values()
    assert [worker.state for worker in cluster.workers()] == ["running"] * 3


@pytest.mark.slow
def test_a_standby_that_died_is_replaced(cluster: LocalCluster) -> None:
    cluster.prepare(1)
    pid = cluster.workers()[-1].pid or 0
    os.kill(pid, signal.SIGKILL)
    cluster.lose(["worker-2"])
    cluster.bring_back(1)
    assert list(pids(cluster.workers())) == ["worker-0", "worker-1", "worker-3"]


def test_scaling_adds_workers_and_removes_the_youngest(cluster: LocalCluster) -> None:
    first = list(pids(cluster.workers()))
    cluster.scale(4)
    grown = list(pids(cluster.workers()))
    cluster.scale(4)
    cluster.scale(1)
    assert (len(first), grown[:2], len(grown)) == (2, first, 4)
    assert list(pids(cluster.workers())) == ["worker-0"]


@pytest.mark.slow
def test_workers_are_slowed_from_the_start_or_later_and_restored() -> None:
    def factor(dask_worker: Worker) -> float:
        from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION

        return float(dask_worker.extensions[SLOWNESS_EXTENSION].factor)

    with LocalCluster(2, slowdown={1: 1.5}) as cluster, connected(cluster) as client:
        addresses = [worker.address for worker in cluster.workers()]
        seen = []
        for slowed in ([], [("worker-0", 3.0), ("worker-1", 1.0)]):
            for name, times in slowed:
                cluster.slow([name], times)
            factors = client.run(factor)
            seen.append([factors[address] for address in addresses])
    assert seen == [[1.0, 1.5], [3.0, 1.0]]


# The end. Nothing may remain, whichever process dies.


def test_closing_ends_all_processes_and_removes_the_logs() -> None:
    with LocalCluster(2) as cluster:
        cluster.prepare(1)
        processes = family(cluster.scheduler_pid)
        log_dir = cluster.log_dir
        assert (len(processes), log_dir.exists()) == (5, True)
    assert (survivors(processes), log_dir.exists()) == ([], False)


def test_nothing_is_left_when_the_scheduler_is_killed(tmp_path: Path) -> None:
    cluster = LocalCluster(2, log_dir=tmp_path)
    cluster.start().prepare(1)
    processes = family(cluster.scheduler_pid)
    # A stopped process reacts to SIGKILL only.
    os.kill(cluster.workers()[0].pid or 0, signal.SIGSTOP)
    os.kill(cluster.scheduler_pid, signal.SIGKILL)
    with pytest.raises(SubmissionError, match="scheduler process has exited"):
        cluster.workers()
    cluster.close()
    assert survivors(processes) == []


@pytest.mark.slow
def test_workers_outlive_the_process_that_forked_them(cluster: LocalCluster) -> None:
    before = pids(cluster.workers())
    forkserver = forkserver_of(cluster)
    workers = forkserver.children()
    forkserver.kill()
    wait_until_ended(forkserver.pid)
    cluster.bring_back(1)
    processes = [*workers, *family(cluster.scheduler_pid)]
    with connected(cluster) as client:
        assert sorted(client.run(os.getpid).values()) == sorted(pids(cluster.workers()).values())
    assert before.items() <= pids(cluster.workers()).items()
    cluster.close()
    assert survivors(processes) == []


CLIENT = """
import json, sys
from elasticml.clusters.local.cluster import LocalCluster
cluster = LocalCluster(2, keep=sys.argv[1] == "keep")
cluster.launch() if sys.argv[1] == "launch" else cluster.start().prepare(1)
address = None if sys.argv[1] == "launch" else cluster.scheduler_address
print(json.dumps([cluster.scheduler_pid, address, str(cluster.log_dir)]), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_client(how: str) -> Generator[tuple[int, str, Path, Callable[[], None]]]:
    """A client in a separate process: its scheduler's pid and address, logs, and its kill -9."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as client:
        assert client.stdout is not None
        pid, address, log_dir = json.loads(client.stdout.readline())

        def kill() -> None:
            client.kill()
            client.wait()

        try:
            yield pid, address, Path(log_dir), kill
        finally:
            kill()


@pytest.mark.parametrize("when", [pytest.param("launch", marks=pytest.mark.slow), "running"])
def test_nothing_is_left_when_the_client_is_killed(when: str) -> None:
    with other_client(when) as (pid, _, log_dir, kill):
        processes = family(pid)
        kill()
        assert survivors(processes) == []
        assert not log_dir.exists()


@pytest.mark.slow
def test_a_kept_cluster_outlives_its_client_until_another_ends_it() -> None:
    with other_client("keep") as (pid, address, log_dir, kill):
        kill()
        processes = family(pid)
        with Client(address, set_as_default=False) as client:
            assert len(client.run(os.getpid)) == 2
            client.shutdown()
        assert survivors(processes) == []
        assert not log_dir.exists()


@pytest.mark.slow
def test_a_client_may_shut_the_cluster_down(cluster: LocalCluster) -> None:
    processes = family(cluster.scheduler_pid)
    with connected(cluster) as client:
        client.shutdown()
    assert survivors(processes) == []
