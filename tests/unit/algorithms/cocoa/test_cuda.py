"""The GPU solver on numba's simulator in a separate process, and machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticml.algorithms.cocoa import device_selection
from elasticml.algorithms.cocoa.device_selection import AUTO_VALUES_MIN, device_of, why_not_cuda
from elasticml.algorithms.cocoa.solver import CocoaSolver
from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError
from tests.serial_world import facts_of, split_rows
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.unit.algorithms.cocoa.test_solver import ask

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
#: The simulator's threads switch often; a busy machine makes that slow.
WAIT_S = 900
NO_GPU = pytest.mark.skipif(why_not_cuda() is None, reason="needs a machine without a GPU")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(WAIT_S + 60)
def test_the_gpu_solver_is_correct_on_the_simulator() -> None:
    result = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "cuda_cases.py"),
        NUMBA_ENABLE_CUDASIM="1",
        ELASTICML_CI="1",
    )
    assert result.returncode == 0, result.stdout + result.stderr


# --- without a GPU ----------------------------------------------------------------------------


@NO_GPU
def test_a_process_without_a_gpu_reports_it_and_computes_on_the_cpu() -> None:
    assert [device_of(expected, AUTO_VALUES_MIN) for expected in ("auto", "cpu")] == ["cpu", "cpu"]
    facts = facts_of(split_rows(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), 1, chunk_rows=2)[0])
    with pytest.raises(ConfigError, match=r"algorithm\.device is cuda, which this process cannot"):
        CocoaSolver({"loss": "hinge", "l2": 0.1, "device": "cuda"}, facts)


@NO_GPU
def test_a_job_that_asks_for_a_gpu_fails_in_one_line_where_there_is_none() -> None:
    algorithm = {"name": "cocoa", "loss": "hinge", "l2": 0.1, "device": "cuda"}
    record = toy_job(algorithm=algorithm, absent="reload", members={"start": 2, "min": 1})
    error = VirtualJob(record, from_arrays(np.eye(8), np.array([1.0, -1.0] * 4))).end().agent.error
    assert error is not None
    assert error["message"].startswith("algorithm.device is cuda, which this process cannot use (")
    assert "\n" not in error["message"]


@NO_GPU
def test_a_solver_on_the_cpu_does_not_load_cuda() -> None:
    result = run(
        "-c",
        "import sys; from elasticml.algorithms.cocoa.solver import CocoaSolver\n"
        "from elasticml.algorithms.cocoa.device_selection import device_of\n"
        "assert device_of('auto', 10**9) == 'cpu'\n"
        "assert 'numba.cuda' not in sys.modules",
        NUMBA_ENABLE_CUDASIM="0",
    )
    assert result.returncode == 0, result.stderr


def test_auto_uses_a_gpu_only_for_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[None] = []
    monkeypatch.setattr(device_selection, "why_not_cuda", lambda: requests.append(None))
    assert device_of("auto", AUTO_VALUES_MIN - 1) == "cpu"
    assert requests == []
    assert device_of("auto", AUTO_VALUES_MIN) == "cuda"
    assert device_of("cuda", 1) == "cuda"
    assert len(requests) == 2


def test_a_device_is_opened_by_the_first_pass_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_selection.config, "ENABLE_CUDASIM", True)
    monkeypatch.setattr(device_selection, "why_not_cuda", lambda: "it is on strike")
    ((chunk,),) = split_rows(np.eye(2), np.array([1.0, -1.0]), 1, chunk_rows=2)
    solver = CocoaSolver({"loss": "hinge", "l2": 0.1, "device": "cuda"}, facts_of([chunk]))
    ask(solver, [chunk], "certify", np.zeros(2), serial=1, settle=0)
    with pytest.raises(ConfigError, match=r"is cuda, which .* cannot use .it is on strike"):
        ask(solver, [chunk], "pass", np.zeros(2), serial=2, settle=1)
