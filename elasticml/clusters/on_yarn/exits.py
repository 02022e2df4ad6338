"""How a container ended, by what YARN and skein say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticml.clusters.notices import ExitReason
    from elasticml.runtime.reclaims import Reason

#: What the board calls the reasons that it has no word of its own for.
_BOARD_REASONS: dict[str, Reason] = {"aborted": "killed", "success": "exit"}


def reason_in(state: str, message: str) -> ExitReason:
    """Tell from what skein says how a container ended, where no agent tells.

    Parameters
    ----------
    state : str
        skein's, in lower case.
    message : str
        What YARN told skein.
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


def board_reason(reason: str) -> Reason:
    """Return what the board calls a reason."""
    return _BOARD_REASONS.get(reason, reason)  # type: ignore[arg-type]


def last_line(message: str) -> str:
    r"""Return the last line that says something in what YARN tells of a container's end.

    >>> last_line("Exit code: 1\nLast 4096 bytes of stderr :\nNo module named 'x'\n\n[]\n.")
    "No module named 'x'"
    """
    lines = [line.strip() for line in message.splitlines()]
    telling = [line for line in lines if sum(map(str.isalpha, line)) > 2 and not _is_frame(line)]
    return telling[-1] if telling else "nothing is known of why; see the containers' logs"


def _is_frame(line: str) -> bool:
    """Tell what YARN puts around the output of a container."""
    frames = ("Last 4096 bytes", "For more detailed output", "Error file:", "Failing this attempt")
    return any(frame in line for frame in frames)
