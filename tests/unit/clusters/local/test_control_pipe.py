"""How long a client waits for a reply of the scheduler process."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from elasticml.clusters.local.control_pipe import ControlPipe
from elasticml.errors import SubmissionError

WAIT_S = 0.05


@pytest.fixture
def pipe(tmp_path: Path) -> Generator[ControlPipe]:
    """A pipe to a process that sends back what it is sent."""
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        pipe = ControlPipe.__new__(ControlPipe)
        pipe._process, pipe._unread, pipe._log_dir = process, b"", tmp_path
        yield pipe
        process.kill()


def test_a_process_that_computes_is_waited_for(
    pipe: ControlPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.01, 0.02, 0.03])

    def processor_s() -> float:
        spent_s = next(times)
        if spent_s == 0.03:
            pipe._write("done")
        return spent_s

    monkeypatch.setattr(pipe, "_processor_s", processor_s)

    assert pipe._read_line(WAIT_S) == b"done"


@pytest.mark.parametrize("times", [[0.0, 0.0], [0.0, 0.03, 0.06]])
def test_one_that_does_nothing_or_computes_for_too_long_is_not(
    pipe: ControlPipe, monkeypatch: pytest.MonkeyPatch, times: list[float]
) -> None:
    spent_s = iter(times)
    monkeypatch.setattr(pipe, "_processor_s", lambda: next(spent_s))

    with pytest.raises(SubmissionError, match=r"did not reply within 0\.05 s"):
        pipe._read_line(WAIT_S)
    assert next(spent_s, None) is None


def test_the_processor_time_is_that_of_the_process(pipe: ControlPipe) -> None:
    assert pipe._processor_s() >= 0.0
    pipe._process.kill()
    pipe._process.wait()
    assert pipe._processor_s() == 0.0
