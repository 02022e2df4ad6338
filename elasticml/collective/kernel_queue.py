"""The number of bytes in a TCP socket's send queue that the kernel has not sent yet."""

from __future__ import annotations

import array
import sys
from typing import Final

#: SIOCOUTQNSD of Linux's ``linux/sockios.h``: queued bytes, without those sent but unacknowledged.
_NOT_SENT: Final = 0x894B


def unsent_in(descriptor: int) -> int:
    """Return the bytes that the kernel has not sent on a TCP socket; 0 if it does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    import fcntl

    unsent = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, _NOT_SENT, unsent)
    except OSError:
        return 0
    return unsent[0]
