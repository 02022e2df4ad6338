"""Bad input on the command line: one line, exit 2, and no remains."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticml as em

pytestmark = pytest.mark.cluster

WAIT_S = 120
GOOD = "".join(f"{1 if i % 2 else -1} 1:{i % 7} 3:{i % 5}\n" for i in range(60)).encode()
JOB: dict[str, Any] = {
    "data": {"format": "svmlight", "path": "train"},
    "algorithm": {"name": "batch_gradient"},
    "cluster": {"kind": "local", "workers": 2},
    "stop": {"rounds": 3},
}


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command, and what it left in its folder."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)


def run(folder: Path, job: dict[str, Any], *options: str) -> Finished:
    """Run a job in its folder, with a folder of its own for temporary files."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "tmp").mkdir(exist_ok=True)
    before = {*folder.rglob("*")}
    done = subprocess.run(
        [sys.executable, "-m", "elasticml", "run", "job.yaml", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(em.__file__).parents[1]),
            "TMPDIR": str(folder / "tmp"),
        },
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    left = sorted(str(p.relative_to(folder)) for p in {*folder.rglob("*")} - before)
    return Finished(done.returncode, done.stdout, done.stderr, left)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes started with this folder for temporary files."""
    mark = f"TMPDIR={folder / 'tmp'}".encode()
    results = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                results.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has just ended, or belongs to another user
    return results


def check_refused(folder: Path, ended: Finished, message: str) -> None:
    assert (ended.code, ended.out) == (2, ""), ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("elasticml: ")]
    assert len(lines) == 1, ended.err
    assert message in lines[0]
    assert "Traceback" not in ended.err
    assert ended.left == []
    assert processes_of(folder) == []


def of(section: str, **changes: Any) -> dict[str, Any]:
    return {**JOB, section: {**JOB[section], **changes}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[em.LocalCluster]:
    """Two workers for all jobs that members refuse: no job leaves anything there."""
    with em.LocalCluster(2, algorithms=["batch_gradient"]) as cluster:
        yield cluster


ON_MEMBERS: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "truncated gz": (gzip.compress(GOOD * 50)[:-20], JOB, "the gzip data end early or are damaged"),
    "NaN": (GOOD + b"1 1:nan\n", JOB, "line 61, column 3: value is 'nan'"),
    "weight of no class": (GOOD, of("algorithm", class_weight={5: 2.0}), "names label 5"),
    "huge chunk": (GOOD, of("data", chunk_size="1 TiB"), "60 % of a worker's memory"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_MEMBERS)
def test_errors_that_only_members_can_see_are_one_line(
    tmp_path: Path, cluster: em.LocalCluster, name: str
) -> None:
    content, job, message = ON_MEMBERS[name]
    (tmp_path / "train").write_bytes(content)
    address = {"kind": "address", "address": cluster.scheduler_address}
    check_refused(
        tmp_path, run(tmp_path, {**job, "cluster": address}, "--out", "runs/deep/run"), message
    )


def test_what_is_wrong_is_one_line_and_an_existing_folder_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    ended = run(tmp_path, JOB, "--out", "run")
    check_refused(tmp_path, ended, "train does not exist")
    # Not even Dask starts: there is only the one line.
    assert len(ended.err.splitlines()) == 1
    (tmp_path / "train").write_bytes(GOOD.replace(b"-1 ", b"1 "))
    check_refused(tmp_path, run(tmp_path, JOB, "--out", "run"), "2 distinct labels")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]
