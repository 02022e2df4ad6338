"""Checks of ``elasticml doctor``: each requirement present, missing, broken, or short."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from elasticml.cli import checks, checks_yarn
from elasticml.cli.checks import Check
from elasticml.clusters.yarn.hadoop_conf import GraceSettings
from elasticml.clusters.yarn.rm_responses import Node, Queue, Resources
from tests.http_server import closed_url

GIB = 1024
ROOM = Resources(memory_mib=6 * GIB, vcores=4)
NODE = Node(
    id="n:1", host="n", state="RUNNING", web_address="n:8042", rack="/r", total=ROOM, free=ROOM
)
SICK = replace(NODE, state="UNHEALTHY", health="1/1 local-dirs usable space is below threshold")
FULL = Queue(
    name="ml",
    path="root.ml",
    is_leaf=True,
    is_preemptable=False,
    guaranteed=ROOM,
    maximum=ROOM,
    used=ROOM,
)
GENEROUS = GraceSettings(
    is_preempting=True,
    max_wait_s=15.0,
    interval_s=3.0,
    sigkill_delay_s=5.0,
    natural_termination=0.2,
    per_round=0.1,
    node_expiry_s=10.0,
    is_memory_enforced=True,
    is_recovering=True,
)
MISSING = FileNotFoundError(2, "no such file")
FAILED = subprocess.CalledProcessError(1, ["it"])
LATE = subprocess.TimeoutExpired(["it"], 20)


def answering(answer):
    """A program, or an import, that answers or fails."""

    def ask(command):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def program(answer, least: int = 1) -> Check:
    return checks.check_program(
        "It", ["it"], "tests", "install it", version_min=least, ask=answering(answer)
    )


def package(error) -> Check:
    return checks.check_package("Lib", "lib", "tests", "install lib", load=answering(error))


def of_grace(check, **settings) -> Check:
    return check(replace(GENEROUS, **settings))


PREEMPTION, EXPIRY = checks_yarn.check_preemption, checks_yarn.check_expiry
CASES = [
    (program('openjdk version "17.0.15" 2025-04-15', 8), "ok", "17.0.15", ""),
    (program("Apache Maven 2.2.1", 3), "broken", "2.2.1", "install it"),
    (program("no number at all"), "broken", "no number at all", "install it"),
    (program(MISSING), "missing", "", "install it"),
    (program(FAILED), "broken", "", "install it"),
    (program(LATE), "broken", "", "install it"),
    (package(ModuleNotFoundError("no", name="lib")), "missing", "", "install lib"),
    (package(ModuleNotFoundError("no", name="other")), "broken", "", "install lib"),
    (checks_yarn.check_class_path(answering(MISSING)), "missing", "", ""),
    (checks_yarn.check_class_path(answering(LATE)), "broken", "", ""),
    (checks_yarn.check_class_path(answering("/etc/hadoop:/x/*")), "broken", "", ""),
    (
        checks_yarn.check_class_path(answering("/c:/x/a.jar:/x/b.jar\n")),
        "ok",
        "2 jars on its class path",
        "",
    ),
    (checks_yarn.check_kerberos(answering(MISSING)), "missing", "", "install Kerberos"),
    (checks_yarn.check_kerberos(answering(FAILED)), "broken", "", "kinit, or name"),
    (checks_yarn.check_kerberos(answering("")), "ok", "", ""),
    (checks_yarn.check_agent(None), "missing", "", "make agent"),
    (checks_yarn.check_agent(Path("/agent.jar")), "ok", "", ""),
    (of_grace(PREEMPTION), "ok", "ends 15 s after its notice", ""),
    (of_grace(PREEMPTION, max_wait_s=1.0), "missing", "ends 1 s", "max_wait"),
    (of_grace(PREEMPTION, is_preempting=False), "missing", "off:", "monitor.ena"),
    (of_grace(checks_yarn.check_grace, sigkill_delay_s=0.25), "missing", "0.25 s after", "sigkill"),
    (of_grace(EXPIRY, node_expiry_s=600.0), "missing", "600 s", "expiry"),
    (of_grace(checks_yarn.check_memory, is_memory_enforced=False), "ok", "not enforced", ""),
    (of_grace(checks_yarn.check_recovery, is_recovering=False), "missing", "off:", "recovery.en"),
    (
        checks_yarn.check_nodes([SICK]),
        "broken",
        "0 of 1 running",
        f"start the node managers ({SICK.health})",
    ),
    (
        checks_yarn.check_nodes([SICK, replace(NODE, labels=("gpu",))]),
        "ok",
        "1 of 2 running; the largest has 6.0 GiB and 4 vcores",
        "",
    ),
    (
        checks_yarn.check_queue(lambda: FULL, [NODE], (2 * GIB, 1, ""), True),
        "missing",
        "ml, 6.0 GiB guaranteed, at most 6.0 GiB, 6.0 GiB in use, not pre-emptable, "
        "room for 0 containers of 2.0 GiB now",
        "name another with --queue, or use smaller containers",
    ),
]


@pytest.mark.parametrize(("check", "state", "found", "remedy"), CASES)
def test_a_check_says_what_it_found_and_what_to_do(check, state, found, remedy):
    assert (check.state, found in check.found, remedy in check.remedy) == (state, True, True)
    assert (check.remedy == "") == (state == "ok")


def test_a_cache_below_a_file_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    check = checks.check_cache(tmp_path / "file" / "cache")
    assert (check.state, check.remedy != "") == ("broken", True)
    assert checks.check_cache(tmp_path / "new" / "cache").state == "ok"


def test_yarn_is_known_by_its_site_file(tmp_path):
    named = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert checks.check_yarn({}).state == "missing"
    assert checks.check_yarn(named).state == "broken"
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    assert checks.check_yarn(named).state == "ok"


# --- a cluster that is missing, silent, or another server -----------------------------------------


def write_conf(folder, **values):
    folder.mkdir(exist_ok=True)
    items = "".join(
        f"<property><name>{name.replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    for name in ("core-site.xml", "yarn-site.xml"):
        (folder / name).write_text(f"<configuration>{items}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


def by_name(environment):
    return {check.name: check for check in checks_yarn.yarn_checks(environment)}


def test_without_readable_settings_the_cluster_is_not_checked(tmp_path):
    result = by_name({})
    assert (result["Settings"].state, result["Settings"].required) == ("broken", True)
    assert result["Settings"].remedy.startswith("export HADOOP_CONF_DIR=")
    assert {"Manager", "Queue", "HDFS"} & set(result) == set()
    environment = write_conf(tmp_path / "c")
    (tmp_path / "c" / "yarn-site.xml").write_text("<configuration><property>")
    settings = by_name(environment)["Settings"]
    assert (settings.state, settings.remedy) == ("broken", "copy it from the cluster again")
    assert settings.found.startswith(f"{tmp_path}/c/yarn-site.xml is not readable XML: ")


def test_a_cluster_that_is_down_is_two_findings_with_remedies(tmp_path):
    closed = closed_url().removeprefix("http://")
    address = {"yarn_resourcemanager_webapp_address": closed, "fs_defaultFS": f"hdfs://{closed}"}
    result = by_name(write_conf(tmp_path / "c", **address))
    for name, remedy in (
        ("Manager", "start it, or correct yarn.resourcemanager.webapp.address"),
        ("HDFS", "start the name node"),
    ):
        check = result[name]
        assert (check.state, check.required) == ("broken", True)
        assert "does not answer (Connection refused)" in check.found
        assert check.remedy.startswith(remedy)
    assert "Queue" not in result


def test_another_default_file_system_leaves_jobs_a_shared_folder(tmp_path):
    check = checks_yarn.check_hdfs(write_conf(tmp_path / "c", fs_defaultFS="s3a://bucket"))
    assert (check.state, check.required) == ("missing", False)
    assert check.remedy == "give jobs a shared folder as result: /shared/runs"
