"""What all tests share: where the real data are, and that CI skips nothing."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: A skip whose reason names one of these stays a skip in continuous integration: no change to the
#: machine's software can bring the hardware.
HARDWARE = ("GPU",)


# What a test reads does not belong into the user's cache; tests of the cache name a folder.
os.environ["ELASTICML_CACHE"] = "off"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data sets: ``$ELASTICML_DATA``, else ``../shared/data``."""
    path = Path(os.environ.get("ELASTICML_DATA") or ROOT.parent / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"data sets absent: {path} is no folder; set ELASTICML_DATA to theirs")
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one under ``ELASTICML_CI=1``."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped file into a failed one under ``ELASTICML_CI=1``."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or os.environ.get("ELASTICML_CI") != "1":
        return
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(word in reason for word in HARDWARE):
        return
    report.outcome = "failed"
    report.longrepr = f"nothing is skipped in continuous integration, but this was: {reason}"
