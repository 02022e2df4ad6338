"""The code of the pages runs, block after block, in a folder with a reader's files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elasticml.user_cache import cache_directory
from tests.pages import NOT_RUN, ROOT, TORCH, blocks_of, name_of, pages


def marked(page):
    """Return the page as a parameter with its marks."""
    marks = [pytest.mark.torch] if name_of(page) in TORCH else [pytest.mark.slow]
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of data that all pages of a run share, with the kernels of this environment."""
    folder, kernels = tmp_path_factory.mktemp("cache"), cache_directory() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(kernels)
    return folder


@pytest.mark.cluster
@pytest.mark.parametrize(
    "page", [marked(page) for page in pages() if any(block.runs for block in blocks_of(page))]
)
def test_the_blocks_of_a_page_run(page, tmp_path, cache):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "ELASTICML_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(page)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
    )
    n_blocks = sum(block.runs for block in blocks_of(page))
    assert f"\n{n_blocks} blocks" in done.stdout, done.stdout[-4000:]


def test_the_list_of_blocks_that_are_not_run_names_one_block_each():
    counts = {
        (name, part): sum(
            part in block.text
            for page in pages()
            if name_of(page) == name
            for block in blocks_of(page)
        )
        for name, part, _ in NOT_RUN
    }
    assert {entry: n for entry, n in counts.items() if n != 1} == {}
    tests = {word for *_, why in NOT_RUN for word in why.split() if word.startswith("tests/")}
    assert {path for path in tests if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_code_of_a_page_is_in_fenced_blocks_of_a_language_that_runs(page):
    """Indented code, other names of a language and comments would leave code out silently."""
    prose = page.read_text()
    assert [block.language for block in blocks_of(page)
            if block.language in ("bash", "console", "shell", "py", "yml")] == []  # fmt: skip
    assert "<!-- not run" not in prose
    indented = [line for line in prose.splitlines()
                if line.startswith(("    elasticml ", "    import ", "    pip "))]  # fmt: skip
    assert indented == []
