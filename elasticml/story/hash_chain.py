"""A hash chain over the lines of a story: each line ends with a digest of itself and of its parent.

Editing, removing or moving a line breaks the chain at that line. The chain detects damage and
edits; it does not authenticate, since it has no secret.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: The name of the last field of each record in the file.
SEAL: Final = "seal"
_END: Final = re.compile(r', "seal": "([0-9a-f]{16})"\}\s*$')


class HashChain:
    """Appends digests to lines in order, or verifies them."""

    def __init__(self) -> None:
        #: The digest of the last line, and the number of lines.
        self.last = "0" * 16
        self.length = 0

    def seal(self, line: str) -> str:
        """Return a line that holds a non-empty JSON object, with its digest as the last field."""
        self._add(line)
        return f'{line[:-1]}, "{SEAL}": "{self.last}"}}'

    def holds(self, sealed: str) -> bool | None:
        """Return whether a line is the unchanged next one; None if it has no digest.

        Continues from the digest in the line, so that each later change is detected as well.
        """
        match = _END.search(sealed)
        if match is None:
            return None
        self._add(sealed[: match.start()] + "}")
        is_same, self.last = self.last == match[1], match[1]
        return is_same

    def _add(self, line: str) -> None:
        digest = hashlib.blake2b(f"{self.last}{line}".encode(), digest_size=8)
        self.last = digest.hexdigest()
        self.length += 1
