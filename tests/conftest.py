"""Shared by all tests: the real data, the order of files, and no skips in CI."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).resolve().parents[1]

#: A skip whose reason names one of these stays a skip in continuous integration: no software change
#: can bring the hardware.
HARDWARE = ("GPU",)

HAS_TORCH = importlib.util.find_spec("torch") is not None

#: Folders and files in the order in which the processes take them: the longest first, so that all
#: end at about the same time. All files on the real YARN share one YARN: they run in one process.
PLACES = (
    "tests/yarn/",
    "tests/cluster/test_pages.py",
    "tests/paper/test_studies.py",
    "tests/unit/algorithms/cocoa/test_cuda.py",
    "tests/cluster/",
    "tests/paper/",
    "tests/property/",
    "tests/sim/",
)


# A shell without job control starts a background command with SIGINT ignored, and its children
# inherit that. Tests send SIGINT to children and wait for their ends.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example depends on other load on the machine: no property test may fail for it.
# A change is tested with the same examples on each machine; `--hypothesis-profile fresh` draws new
# ones, to search for defects that are there already.
for name, is_repeatable in (("fresh", False), ("repeatable", True)):
    settings.register_profile(
        name,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        derandomize=is_repeatable,
    )
# A planted fault is only to be found: its example need not be made minimal.
settings.register_profile(
    "search",
    settings.get_profile("fresh"),
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile("repeatable")

# Data read by tests do not belong in the user's cache; tests of the cache name a folder. Machine
# code does: it is compiled once for all checkouts.
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
    _refuse_skip(report, allowed=not HAS_TORCH and item.get_closest_marker("torch") is not None)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped file into a failed one under ``ELASTICML_CI=1``.

    What a file has loaded stays to the end: garbage collections need not visit it each time.
    """
    report = yield
    gc.freeze()
    _refuse_skip(report, allowed=not HAS_TORCH and "'torch'" in str(report.longrepr))
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of networks where PyTorch is not installed."""
    if not HAS_TORCH and item.get_closest_marker("torch") is not None:
        pytest.skip("PyTorch is not installed; make torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest folders and files."""

    def place(item: pytest.Item) -> int:
        places = (k for k, at in enumerate(PLACES) if item.nodeid.startswith(at))
        return next(places, len(PLACES))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, and all those that share the real YARN."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "tests/yarn" if path.startswith("tests/yarn/") else path

    return Scheduling(config, log)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport, *, allowed: bool) -> None:
    """Turn a skip into a failure in continuous integration, unless it is allowed."""
    if allowed or not report.skipped or os.environ.get("ELASTICML_CI") != "1":
        return
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(word in reason for word in HARDWARE):
        return
    report.outcome = "failed"
    report.longrepr = f"nothing is skipped in continuous integration, but this was: {reason}"
