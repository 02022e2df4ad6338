"""The seal at the end of each line of a story: a digest of the line and of the seal before it.

Whoever changes, removes or moves a line by hand breaks the chain there. It keeps nobody from
forging a story: it tells what has been damaged or edited from what was told.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: The last field of each record in the file.
SEAL: Final = "seal"
_END: Final = re.compile(r', "seal": "([0-9a-f]{16})"\}\s*$')


class Chain:
    """Seals lines one after the other, or checks them."""

    def __init__(self) -> None:
        #: The last line's seal, and how many lines there were.
        self.last = "0" * 16
        self.length = 0

    def seal(self, line: str) -> str:
        """Return a line of JSON, an object that is not empty, with its seal as the last field."""
        self._add(line)
        return f'{line[:-1]}, "{SEAL}": "{self.last}"}}'

    def holds(self, sealed: str) -> bool | None:
        """Whether a line is the next one, unchanged; None where it has no seal.

        Goes on from the seal that the line bears, so that each later change is found, too.
        """
        found = _END.search(sealed)
        if found is None:
            return None
        self._add(sealed[: found.start()] + "}")
        is_same, self.last = self.last == found[1], found[1]
        return is_same

    def _add(self, line: str) -> None:
        digest = hashlib.blake2b(f"{self.last}{line}".encode(), digest_size=8)
        self.last = digest.hexdigest()
        self.length += 1
