"""The end of an application for good, from within it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from elasticml.clusters.notice_book import HELLO

if TYPE_CHECKING:
    import skein


def end_for_good(application: skein.ApplicationClient, status: str, diagnostics: str) -> None:
    """End an application whose next attempt would come to nothing better.

    Skein begins an application that has not succeeded again until its attempts are used up. The
    agent tells YARN the true status of one that says to skein that it has succeeded; where there
    is no agent, the attempts that are left are gone through.

    Parameters
    ----------
    application : skein.ApplicationClient
    status : {"SUCCEEDED", "FAILED", "KILLED"}
        What YARN shall call its end.
    diagnostics : str
        What YARN shall say about it.
    """
    if status != "SUCCEEDED":
        hello = application.kv.get(HELLO)
        beginning = None if hello is None else json.loads(hello).get("end")
        if beginning is not None:
            # What the agent looks for: yarn/agent, LastWord.java.
            status, diagnostics = "SUCCEEDED", f"{beginning}{status}: {diagnostics}"
    application.shutdown(status, diagnostics)
