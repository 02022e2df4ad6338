"""The command that announces workers' ends: what it refuses before it connects."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from elasticml.cli.announce import announce
from elasticml.errors import ConfigError

HERE = ("--scheduler", "tcp://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grace", "60", "a"), "give the scheduler: either --scheduler or --scheduler-file"),
        ((*HERE, "--scheduler-file", "s.json", "--grace", "60", "a"), "give the scheduler"),
        ((*HERE, "a"), "give either --grace SECONDS or --withdraw"),
        ((*HERE, "--grace", "60", "--withdraw", "a"), "give either --grace SECONDS"),
        ((*HERE, "--grace", "60", "--reason", "because", "a"), "'because' is not one of"),
        ((*HERE, "--grace", "60"), "Missing argument 'WORKERS...'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments, message):
    done = CliRunner().invoke(announce, arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_a_scheduler_that_does_not_answer_is_an_error_in_one_line(monkeypatch):
    monkeypatch.setattr("elasticml.jobs.cluster_client.CONNECT_S", 0.2)
    done = CliRunner().invoke(announce, [*HERE, "--grace", "60", "a"])
    assert isinstance(done.exception, ConfigError)
    assert "no scheduler answers at 'tcp://127.0.0.1:9'" in done.exception.message
