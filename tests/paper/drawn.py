"""A paper's study as a user draws it: a program in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "examples" / "papers"


def run_study(script: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a study, which writes to a folder."""
    return subprocess.run(
        [sys.executable, STUDIES / script, *words, "--out", out],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def drawn(script: str, out: Path, *words: str) -> tuple[str, dict[str, Any], Path]:
    """Run a study; return its output, the lines of its plots, and its folder."""
    done = run_study(script, out, *words)
    assert done.returncode == 0, done.stderr
    assert (out / "tables.md").read_text() in done.stdout
    return done.stdout, json.loads((out / "figures.json").read_text()), out
