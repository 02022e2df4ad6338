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
def started() -> Generator[LocalCluster]:
    with LocalCluster(2, threads=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: LocalCluster) -> LocalCluster:
    """The cluster with two new workers, which the test may break."""
    started.lose([worker.name for worker in started.workers()])
    started.bring_back(2)
    return started


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


def test_a_start_registers_all_workers_each_with_a_session_of_its_own(
    cluster: LocalCluster,
) -> None:
    with connected(cluster) as client:
        seen = client.run(os.getpid)
        assert client.gather(client.map(abs, [-1, 2, -3])) == [1, 2, 3]
    assert seen == {worker.address: worker.pid for worker in cluster.workers()}
    assert [worker.state for worker in cluster.workers()] == ["running", "running"]
    leaders = [cluster.scheduler_pid, *seen.values()]
    assert [os.getsid(pid) for pid in leaders] == leaders


def test_a_worker_has_few_libraries_its_own_threads_and_random_numbers(
    cluster: LocalCluster,
) -> None:
    def look() -> tuple[set[str], set[str | None], tuple[float, float]]:
        import os
        import random
        import sys

        import numpy as np

        heavy = {"bokeh", "pandas", "sklearn", "matplotlib", "pyarrow"}
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        drawn = random.random(), float(np.random.random())  # noqa: NPY002
        return heavy & sys.modules.keys(), {os.environ.get(name) for name in threads}, drawn

    with connected(cluster) as client:
        (*one, (a, b)), (*other, (c, d)) = client.run(look).values()
    assert one == other == [set(), {"1"}]
    assert (a != c, b != d) == (True, True)


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


@pytest.mark.parametrize("how", ["kill", "terminate", "notice"])
def test_a_lost_worker_is_gone_and_a_newcomer_has_another_name(
    cluster: LocalCluster, how: str
) -> None:
    (lost, pid), (stays, other) = pids(cluster.workers()).items()
    cluster.lose([lost], how=how, grace_s=WAIT_S)  # type: ignore[arg-type]
    wait_until_ended(pid or 0)
    with connected(cluster) as client:
        assert list(client.run(os.getpid).values()) == [other]
    assert pids(cluster.workers()) == {stays: other}
    cluster.bring_back(2)
    after = pids(cluster.workers())
    assert (after.pop(stays), len(after), lost in after) == (other, 2, False)


@pytest.mark.parametrize("how", ["terminate", "notice"])
def test_a_worker_that_ignores_sigterm_is_killed(cluster: LocalCluster, how: str) -> None:
    (lost, stopped), (stays, _) = pids(cluster.workers()).items()
    os.kill(stopped or 0, signal.SIGSTOP)
    cluster.lose([lost], how=how, grace_s=0.1)  # type: ignore[arg-type]
    wait_until_ended(stopped or 0)
    assert list(pids(cluster.workers())) == [stays]


@pytest.mark.parametrize(("answers", "grace_s"), [(True, float(WAIT_S)), (False, 0.2)])
def test_a_notice_reaches_the_worker_which_ends_at_its_deadline_at_the_latest(
    cluster: LocalCluster, tmp_path: Path, answers: bool, grace_s: float
) -> None:
    file = tmp_path / "notice"

    def listen(dask_worker: object) -> None:
        async def em_notice(grace_s: float, reason: str) -> str:
            file.write_text(f"{grace_s:g} {reason}")
            if not answers:
                await asyncio.Event().wait()
            return "OK"

        dask_worker.handlers["em_notice"] = em_notice  # type: ignore[attr-defined]

    with connected(cluster) as client:
        client.run(listen)
    lost, stays = cluster.workers()
    cluster.lose([lost.address or ""], how="notice", grace_s=grace_s)
    assert file.read_text() == f"{grace_s:g} noticed"
    assert list(pids(cluster.workers())) == [stays.name]


def test_sigterm_ends_a_worker_in_good_order(cluster: LocalCluster, tmp_path: Path) -> None:
    class Closed(WorkerPlugin):
        def teardown(self, worker: Worker) -> None:
            (tmp_path / worker.name).touch()

    ends = cluster.workers()[0]
    with connected(cluster) as client:
        client.register_plugin(Closed(), name="closed")
        os.kill(ends.pid or 0, signal.SIGTERM)
        wait_until_ended(ends.pid or 0)
        client.unregister_worker_plugin("closed")
    assert (tmp_path / ends.name).exists()


def test_losing_a_worker_that_has_ended_is_no_error_and_an_unknown_one_is(
    cluster: LocalCluster,
) -> None:
    ends, stays = cluster.workers()
    os.kill(ends.pid or 0, signal.SIGKILL)
    cluster.lose([ends.name], how="notice")
    cluster.lose([ends.name], how="kill")
    assert list(pids(cluster.workers())) == [stays.name]
    with pytest.raises(ConfigError, match=stays.address):
        cluster.lose(["worker-1000"])


def test_a_standby_is_unknown_to_dask_until_it_is_brought_back(cluster: LocalCluster) -> None:
    cluster.prepare(1)
    died = cluster.workers()[-1]
    os.kill(died.pid or 0, signal.SIGKILL)  # another replaces it
    cluster.lose([died.name])
    cluster.prepare(1)
    cluster.prepare(1)
    standby = cluster.workers()[-1]
    with connected(cluster) as client:
        assert (standby.state, len(client.run(os.getpid))) == ("standby", 2)
        cluster.bring_back(1)
        assert standby.pid in client.run(os.getpid).values()
    assert [worker.state for worker in cluster.workers()] == ["running"] * 3


def test_scaling_adds_workers_and_removes_the_youngest(cluster: LocalCluster) -> None:
    first = list(pids(cluster.workers()))
    cluster.scale(4)
    grown = list(pids(cluster.workers()))
    cluster.scale(4)
    cluster.scale(1)
    assert (grown[:2], len(grown)) == (first, 4)
    assert list(pids(cluster.workers())) == first[:1]


@pytest.mark.slow
def test_workers_are_slowed_from_the_start_or_later_and_restored() -> None:
    def factor(dask_worker: Worker) -> float:
        from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION

        return float(dask_worker.extensions[SLOWNESS_EXTENSION].factor)

    with LocalCluster(2, slowdown={1: 1.5}) as cluster, connected(cluster) as client:
        one, other = cluster.workers()
        assert client.run(factor) == {one.address: 1.0, other.address: 1.5}
        cluster.slow([one.name], 3.0)
        cluster.slow([other.name], 1.0)
        assert client.run(factor) == {one.address: 3.0, other.address: 1.0}


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
def test_workers_outlive_the_process_that_forked_them_and_a_client_shuts_the_cluster_down() -> None:
    cluster = LocalCluster(2).start()
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
        client.shutdown()
    assert survivors(processes) == []
    cluster.close()


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
