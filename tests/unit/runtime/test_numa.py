"""NUMA nodes as the system lists them, and teams of threads on them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from elasticml.algorithms.parallel import FixedPieces, Serial, shares
from elasticml.runtime.executors import ThreadParallel, parallel
from elasticml.runtime.numa import numa_nodes, pin_thread, spanned


def listed(root: Path, **lists: str) -> Path:
    for name, text in lists.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(text)
    return root


def test_nodes_are_those_on_which_this_process_may_run(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    root = listed(tmp_path, node0=str(mine[0]), node1="100000-100003", node10=str(mine[-1]))
    (root / "node2").mkdir()  # without a list
    (root / "possible").write_text("0-1")
    assert numa_nodes(root) == ((mine[0],), (mine[-1],))
    assert numa_nodes(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("threads", "cores", "nodes"),
    [
        (1, (), 1),
        (4, (), 1),
        (4, (8, 8), 1),
        (9, (8, 8), 2),
        (9, (4, 16), 1),
        (40, (8, 8), 2),
        (3, (1, 1, 1, 1), 3),
    ],
)
def test_threads_span_the_fewest_nodes_that_have_a_core_for_each(
    threads: int, cores: tuple[int, ...], nodes: int
) -> None:
    assert spanned(threads, cores) == nodes


def test_a_pinned_thread_leaves_the_others_unpinned() -> None:
    mine, seen = os.sched_getaffinity(0), []

    def work() -> None:
        pin_thread([min(mine)])
        seen.append(os.sched_getaffinity(0))
        pin_thread([100_000])  # not permitted: nothing happens
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (seen, os.sched_getaffinity(0)) == ([{min(mine)}] * 2, mine)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_teams_work_at_the_same_time_and_results_are_in_their_order(n_threads: int, n: int) -> None:
    pool = parallel(n_threads)
    at_once = min(n, n_threads)
    together = threading.Barrier(at_once)

    def work(k: int, team) -> list[int]:
        if k < at_once:
            together.wait(60)
        inside = threading.Barrier(team.n_threads) if n <= n_threads else threading.Barrier(1)

        def part(i: int) -> int:
            inside.wait(60)
            return 10 * k + i

        return team.map(part, range(team.n_threads))

    for _ in range(2):
        result = pool.in_teams(work, n)
        assert result == [
            [10 * k + i for i in range(share)] for k, share in enumerate(shares(n_threads, n))
        ]
    pool.close()


def test_all_teams_have_ended_when_one_of_them_has_failed() -> None:
    pool, ended, failed = ThreadParallel(2), [], threading.Event()

    def work(k: int, team) -> None:
        if k == 0:
            failed.set()
            raise ValueError("of no use")
        failed.wait(60)
        ended.append(k)

    with pytest.raises(ValueError, match="of no use"):
        pool.in_teams(work, 2)
    assert ended == [1]
    pool.close()


def test_pieces_are_shared_like_threads() -> None:
    def widths(k: int, team) -> tuple[int, int, int]:
        return k, team.n_threads, team.n_nodes

    assert FixedPieces(Serial(), 5).in_teams(widths, 2) == [(0, 2, 1), (1, 3, 1)]
