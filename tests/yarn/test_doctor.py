"""Doctor on a real cluster: a real resource manager's answers about queues and nodes."""

from __future__ import annotations

import json
import os

import pytest

from elasticml.cli.main import main
from elasticml.clusters.yarn.hadoop_conf import grace_settings, require_conf
from elasticml.clusters.yarn.resource_manager import ResourceManager

pytestmark = [pytest.mark.yarn, pytest.mark.slow]


@pytest.fixture
def rm(mini_yarn):
    return ResourceManager.from_conf(require_conf(os.environ))


@pytest.fixture
def doctor(mini_yarn, capsys, monkeypatch):
    """Run the doctor; return its exit code and its findings on the cluster by name."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--yarn", "--json", *arguments])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return ended.value.code, {check["name"]: check for check in checks}

    return call


def test_a_healthy_cluster_is_all_ok(doctor, mini_yarn):
    code, result = doctor("--queue", "ml")
    beside = ("Agent", "Data sets")
    amiss = {n: c for n, c in result.items() if c["state"] != "ok" and n not in beside}
    assert (code, amiss) == (0, {})
    assert result["Manager"]["found"].endswith(f"at {mini_yarn.rm_url}, capacity scheduler")
    assert result["Nodes"]["found"].startswith("2 of 2 running; the largest has 6.0 GiB")
    assert "at most 12.0 GiB" in result["Queue"]["found"]
    assert ", pre-emptable, room for " in result["Queue"]["found"]
    assert "ends 2 s after its notice" in result["Pre-emption"]["found"]
    assert result["Grace"]["found"].startswith("SIGKILL 5 s after SIGTERM")
    assert result["HDFS"]["found"].startswith(f"{mini_yarn.hdfs_url}/user/")


def test_an_unknown_queue_is_exit_2_with_the_existing_ones(doctor):
    code, result = doctor("--queue", "mll")
    assert (code, result["Queue"]["state"]) == (2, "broken")
    assert "its queues are ml, prod; did you mean 'ml'?" in result["Queue"]["found"]
    assert result["Queue"]["remedy"] == "name another with --queue"


def test_the_servers_own_settings_count(rm):
    (node, *_) = rm.nodes()
    assert rm.conf_here.text("yarn.nodemanager.sleep-delay-before-sigkill.ms") == ""
    assert grace_settings(rm.conf(), rm.node_conf(node)).sigkill_delay_s == 5
