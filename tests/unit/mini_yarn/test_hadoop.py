"""The parts of the mini YARN that need no Hadoop: settings, files, ports, and error messages."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from elasticml.errors import ConfigError
from yarn.mini import daemons, java, mini_yarn
from yarn.mini.__main__ import mini_yarn as command_line
from yarn.mini.configuration import (
    MARKER,
    node,
    queues,
    write_configuration,
    yarn,
)
from yarn.mini.daemons import Daemons, is_ours, marked
from yarn.mini.java import Java, find_java, version_of
from yarn.mini.layout import Layout
from yarn.mini.mini_settings import MiniSettings, Preemption, node_host
from yarn.mini.programs import Programs

JAVA = Java(home="/java", version=17)


def numbers(nodes: int) -> dict[str, int]:
    return {name: 11000 + i for i, name in enumerate(mini_yarn.port_names(nodes))}


@pytest.mark.parametrize(
    ("message", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_432"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("not a Java", None),
    ],
)
def test_version_is_read_from_javas_output(message, version):
    assert version_of(message) == version


def test_missing_java_is_one_line_with_the_remedy(tmp_path):
    for environ in ({"PATH": str(tmp_path)}, {"JAVA_HOME": str(tmp_path), "PATH": ""}):
        with pytest.raises(ConfigError, match=r"no Java: .* wanted Java 8 to 21; install a JDK"):
            find_java(environ)


def test_java_that_is_too_new_is_refused(tmp_path):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"99\"' >&2\n")
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=r"no usable Java: got .*99"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_missing_maven_is_one_line_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no mvn on the PATH.*install Maven"):
        java.jars_directory(lambda line: None, tmp_path / "cache")


def test_failing_maven_is_one_line_and_leaves_no_incomplete_jars(tmp_path, monkeypatch):
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] no network'\necho '[ERROR] more'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    messages = []
    with pytest.raises(ConfigError, match=r"with Maven: \[ERROR\] no network"):
        java.jars_directory(messages.append, tmp_path / "cache")
    assert messages == ["fetching Hadoop with Maven: about 90 MB, once"]
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_jars_are_kept_under_the_hash_of_their_list(tmp_path, monkeypatch):
    maven = tmp_path / "mvn"
    maven.write_text(
        '#!/bin/sh\nfor a; do case "$a" in -DoutputDirectory=*) d="${a#*=}" ;; esac; done\n'
        'mkdir -p "$d" && touch "$d/hadoop.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = java.jars_directory(lambda line: None, tmp_path / "cache")
    assert [path.name for path in folder.iterdir()] == ["hadoop.jar"]
    maven.unlink()
    assert java.jars_directory(lambda line: None, tmp_path / "cache") == folder


def test_chosen_ports_are_free_and_differ():
    result = mini_yarn.choose_ports(mini_yarn.port_names(2), random.Random(5))
    assert list(result) == mini_yarn.port_names(2)
    assert len(set(result.values())) == len(result)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", result["name-rpc"]))
        again = mini_yarn.choose_ports(mini_yarn.port_names(2), random.Random(5))
    assert result["name-rpc"] not in again.values()


def test_too_few_ports_are_one_line(monkeypatch):
    monkeypatch.setattr(mini_yarn, "PORT_MAX", mini_yarn.PORT_MIN + 60)
    with pytest.raises(ConfigError, match=r"too few free ports: got .* wanted 61; end processes"):
        mini_yarn.choose_ports([str(i) for i in range(61)], random.Random(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "nodes: got 0, wanted 1 to 100"),
        ({"queues": {"ml": 30.0, "prod": 30.0}}, "shares that sum up to 60, wanted 100"),
        ({"node_memory": "1 MiB"}, "wanted at least 512 MiB"),
        ({"node_memory": "much"}, "node_memory: got 'much'"),
    ],
)
def test_wrong_settings_are_one_line(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MiniSettings(**wrong)


def test_preemption_reaches_the_resource_manager():
    layout = Layout(Path("/root"))
    policy = "yarn.resourcemanager.monitor.capacity.preemption"
    some = MiniSettings(preemption=Preemption(max_wait_s=3.5, interval_s=0.25))
    site = yarn(some, layout, numbers(2), Path("/jars"))
    assert site[f"{policy}.max_wait_before_kill"] == "3500"
    assert site[f"{policy}.monitoring_interval"] == "250"
    none = yarn(MiniSettings(preemption=None), layout, numbers(2), Path("/jars"))
    assert none["yarn.resourcemanager.scheduler.monitor.enable"] == "false"


def test_each_node_has_addresses_and_folders_of_its_own():
    layout, settings = Layout(Path("/root")), MiniSettings(nodes=2)
    first, second = (node(settings, layout, numbers(2), i) for i in range(2))
    kinds = ("address", "local-dirs", "log-dirs", "localizer.address", "webapp.address")
    for kind in kinds:
        assert first[f"yarn.nodemanager.{kind}"] != second[f"yarn.nodemanager.{kind}"]
    assert second["yarn.nodemanager.hostname"] == node_host(1) == "127.0.0.3"
    assert f"{MARKER}=/root" in first["yarn.nodemanager.admin-env"].split(",")


def test_each_queue_may_use_the_whole_cluster():
    result = queues(MiniSettings(queues={"a": 40.0, "b": 60.0}))
    prefix = "yarn.scheduler.capacity.root"
    assert result[f"{prefix}.queues"] == "a,b"
    assert (result[f"{prefix}.a.capacity"], result[f"{prefix}.a.maximum-capacity"]) == ("40", "100")


def test_files_are_written_for_hadoop(tmp_path):
    layout = Layout(tmp_path)
    write_configuration(MiniSettings(nodes=2), layout, numbers(2), Path("/jars"))
    site = ElementTree.parse(layout.node_conf(1) / "yarn-site.xml").getroot()
    values = {p.findtext("name"): p.findtext("value") for p in site}
    assert values["yarn.nodemanager.hostname"] == "127.0.0.3"
    assert values["yarn.application.classpath"] == f"{layout.conf},/jars/*"
    client = ElementTree.parse(layout.conf / "yarn-site.xml").getroot()
    assert "yarn.nodemanager.hostname" not in {p.findtext("name") for p in client}


def test_shims_answer_with_their_values(tmp_path):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "one.jar").touch()
    layout = Layout(tmp_path)
    programs = Programs(java=JAVA, jars=tmp_path / "jars", layout=layout)
    programs.write_shims()

    def run(*command):
        return subprocess.run(command, capture_output=True, text=True, check=False)

    shim = str(layout.bin / "yarn")
    printed = run(shim, "classpath", "--glob").stdout.strip()
    assert printed == f"{layout.conf}:{tmp_path}/jars/one.jar"
    wrong = run(shim, "jar")
    assert (wrong.returncode, wrong.stderr.split(",")[0]) == (2, "yarn: got jar")


def test_client_environment_is_the_same_twice():
    programs = Programs(java=JAVA, jars=Path("/jars"), layout=Layout(Path("/r")))
    once = programs.client_environment({"PATH": "/bin"})
    assert once == {"HADOOP_CONF_DIR": "/r/conf", "JAVA_HOME": "/java", "PATH": "/r/bin:/bin"}
    assert programs.client_environment(once) == once


def test_foreign_directory_is_refused_and_a_former_one_emptied(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ConfigError, match="holds other files"):
        daemons.make_root(tmp_path)
    assert (tmp_path / "mine").read_text() == "keep"
    made = daemons.make_root(tmp_path / "new")
    (made / "old.log").touch()
    messages: list[str] = []
    emptied = daemons.make_root(made, messages.append)
    assert [path.name for path in emptied.iterdir()] == [".elasticml-mini-yarn"]
    assert messages == [f"removing the files of the former mini YARN in {made}"]


def test_the_default_root_is_the_users_own(tmp_path, monkeypatch):
    """A stranger can make a folder of this name in the temporary folder, with its own scripts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = daemons.default_root()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    root.chmod(0o755)  # as earlier versions made it
    assert daemons.default_root() == root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    refused = "is not a folder that only this user can write to .*; remove it, or choose another"
    root.chmod(0o777)
    with pytest.raises(ConfigError, match=refused):
        daemons.default_root()
    root.chmod(0o700)
    root.rename(tmp_path / "elsewhere")
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=refused):
        daemons.default_root()
    root.unlink()
    root.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=refused):
        daemons.default_root()


def test_full_disk_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(daemons, "FREE_BYTES_MIN", 2**70)
    with pytest.raises(ConfigError, match=r"disk full: got \d+ MiB free in .*; free some"):
        daemons.make_root(tmp_path / "new")


def test_processes_are_found_again_and_ended_with_their_children(tmp_path, monkeypatch):
    monkeypatch.setattr(daemons, "END_S_MAX", 0.1)
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    first = Daemons(layout)
    # The shell ignores SIGTERM, and has a child of its own.
    script = "trap '' TERM; sleep 1000 & echo ready; wait"
    first.start("node-0", ["sh", "-c", script], {"PATH": "/usr/bin:/bin", MARKER: str(tmp_path)})
    second = Daemons(layout)
    second.load()
    pids = second.pids()
    assert pids == first.pids()
    assert is_ours(pids["node-0"], tmp_path)
    second.end_all(container_s=0.0)
    assert (second.pids(), marked(tmp_path)) == ({}, [])
    first.wait(["node-0"], 1.0)


def test_a_child_that_is_still_in_its_exec_is_running(tmp_path, monkeypatch):
    """The kernel shows such a process with an empty environment."""
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    starter = Daemons(layout)
    starter.start("data", ["sleep", "1000"], {"PATH": "/usr/bin:/bin", MARKER: str(tmp_path)})
    monkeypatch.setattr(daemons, "environment_of", lambda pid: {})
    running = starter.pids()
    monkeypatch.undo()
    os.kill(running["data"], signal.SIGKILL)
    assert starter.wait(["data"], 60.0)
    assert starter.pids() == {}


def test_a_child_that_dies_is_waited_for(tmp_path, monkeypatch):
    """The kernel shows such a process with an empty environment, too."""
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    starter = Daemons(layout)
    starter.start("data", ["sleep", "0.5"], {"PATH": "/usr/bin:/bin", MARKER: str(tmp_path)})
    monkeypatch.setattr(daemons, "environment_of", lambda pid: {})
    assert starter.wait(["data"], 60.0)
    assert starter.pids() == {}


def test_commands_without_a_started_one_are_one_line(tmp_path):
    for command in ("status", "env"):
        done = CliRunner().invoke(command_line, [command, "--root", str(tmp_path)])
        assert isinstance(done.exception, ConfigError)
        assert "start one: make yarn-up" in done.exception.message
    done = CliRunner().invoke(command_line, ["down", "--root", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "nothing was running\n")
