"""A plan on real processes: its faults hit, its rules hold, and its driver is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.play.grid import draw, draw_raising
from tests.play.plan import Fault
from tests.play.processes import play_all
from tests.play.rules import violations

pytestmark = pytest.mark.cluster


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for a plan's files."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


@pytest.mark.slow
def test_a_job_whose_worker_and_whose_driver_are_killed_goes_on(folder: Path) -> None:
    drawn = draw(0, "local")
    faults = (
        Fault(kind="kill", at=0.5, who=(1,)),
        Fault(kind="pause", at=1.0, who=(2,), seconds=1.0),
        Fault(kind="driver", at=2.0),
        Fault(kind="phase", at=5, who=(1,), phase="reduce"),
    )
    plan = drawn.with_faults(faults)
    # Long enough for the driver to be killed, however long a busy machine takes to start.
    plan.job["stop"]["seconds"] = 60.0  # type: ignore[index]
    plan.world.pop("disk_mib", None)  # type: ignore[attr-defined]
    (played,) = play_all([plan], folder)
    assert [fault.kind for fault in played.hits] == ["phase", "kill", "pause", "driver"]
    assert [r["event"] for r in played.story].count("JobResumed") == 1
    assert violations(played) == []


def test_plans_of_one_world_share_it_and_an_exception_has_its_file_and_line(folder: Path) -> None:
    plans = [plan for plan in draw_raising() if plan.faults[0].error in ("KeyError", "ValueError")]
    played = list(play_all(plans, folder))
    assert [one.state for one in played] == ["failed"] * 4
    assert [found for one in played for found in violations(one)] == []
    assert list((folder / "tmp").iterdir()) == []
