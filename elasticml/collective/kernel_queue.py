"""How much of what was written to a TCP socket the kernel still has to send."""

from __future__ import annotations

import array
import sys
from typing import Final

#: SIOCOUTQNSD of Linux's ``linux/sockios.h``: bytes that have not been sent for the first time.
_NOT_SENT: Final = 0x894B


def unsent_in(descriptor: int) -> int:
    """Return the bytes that the kernel has not sent on a TCP socket; 0 where it does not say."""
    if not sys.platform.startswith("linux"):
        return 0
    import fcntl

    found = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, _NOT_SENT, found)
    except OSError:
        return 0
    return found[0]
