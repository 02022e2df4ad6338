"""A failed start of a mini YARN names the daemon that ended first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from elasticml.errors import SubmissionError
from yarn.mini import startup as module
from yarn.mini.daemons import Daemons
from yarn.mini.layout import Layout
from yarn.mini.mini_settings import MiniSettings
from yarn.mini.programs import Programs
from yarn.mini.startup import PortTakenError, Start


class Programless:
    """Programs without Hadoop: formatting does nothing."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def daemon_environment(self) -> dict[str, str]:
        return {}

    def format_name(self) -> list[str]:
        return ["true"]

    def daemon(self, name: str) -> list[str]:
        return [name]


class EndingDaemons:
    """Daemons of which some end at once, and log the reason."""

    def __init__(self, layout: Layout, says: Mapping[str, str], ended: set[str]) -> None:
        self._layout, self._says, self._ended = layout, says, ended
        self._started: dict[str, int] = {}

    def start(self, name: str, command: object, environment: object) -> None:
        self._started[name] = len(self._started)
        self._layout.log(name).write_text(self._says.get(name, "") + "\n")

    def pids(self) -> dict[str, int]:
        return {name: pid for name, pid in self._started.items() if name not in self._ended}


def begin(tmp_path: Path, says: Mapping[str, str], ended: set[str]) -> None:
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    ports: dict[str, Any] = {"resource-http": 1, "name-http": 1, "node-0-rpc": 1}
    Start(
        cast(Daemons, EndingDaemons(layout, says, ended)),
        cast(Programs, Programless(layout)),
        MiniSettings(nodes=1),
        ports,
        lambda line: None,
    ).everything()


def test_a_node_that_ends_because_the_others_port_was_taken_leads_to_another_attempt(
    tmp_path: Path,
) -> None:
    """The ResourceManager has not ended yet, the NodeManager that cannot reach it has."""
    says = {"resource": "BindException: Address already in use", "node-0": "ConnectException"}
    with pytest.raises(PortTakenError, match="resource exited; its log says 'BindException"):
        begin(tmp_path, says, ended={"node-0"})


def test_a_daemon_that_ended_before_the_wait_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAUSE_S_MAX", 0.1)
    with pytest.raises(
        SubmissionError, match="node-0 exited; its log says 'ConnectException'"
    ) as caught:
        begin(tmp_path, {"node-0": "ConnectException"}, ended={"node-0"})
    assert not isinstance(caught.value, PortTakenError)
