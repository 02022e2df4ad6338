"""The code of the pages runs, block after block, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Pages of which every block runs that does not say why not.
PAGES = [path for name in ("start", "tutorials") for path in sorted((DOCS / name).glob("*.md"))]


def needs_torch(page: Path) -> bool:
    """Whether a block of a page needs PyTorch."""
    return any(block.needs == "torch" for block in blocks_of(page))


def marked(page: Path) -> object:
    """Return the page as a parameter with its marks."""
    marks = [pytest.mark.torch] if needs_torch(page) else [pytest.mark.slow]
    return pytest.param(page, marks=marks, id=str(page.relative_to(DOCS)))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "page", [marked(page) for page in PAGES if any(block.runs for block in blocks_of(page))]
)
def test_the_blocks_of_a_page_run(page, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}",
        "ELASTICML_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(page)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert " blocks" in done.stdout, done.stdout[-4000:]
