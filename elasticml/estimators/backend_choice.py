"""Choose how an estimator is fitted: with how many threads here, or as an elastic job."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import scipy.sparse

from elasticml.errors import ConfigError

#: Least stored values for which a default client's cluster is used. One thread reads fewer in about
#: 50 ms, and starting and ending a job costs more than it could save.
JOB_VALUES_MIN: Final = 50_000_000

#: Least stored values for which a second thread pays in matrix products. A pass over fewer takes a
#: few milliseconds, and a finished thread may wait that long for the GIL.
PRODUCT_VALUES_MIN: Final = 4_000_000
#: The same for dual coordinate ascent: threads with replicated models need more steps.
STEP_VALUES_MIN: Final = 8_000_000
#: The same if each thread fits separate models.
MODEL_VALUES_MIN: Final = 250_000


def stored_values(X: Any) -> int:
    """Return the number of values that a pass over the rows reads."""
    return int(X.nnz if scipy.sparse.issparse(X) else X.size)


def threads_for(n_jobs: int | None, X: Any, least: int) -> int:
    """Return the number of threads to use: those of ``n_jobs``, or one if more do not pay.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    least : int
        Stored values below which a single thread is faster.

    Raises
    ------
    ValueError  when ``n_jobs`` is 0.
    """
    threads = n_threads(n_jobs)
    return threads if stored_values(X) >= least else 1


def n_threads(n_jobs: int | None) -> int:
    """Return the number of threads for ``n_jobs``: 1 for None; negative counts from all CPUs."""
    if n_jobs is None:
        return 1
    if n_jobs == 0:
        raise ValueError("n_jobs=0 has no meaning; give None, a number above 0, or below")
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


@cache
def _blas() -> Any:
    # Its BLAS is loaded with it; NumPy's has been.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _OneBlasThread:
    """Limits BLAS to one thread until the last of the fits inside has ended.

    The limit is the process's: a fit that ends must not lift it for others, nor keep it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limiter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limiter = _blas().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limiter.restore_original_limits()


_ONE_BLAS_THREAD: Final = _OneBlasThread()


@contextmanager
def choose_client(client: Any, n_values: int) -> Iterator[Any]:
    """Yield the client of the cluster that fits the model; None to fit in this process.

    Parameters
    ----------
    client : distributed.Client, cluster, str or None
        A client, a cluster or a scheduler's address is always used. None selects the default client
        if there is one and ``n_values`` is at least ``JOB_VALUES_MIN``.

    Raises
    ------
    ConfigError
        When it is something else, or must be awaited here.

    Notes
    -----
    Small fits here call BLAS with one thread: by default it has one for each CPU, and each of
    thousands of small calls would wait for all of them. Two threads made such fits 3 to 10 times
    as long.
    """
    if client is not None:
        from elasticml.jobs.cluster_client import client_of

        found, is_ours = client_of(client)
        _check_blocks(found)
        with found if is_ours else nullcontext():
            yield found
        return
    client = _default_client(n_values)
    is_small = client is None and n_values < PRODUCT_VALUES_MIN
    with _ONE_BLAS_THREAD if is_small else nullcontext():
        yield client


def _check_blocks(client: Any) -> None:
    if getattr(client, "asynchronous", False):
        raise ConfigError(
            "client: got an asynchronous client, and a fit blocks; call it in a thread: "
            "await asyncio.to_thread(model.fit, X, y)"
        )


def _default_client(n_values: int) -> Any:
    # If there is a client, its library is loaded already; otherwise do not load it.
    library = sys.modules.get("distributed")
    if library is None or n_values < JOB_VALUES_MIN:
        return None
    try:
        client = library.default_client()
    except ValueError:
        return None
    _check_blocks(client)
    return client
