"""Work is split into the same pieces for any number of threads."""

from __future__ import annotations

import pytest

from elasticml.algorithms.parallel import FixedPieces
from elasticml.runtime.executors import parallel


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_items", [0, 1, 3, 16])
def test_pieces_and_their_order_do_not_depend_on_the_threads(n_threads, n_items):
    pool = parallel(n_threads)
    pieces = FixedPieces(pool, n_pieces=7)
    assert pieces.n_threads == 7
    assert pieces.map(lambda item: item * item, list(range(n_items))) == [
        k * k for k in range(n_items)
    ]
    pool.close()


def test_every_thread_takes_consecutive_pieces():
    seen = []

    class Two:
        n_threads = 2

        def map(self, function, items):
            seen.extend(items)
            return [function(item) for item in items]

    assert FixedPieces(Two()).map(str, [1, 2, 3, 4, 5]) == ["1", "2", "3", "4", "5"]
    assert seen == [[1, 2], [3, 4, 5]]
