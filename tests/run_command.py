"""``elasticml run`` as a separate process, as a shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import elasticml as em

WAIT_S = 300


def start_run(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start it in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "elasticml", "run", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(em.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_run(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for its end; return its exit code, stdout and stderr."""
    with process:
        try:
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    return process.returncode, out, err
