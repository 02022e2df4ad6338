"""Replace methods of Dask's scheduler: as attribute, and as handler of remote calls.

Dask calls some of its scheduler's methods in both ways. ``Adaptive`` and the clusters of
``distributed.deploy`` use the handler, which is bound when the scheduler is created; the HTTP
routes, which dask-kubernetes asks, dask-gateway and Prometheus use the attribute. This is not
documented: ``tests/unit/runtime/test_dask_points.py`` pins it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Scheduler


def replace_method(
    scheduler: Scheduler, name: str, method: Callable[..., Any]
) -> Callable[[], None]:
    """Replace a scheduler's method in both places.

    Returns
    -------
    callable
        Puts the former methods back, where no other replacement has come since.
    """
    attribute = getattr(scheduler, name)
    handler = scheduler.handlers[name]
    setattr(scheduler, name, method)
    scheduler.handlers[name] = method

    def put_back() -> None:
        # Bound methods are equal and not identical.
        if getattr(scheduler, name) == method:
            setattr(scheduler, name, attribute)
        if scheduler.handlers.get(name) == method:
            scheduler.handlers[name] = handler

    return put_back
