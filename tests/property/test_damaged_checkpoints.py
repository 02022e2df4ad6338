"""Whatever files of a checkpoint folder are damaged, what is read is what was written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from elasticml.training.checkpoint import Checkpoint
from tests.unit.runtime.test_checkpoints import BATCH_GRADIENT, record, run

DAMAGES = st.lists(
    st.tuples(
        st.integers(0, 2**20),
        st.sampled_from(["bit", "cut", "empty", "remove"]),
        st.integers(0, 2**20),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Checkpoint]]:
    """A folder with two checkpoints, one to damage, and what both hold, newest first."""
    base = tmp_path_factory.mktemp("checkpoints")
    good, other = base / "good", base / "other"
    run(record(good, BATCH_GRADIENT, evaluate={"every": 8}))
    shutil.copytree(good, other)
    written = []
    while (checkpoint := read_checkpoint(str(other))) is not None:
        written.append(checkpoint)
        (other / checkpoint.files[0]).unlink()
    assert len(written) == 2
    return good, base / "bad", written


def damage(path: Path, how: str, where: int) -> None:
    content = bytearray(path.read_bytes())
    # No digest covers the first line of a .bin file.
    begin = content.find(b"\n") + 1 if path.suffix == ".bin" else 0
    if how == "bit" and len(content) > begin:
        content[begin + where % (len(content) - begin)] ^= 1 << where % 8
    elif how == "cut":
        del content[where % (len(content) + 1) :]
    elif how == "empty":
        content.clear()
    path.write_bytes(content)
    if how == "remove":
        path.unlink()


def is_subsequence(some: Sequence[Any], of: Sequence[Any]) -> bool:
    rest: Iterator[Any] = iter(of)
    return all(entry in rest for entry in some)


@settings(max_examples=100, deadline=None)
@given(damages=DAMAGES)
def test_a_checkpoint_is_lost_only_with_its_own_file(
    places: tuple[Path, Path, list[Checkpoint]], damages: list[tuple[int, str, int]]
) -> None:
    good, bad, written = places
    shutil.rmtree(bad, ignore_errors=True)
    shutil.copytree(good, bad)
    for which, how, where in damages:
        files = sorted(bad.iterdir())
        if files:
            damage(files[which % len(files)], how, where)
    same = {
        path.name
        for path in good.iterdir()
        if (bad / path.name).exists() and (bad / path.name).read_bytes() == path.read_bytes()
    }
    usable = [one for one in written if one.files[0] in same]
    whole = [one for one in usable if set(one.files) <= same]
    got = read_checkpoint(str(bad))
    if not usable:
        assert got is None
        return
    assert got is not None
    # The newest whole one; else the newest whose own file is good.
    assert got.number == (whole or usable)[0].number
    wanted = next(one for one in written if one.number == got.number)
    assert got.is_whole == (set(wanted.files[1:]) <= same)
    assert got.resume_point.machine == wanted.resume_point.machine
    for name, array in wanted.resume_point.resume.arrays.items():
        assert np.array_equal(got.resume_point.resume.arrays[name], array)
    for some, of in ((got.rows, wanted.rows), (got.story, wanted.story)):
        assert is_subsequence(some, of)
    assert is_subsequence(got.progress, wanted.progress)
    for round, arrays in got.snapshots.items():
        assert np.array_equal(arrays["coef"], wanted.snapshots[round]["coef"])
