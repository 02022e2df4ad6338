"""The parts of the mini YARN that need no Hadoop: settings, files, ports, and error messages."""

from __future__ import annotations

import os
import signal
import stat
import tempfile

import pytest

from elasticml.errors import ConfigError
from yarn.mini import daemons, java
from yarn.mini.configuration import (
    MARKER,
)
from yarn.mini.daemons import Daemons, is_ours, marked
from yarn.mini.java import find_java
from yarn.mini.layout import Layout
from yarn.mini.mini_settings import MiniSettings


def test_missing_java_is_one_line_with_the_remedy(tmp_path):
    for environ in ({"PATH": str(tmp_path)}, {"JAVA_HOME": str(tmp_path), "PATH": ""}):
        with pytest.raises(ConfigError, match=r"no Java: .* wanted Java 8 to 21; install a JDK"):
            find_java(environ)
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"99\"' >&2\n")
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=r"no usable Java: got .*99"):
        find_java({"JAVA_HOME": str(tmp_path)})


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "nodes: got 0, wanted 1 to 100"),
        ({"queues": {"ml": 30.0, "prod": 30.0}}, "shares that sum up to 60, wanted 100"),
        ({"node_memory": "much"}, "node_memory: got 'much'"),
    ],
)
def test_wrong_settings_are_one_line(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MiniSettings(**wrong)


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


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_child_that_shows_no_environment_is_running_until_it_has_ended(
    tmp_path, monkeypatch, is_killed
):
    """The kernel shows a process that is in its exec, or that dies, with an empty environment."""
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    starter = Daemons(layout)
    command = ["sleep", "1000" if is_killed else "0.5"]
    starter.start("data", command, {"PATH": "/usr/bin:/bin", MARKER: str(tmp_path)})
    monkeypatch.setattr(daemons, "environment_of", lambda pid: {})
    if is_killed:
        os.kill(starter.pids()["data"], signal.SIGKILL)
    assert starter.wait(["data"], 60.0)
    assert starter.pids() == {}
