"""Finish an application from within it, without further attempts by skein."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from elasticml.clusters.notice_book import HELLO

if TYPE_CHECKING:
    import skein


def end_for_good(application: skein.ApplicationClient, status: str, diagnostics: str) -> None:
    """Finish an application whose next attempt would end the same way.

    skein restarts an application that has not succeeded until its attempts are used up. Therefore
    the application reports success to skein, and the agent reports the true status to YARN. Without
    the agent the remaining attempts run.

    Parameters
    ----------
    application : skein.ApplicationClient
    status : {"SUCCEEDED", "FAILED", "KILLED"}
        Final status for YARN.
    diagnostics : str
        Final message for YARN.
    """
    if status != "SUCCEEDED":
        hello = application.kv.get(HELLO)
        prefix = None if hello is None else json.loads(hello).get("end")
        if prefix is not None:
            # The agent recognises this prefix: yarn/agent, LastWord.java.
            status, diagnostics = "SUCCEEDED", f"{prefix}{status}: {diagnostics}"
    application.shutdown(status, diagnostics)
