"""``em.watch``: a job in a notebook, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticml.errors import ConfigError, ElasticmlError
from elasticml.jobs.handle import Handle
from elasticml.report.live import LiveJob
from elasticml.report.panel import panel_html

#: Largest share of the notebook's processor time that drawing takes.
SHARE_MAX = 0.1


def watch(handle: Handle, every_s: float = 2.0) -> None:
    """Show a job in a notebook until it has ended; return immediately.

    It shows state, gap or objective, members, and the last events, as the page ``/elasticml`` of
    the scheduler does. Nothing runs in the browser, so the output also shows in a saved notebook.

    Parameters
    ----------
    handle : Handle
        Of ``job.start(client)`` or ``em.Job.attach(client, job_id)``.
    every_s : float, seconds
        Time between two drawings; longer where drawing takes more than a tenth of it.

    Raises
    ------
    ConfigError
        Where there is no notebook, and when ``every_s`` is not positive.

    Examples
    --------
    >>> handle = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop).start(client)
    >>> em.watch(handle)  # doctest: +SKIP
    """
    if not every_s > 0:
        raise ConfigError(f"watch: every_s: got {every_s!r}, wanted seconds above 0")
    try:
        from IPython.display import HTML, display
    except ImportError:
        raise ConfigError(
            "watch: IPython is not installed, and only notebooks show it; elsewhere use "
            "handle.result(progress=True)"
        ) from None
    handle = getattr(handle, "blocking", handle)
    live = LiveJob(handle.job_id)
    shown: Any = display(HTML(panel_html(live, 0.0)), display_id=True)
    if shown is None:
        raise ConfigError(
            "watch: no notebook runs here; elsewhere use handle.result(progress=True)"
        )
    threading.Thread(
        target=_follow,
        args=(handle, live, lambda text: shown.update(HTML(text)), every_s),
        name=f"em-watch-{handle.job_id}",
        daemon=True,
    ).start()


def _follow(handle: Handle, live: LiveJob, show: Callable[[str], None], every_s: float) -> None:
    """Draw the job again and again until it has ended or the scheduler does not answer."""
    next_s = 0.0
    received_s, story_s = time.monotonic(), 0.0
    try:
        for batch in handle.batches():
            if batch:
                live.read(batch)
                received_s, story_s = time.monotonic(), live.status.seconds
            now_s = time.monotonic()
            if now_s < next_s and not live.status.is_over:
                continue
            ago_s = 0.0 if live.status.is_over else now_s - received_s
            show(panel_html(live, story_s + ago_s))
            drawn_s = time.monotonic()
            next_s = now_s + max(every_s, (drawn_s - now_s) / SHARE_MAX)
    except ElasticmlError as error:
        live.status = replace(live.status, state="failed", reason=error.message)
        show(panel_html(live, story_s))
