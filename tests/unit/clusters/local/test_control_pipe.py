"""How long a client waits for its scheduler process, here a program in the place of Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from elasticml.clusters.local import control_pipe
from elasticml.clusters.local.control_pipe import ControlPipe
from elasticml.clusters.local.process_options import ClusterOptions
from elasticml.errors import SubmissionError

#: Gets a fifth of a processor, as on a busy machine, and replies after twice the limit at least.
SLOW = """
while time.process_time() < 0.25:
    portion_s = time.process_time() + 0.01
    while time.process_time() < portion_s:
        pass
    time.sleep(0.04)
print('{"number": 0, "address": "tcp://127.0.0.1:1"}', flush=True)
"""


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Callable[[str], ControlPipe]]:
    """Start a program as the scheduler process; its client waits for half a second."""
    monkeypatch.setattr(control_pipe, "ANSWER_S_MAX", 0.5)
    folder = str(tmp_path)
    options = ClusterOptions(
        name="local",
        workers=1,
        workers_max=1,
        threads=1,
        memory_limit=None,
        keep=False,
        grace_s=1.0,
        dashboard_address=None,
        start_timeout_s=1.0,
        log_dir=folder,
        scratch_dir=folder,
        own_dir=folder,
    )
    pipes: list[ControlPipe] = []

    def start(program: str) -> ControlPipe:
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable} -S\nimport time\n{program}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        pipes.append(ControlPipe(options))
        return pipes[-1]

    yield start
    for pipe in pipes:
        os.kill(pipe.pid, signal.SIGKILL)
        pipe.end()


def test_a_process_that_gets_little_done_is_waited_for(start: Callable[[str], ControlPipe]) -> None:
    assert start(SLOW).first_answer(0.0)["address"] == "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param("time.sleep(1e6)", r"did not reply within 0\.5 s", id="does nothing"),
        pytest.param("while True: pass", r"did not reply within 0\.5 s", id="computes for ever"),
        pytest.param("", "has exited", id="exits"),
    ],
)
def test_a_process_that_will_not_reply_is_not(
    start: Callable[[str], ControlPipe], program: str, says: str
) -> None:
    with pytest.raises(SubmissionError, match=says):
        start(program).first_answer(0.0)
