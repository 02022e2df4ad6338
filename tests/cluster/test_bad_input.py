"""Bad input on the command line: one line, exit 2, and no remains."""

from __future__ import annotations

import gzip
import json
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
    (folder / "tmp").mkdir()
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


IN_ADVANCE: dict[str, tuple[bytes | None, dict[str, Any], str]] = {
    "missing file": (None, JOB, "train does not exist"),
    "empty file": (b"", JOB, "train is empty (0 bytes)"),
    "test file of another kind": (GOOD, of("data", test="job.yaml"), "data.test: "),
    "unknown key": (GOOD, of("algorithm", l22=1), "did you mean 'l2'?"),
    "chunk larger than a worker": (
        GOOD,
        {**of("cluster", memory="256 MiB"), "data": {**JOB["data"], "chunk_size": "200 MiB"}},
        "got 200.0 MiB, wanted at most 153.6 MiB",
    ),
}


@pytest.mark.parametrize("name", IN_ADVANCE)
def test_errors_known_in_advance_are_reported_before_anything_starts(
    tmp_path: Path, name: str
) -> None:
    content, job, message = IN_ADVANCE[name]
    if content is not None:
        (tmp_path / "train").write_bytes(content)
    ended = run(tmp_path, job, "--out", "run")
    check_refused(tmp_path, ended, message)
    # Not even Dask starts: there is only the one line.
    assert len(ended.err.splitlines()) == 1


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


def test_an_output_path_with_other_content_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "train").write_bytes(GOOD)
    (tmp_path / "run").write_text("something else")
    ended = run(tmp_path, JOB, "--out", "run")
    check_refused(tmp_path, ended, "run is a file")
    assert len(ended.err.splitlines()) == 1


def test_an_existing_folder_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(GOOD.replace(b"-1 ", b"1 "))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    check_refused(tmp_path, run(tmp_path, JOB, "--out", "run"), "2 distinct labels")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]


def test_unsorted_indices_and_a_wider_test_file_are_notes_and_not_errors(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(GOOD + b"1 3:1 1:2\n")
    (tmp_path / "test").write_text("1 1:2 9:3\n-1 1:2 3:1\n")
    ended = run(tmp_path, of("data", test="test"), "--out", "run", "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out.splitlines()[-1])
    assert (summary["examples"], summary["features"]) == (61, 3)
    lines = (tmp_path / "run" / "story.jsonl").read_text().splitlines()
    story = [json.loads(line) for line in lines]
    notes = next(record["notes"] for record in story if record["event"] == "DataLoaded")
    assert notes == [
        "1 rows with unsorted indices were sorted",
        "rows to score have up to 9 columns: those beyond the 3 of the model are left out",
    ]
    assert [path for path in ended.left if path.startswith("tmp")] == []
    assert processes_of(tmp_path) == []
