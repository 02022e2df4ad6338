"""Where an estimator is fitted: in this process, or by an elastic job on a cluster's members."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import scipy.sparse

Path = Literal["in-process", "job"]

#: Stored values from which a default client's cluster is asked: below, one thread goes through them
#: in some 50 ms, and a job's beginning and end cost more than it could save.
JOB_VALUES_MIN: Final = 50_000_000

#: Stored values from which a second thread pays. A pass over fewer takes some milliseconds, and a
#: thread that is done may wait for the interpreter's lock for as long.
PRODUCT_VALUES_MIN: Final = 4_000_000
#: The same of steps on dual variables, of which threads that work on copies need more.
STEP_VALUES_MIN: Final = 8_000_000
#: The same where each thread fits models of its own.
MODEL_VALUES_MIN: Final = 250_000


def stored_values(X: Any) -> int:
    """Count the values that a pass over the rows reads."""
    return int(X.nnz if scipy.sparse.issparse(X) else X.size)


def threads_for(n_jobs: int | None, X: Any, least: int) -> int:
    """Return how many of the threads that ``n_jobs`` stands for pay on these rows.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    least : int
        Stored values below which one thread is faster alone.

    Raises
    ------
    ValueError  when ``n_jobs`` is 0.
    """
    given = n_threads(n_jobs)
    return given if stored_values(X) >= least else 1


def n_threads(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` stands for: 1 for None, all but some where negative."""
    if n_jobs is None:
        return 1
    if n_jobs == 0:
        raise ValueError("n_jobs=0 has no meaning; give None, a number above 0, or below")
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


@contextmanager
def client_for(given: Any, n_values: int) -> Iterator[Any]:
    """Lend the client whose cluster shall fit; None: this process does.

    Parameters
    ----------
    given : distributed.Client, str or None
        A client or a scheduler's address is used whatever the size. With None the default client
        is used where there is one and ``n_values`` is at least ``JOB_VALUES_MIN``.

    Raises
    ------
    TypeError
        When something else is given.
    """
    if isinstance(given, str):
        from distributed import Client

        with Client(given, set_as_default=False) as client:
            yield client
        return
    if given is not None and not callable(getattr(given, "sync", None)):
        raise TypeError(
            f"client is {given!r}, wanted a distributed.Client, a scheduler's address, or None"
        )
    yield _default_client(n_values) if given is None else given


def _default_client(n_values: int) -> Any:
    # Whoever has a client has loaded its library: nobody else waits for that.
    library = sys.modules.get("distributed")
    if library is None or n_values < JOB_VALUES_MIN:
        return None
    try:
        return library.default_client()
    except ValueError:
        return None
