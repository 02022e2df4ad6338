"""Doctor's report on a YARN cluster that is missing, silent, or short of resources."""

import json
import subprocess
from functools import partial

import pytest

from elasticml.cli import checks_yarn
from elasticml.cli.checks import Check
from elasticml.cli.main import main
from elasticml.clusters.yarn.hadoop_conf import GraceSettings
from elasticml.clusters.yarn.resource_manager import ResourceManager
from elasticml.clusters.yarn.rm_responses import Node, Queue, Resources
from tests.http_server import closed_url, serving

GIB = 1024


def grace(**more):
    generous = {
        "is_preempting": True,
        "max_wait_s": 15.0,
        "interval_s": 3.0,
        "sigkill_delay_s": 5.0,
        "natural_termination": 0.2,
        "per_round": 0.1,
        "node_expiry_s": 10.0,
        "is_memory_enforced": True,
        "is_recovering": True,
    }
    return GraceSettings(**(generous | more))


def node(**more):
    room = Resources(memory_mib=6 * GIB, vcores=4)
    plain = {
        "id": "n:1",
        "host": "n",
        "state": "RUNNING",
        "web_address": "n:8042",
        "rack": "/r",
        "total": room,
        "free": room,
    }
    return Node(**(plain | more))


def write_conf(folder, **values):
    folder.mkdir(exist_ok=True)
    items = "".join(
        f"<property><name>{name.replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    for name in ("core-site.xml", "yarn-site.xml"):
        (folder / name).write_text(f"<configuration>{items}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


def by_name(checks):
    return {check.name: check for check in checks}


def test_without_settings_the_cluster_is_not_checked():
    result = by_name(checks_yarn.yarn_checks({}))
    assert (result["Settings"].state, result["Settings"].required) == ("broken", True)
    assert result["Settings"].remedy.startswith("export HADOOP_CONF_DIR=")
    assert {"Manager", "Queue", "HDFS"} & set(result) == set()


def test_a_cluster_that_is_down_is_two_findings_with_remedies(tmp_path):
    closed = closed_url().removeprefix("http://")
    environment = write_conf(
        tmp_path / "c", yarn_resourcemanager_webapp_address=closed, fs_defaultFS=f"hdfs://{closed}"
    )
    result = by_name(checks_yarn.yarn_checks(environment))
    manager, hdfs = result["Manager"], result["HDFS"]
    assert (manager.state, manager.required, hdfs.state, hdfs.required) == (
        "broken",
        True,
        "broken",
        True,
    )
    assert f"{closed} does not answer (Connection refused)" in manager.found
    assert manager.remedy.startswith("start it, or correct yarn.resourcemanager.webapp.address")
    assert "does not answer (Connection refused)" in hdfs.found
    assert hdfs.remedy.startswith("start the name node")
    assert "Queue" not in result


def test_a_file_that_is_no_configuration_is_named(tmp_path):
    environment = write_conf(tmp_path / "c")
    (tmp_path / "c" / "yarn-site.xml").write_text("<configuration><property>")
    settings = by_name(checks_yarn.yarn_checks(environment))["Settings"]
    assert settings.state == "broken"
    assert settings.found.startswith(f"{tmp_path}/c/yarn-site.xml is not readable XML: ")
    assert settings.remedy == "copy it from the cluster again"


def test_another_default_file_system_leaves_jobs_a_shared_folder(tmp_path):
    check = checks_yarn.check_hdfs(write_conf(tmp_path / "c", fs_defaultFS="s3a://bucket"))
    assert (check.state, check.required) == ("missing", False)
    assert check.remedy == "give jobs a shared folder as result: /shared/runs"


def test_another_server_on_the_resource_managers_port_is_reported():
    with serving(lambda *request: (404, {}, b"")) as url:
        (only,) = checks_yarn.cluster_checks(ResourceManager([url]), "ml", (GIB, 1, ""))
    assert (only.name, only.state, only.required) == ("Manager", "broken", True)
    assert only.found == f"{url} answers 404, wanted its web service"


def test_unhealthy_nodes_are_shown_with_their_reason():
    sick = node(state="UNHEALTHY", health="1/1 local-dirs usable space is below threshold")
    check = checks_yarn.check_nodes([sick])
    assert (check.state, check.found) == ("broken", "0 of 1 running")
    assert check.remedy == f"start the node managers ({sick.health})"
    labelled = checks_yarn.check_nodes([sick, node(labels=("gpu",))])
    assert (labelled.state, labelled.remedy) == ("ok", "")
    assert labelled.found.startswith("1 of 2 running; the largest has 6.0 GiB and 4 vcores")
    assert labelled.found.endswith("labels gpu")


def test_a_queue_without_capacity_is_shown_with_its_limit():
    room = Resources(memory_mib=6 * GIB, vcores=4)
    full = Queue(
        name="ml",
        path="root.ml",
        is_leaf=True,
        is_preemptable=False,
        guaranteed=room,
        maximum=room,
        used=room,
    )
    check = checks_yarn.check_queue(
        partial(lambda name: full, "ml"), [node()], (2 * GIB, 1, ""), True
    )
    assert check.state == "missing"
    assert check.found == (
        "ml, 6.0 GiB guaranteed, at most 6.0 GiB, 6.0 GiB in use, not pre-emptable, "
        "room for 0 containers of 2.0 GiB now"
    )
    assert check.remedy == "name another with --queue, or use smaller containers"


@pytest.mark.parametrize(
    ("check", "settings", "state", "result", "remedy"),
    [
        (checks_yarn.check_preemption, {}, "ok", "ends 15 s after its notice", ""),
        (checks_yarn.check_preemption, {"max_wait_s": 1.0}, "missing", "ends 1 s", "max_wait"),
        (checks_yarn.check_preemption, {"is_preempting": False}, "missing", "off:", "monitor.ena"),
        (checks_yarn.check_grace, {}, "ok", "for a member's state and chunks", ""),
        (checks_yarn.check_grace, {"sigkill_delay_s": 0.25}, "missing", "0.25 s after", "sigkill"),
        (checks_yarn.check_expiry, {}, "ok", "lost after 10 s", ""),
        (checks_yarn.check_expiry, {"node_expiry_s": 600.0}, "missing", "600 s", "expiry"),
        (checks_yarn.check_memory, {}, "ok", "enforced: a container", ""),
        (checks_yarn.check_memory, {"is_memory_enforced": False}, "ok", "not enforced", ""),
        (checks_yarn.check_recovery, {}, "ok", "keep running", ""),
        (checks_yarn.check_recovery, {"is_recovering": False}, "missing", "off:", "recovery.en"),
    ],
)
def test_grace_settings_are_explained(check, settings, state, result, remedy):
    message = check(grace(**settings))
    assert (message.state, result in message.found, remedy in message.remedy) == (state, True, True)
    assert (message.remedy == "") == (state == "ok")


def test_an_agent_that_is_not_built_has_a_remedy(tmp_path):
    check = checks_yarn.check_agent(None)
    assert (check.state, check.remedy.startswith("make agent")) == ("missing", True)
    assert checks_yarn.check_agent(tmp_path / "agent.jar").state == "ok"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (FileNotFoundError(2, "no such file"), "missing"),
        (PermissionError(13, "not allowed"), "broken"),
        (subprocess.TimeoutExpired(["yarn"], 20), "broken"),
    ],
)
def test_a_yarn_program_that_does_not_run_has_a_remedy(error, state):
    def ask(command):
        raise error

    check = checks_yarn.check_class_path(ask)
    assert (check.state, check.required, check.remedy != "") == (state, True, True)


@pytest.mark.parametrize(
    ("error", "state", "remedy"),
    [
        (FileNotFoundError(2, "no such file"), "missing", "install Kerberos"),
        (subprocess.CalledProcessError(1, ["klist"]), "broken", "kinit, or name"),
        (None, "ok", ""),
    ],
)
def test_a_kerberos_ticket_is_found_or_has_a_remedy(error, state, remedy):
    def ask(command):
        if error is not None:
            raise error
        return ""

    check = checks_yarn.check_kerberos(ask)
    assert (check.state, check.remedy[: len(remedy)]) == (state, remedy)


def test_a_class_path_without_archives_is_broken():
    assert checks_yarn.check_class_path(lambda command: "/etc/hadoop:/x/*").state == "broken"
    result = checks_yarn.check_class_path(lambda command: "/c:/x/a.jar:/x/b.jar\n")
    assert (result.state, result.found) == ("ok", "2 jars on its class path")


def test_doctor_of_a_broken_cluster_is_exit_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--yarn", "--json"])
    result = by_name(Check(**check) for check in json.loads(capsys.readouterr().out)["checks"])
    assert (ended.value.code, result["Settings"].state, "YARN" in result) == (2, "broken", False)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--yarn", "--memory", "much"])
    assert (ended.value.code, "--memory" in capsys.readouterr().err) == (2, True)
