"""Run the code blocks of a page in their order, as a reader would; ``python -m tests.pages PAGE``.

Blocks of Python share one namespace; shell blocks run in bash, in the same folder, with background
commands ended at the end. A block of YAML or Python whose first line is a comment with a file name
is written to that file. ``<!-- not run: REASON -->`` above a block leaves it out, and
``<!-- needs: torch -->`` marks one that needs a library. Blocks of YAML without a file name are
only read (``tests/test_docs.py``).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>not run|needs): (?P<why>.*?) -->\n+)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    #: Why it is not run; "" if it is.
    not_run: str
    #: A library that it needs; "" if none.
    needs: str

    @property
    def file(self) -> str | None:
        """The file that holds the block's text."""
        named = _FILE.match(self.text)
        return named[1] if named and self.language in ("python", "yaml") else None

    @property
    def runs(self) -> bool:
        """Whether the block is run or written."""
        is_code = self.language in ("python", "sh") or self.file is not None
        return is_code and not self.not_run


def free_port() -> str:
    """Return a port on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for found in _BLOCK.finditer(page.read_text()):
        mark, why = found["mark"], found["why"] or ""
        yield Block(
            language=found["language"],
            text=found["text"],
            not_run=why if mark == "not run" else "",
            needs=why if mark == "needs" else "",
        )


def run_page(page: Path) -> int:
    """Run the blocks in the working folder; return how many."""
    names: dict[str, Any] = {"__name__": "__page__"}
    # Dask's default ports may be taken on this machine.
    ports = {"8786": free_port(), "8787": free_port()}
    n = 0
    for block in blocks_of(page):
        if not block.runs:
            continue
        n += 1
        text = re.sub("8786|8787", lambda port: ports[port[0]], block.text)
        if block.file is not None:
            Path(block.file).write_text(text)
        elif block.language == "python":
            exec(compile(text, str(page), "exec"), names)
        else:
            # Background commands stay in the group of this process, and do not keep the pipe open.
            subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
    return n


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.setpgid(0, 0)
    try:
        print(f"{run_page(Path(sys.argv[1]))} blocks", flush=True)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
