"""Why a container ended, from the state and message that skein and YARN report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticml.protocol.notices import Reason

#: Reasons that stories do not have, and the ones that they have instead.
_STORY_REASONS: dict[Reason, Reason] = {"aborted": "killed", "success": "exit"}


def reason_from_skein(state: str, message: str) -> Reason:
    """Infer why a container ended from skein's report, when there is no agent.

    Parameters
    ----------
    state : str
        skein's state, in lower case.
    message : str
        YARN's diagnostics as passed on by skein.
    """
    message = message.lower()
    if state == "succeeded":
        return "success"
    if state == "killed":
        return "released"
    if "preempted" in message:
        return "preempted"
    if "*lost* node" in message:
        return "node"
    return "memory" if "memory" in message else "exit"


def story_reason(reason: Reason) -> Reason:
    """Return the reason that a story has for a reported one."""
    return _STORY_REASONS.get(reason, reason)


def last_line(message: str) -> str:
    r"""Return the last informative line of YARN's diagnostics for a container.

    >>> last_line("Exit code: 1\nLast 4096 bytes of stderr :\nNo module named 'x'\n\n[]\n.")
    "No module named 'x'"
    """
    lines = [line.strip() for line in message.splitlines()]
    informative = [
        line for line in lines if sum(map(str.isalpha, line)) > 2 and not _is_boilerplate(line)
    ]
    return informative[-1] if informative else "no reason was reported; see the containers' logs"


def _is_boilerplate(line: str) -> bool:
    """Return whether YARN has added a line around the output of a container."""
    phrases = ("Last 4096 bytes", "For more detailed output", "Error file:", "Failing this attempt")
    return any(phrase in line for phrase in phrases)
