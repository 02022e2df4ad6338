"""The mini YARN starts, is found, and leaves nothing; the other tests here use its clusters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil
import pytest

from elasticml.errors import ConfigError
from elasticml.report.preemptions import containers
from elasticml.report.run_reader import read_run
from tests.waiting import until
from yarn.mini.daemons import is_ours, marked
from yarn.mini.mini_yarn import MiniYarn

pytestmark = [pytest.mark.yarn, pytest.mark.slow]


def test_daemons_run_and_listen_on_loopback_only(mini_yarn):
    pids = mini_yarn.pids()
    assert sorted(pids) == ["data", "name", "node-0", "node-1", "resource"]
    listening = {
        connection.laddr.ip
        for pid in pids.values()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address.rpartition(":")[2].partition(".")[0] for address in listening} == {"127"}
    assert sorted(mini_yarn.nodes().values()) == ["RUNNING", "RUNNING"]


COMMAND = [sys.executable, "-m", "yarn.mini"]


def cli_output(*arguments):
    """Return what the command line prints."""
    return subprocess.check_output([*COMMAND, *arguments], text=True)


def test_a_running_one_is_found_by_programs_shells_and_people(mini_yarn, tmp_path):
    root = str(mini_yarn.root)
    assert MiniYarn.at(mini_yarn.root).pids() == mini_yarn.pids()
    with pytest.raises(ConfigError, match="make yarn-up"):
        MiniYarn.at(tmp_path)
    with pytest.raises(ConfigError, match="already running"):
        MiniYarn(mini_yarn.root).up()
    status = json.loads(cli_output("status", "--json", "--root", root))
    assert (status["daemons"], status["missing"]) == (mini_yarn.pids(), [])
    assert mini_yarn.rm_url in cli_output("status", "--root", root)
    shell = f"{cli_output('env', '--root', root)}\nyarn classpath --glob"
    printed = subprocess.check_output(["bash", "-c", shell], text=True)
    assert printed.startswith(f"{mini_yarn.conf_dir}:")


def test_a_second_one_runs_beside_and_ends_with_its_starter(tmp_path):
    """The process that started it is killed; the watchdog ends the daemons nevertheless."""
    program = (
        "import sys; from yarn.mini.mini_yarn import MiniYarn\n"
        f"with MiniYarn({str(tmp_path / 'second')!r}, nodes=1) as yarn:\n"
        "    print(*yarn.pids().values(), flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    root = tmp_path / "second"
    try:
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 4
        assert all(is_ours(pid, root) for pid in pids)
        owner.kill()
        owner.communicate()
        until(lambda: marked(root) == [], "no daemon")
    finally:
        owner.kill()
        MiniYarn.end_at(root)


def test_the_demonstration_takes_a_container_and_gives_it_back(tmp_path):
    """Ctrl-C ends it once it has all containers again and has lost one more."""
    small = ["--workers", "2", "--rows", "1000", "--seconds", "600"]
    quick = ["--max-wait", "0.5", "--sigkill-delay", "0.25"]
    command = [*COMMAND, "demo", "--out", str(tmp_path), *small, *quick]
    printed = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as demo:
        for line in demo.stderr:
            printed.append(line)
            if line.endswith("with SIGKILL\n"):
                demo.send_signal(signal.SIGINT)
    assert any(line.endswith("with SIGKILL\n") for line in printed), printed
    taken = [c for c in containers(read_run(tmp_path).records) if c.lost_s is not None]
    assert any(c.reason in ("preempted", "released") and c.return_s is not None for c in taken)
