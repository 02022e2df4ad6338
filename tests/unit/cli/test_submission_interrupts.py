"""Submission to YARN during Ctrl-C, or without a writable home directory."""

from __future__ import annotations

import signal

import click
import pytest
from fsspec.implementations.memory import MemoryFileSystem

pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

from elasticml.cli.submit import submit_and_follow
from elasticml.clusters.yarn.jobs.submit import SubmissionPlan, make_spec
from elasticml.data.storage import filesystem
from elasticml.data.storage.hadoop_sites import HadoopConf
from elasticml.protocol.job_record import job_record
from elasticml.specification.sections import YarnContainers
from tests.fake_yarn import FakeYarn

APPLICATION = "application_1_0001"
RECORD = job_record({"data": {"format": "synthetic_splice"}})


def send_interrupts(times):
    """Send this many interrupts."""
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


class InterruptedYarn(FakeYarn):
    """A cluster on which each application has ended at the next request.

    Parameters
    ----------
    presses : int
        How many interrupts arrive during a submission.
    """

    def __init__(self, presses=0):
        super().__init__(state="KILLED", final_status="KILLED")
        self.presses = presses

    def submit(self, spec):
        send_interrupts(self.presses)
        return super().submit(spec)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    system = f"memory://handed-{tmp_path.name}"
    cluster = YarnContainers(kind="yarn", workers=2, environment="venv:///opt/env")
    yield SubmissionPlan(
        name="job",
        cluster=cluster,
        conf=HadoopConf(values={"fs.defaultFS": system}),
        spec=make_spec(cluster, "job"),
        place=f"{system}/run",
    )
    filesystem.remove(system)


@pytest.fixture
def writing_down(monkeypatch):
    """Call a function whenever an application is recorded as running."""

    def happens(act):
        pipe_file = MemoryFileSystem.pipe_file

        def pipe(self, path, value, **options):
            if "/.elasticml/applications/" in str(path):
                act()
            return pipe_file(self, path, value, **options)

        monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe)

    return happens


def test_the_printed_id_can_be_used_at_once(plan, capsys, writing_down):
    messages = []
    writing_down(lambda: messages.append(capsys.readouterr()))
    submit_and_follow(InterruptedYarn(), plan, RECORD, detach=True)
    assert [(before.out, before.err) for before in messages] == [("", "")]
    assert capsys.readouterr().out == f"{APPLICATION}\n"


def test_the_id_is_printed_when_it_cannot_be_recorded(plan, capsys, writing_down):
    # The home directory was read-only: exit 2 without the id, and the job ran on.
    def refuse():
        raise PermissionError(13, "Permission denied")

    writing_down(refuse)
    submit_and_follow(InterruptedYarn(), plan, RECORD, detach=True)
    out, err = capsys.readouterr()
    assert out == f"{APPLICATION}\n"
    assert f"{APPLICATION} is running, but status and result cannot find it: " in err
    assert "cannot be written: Permission denied" in err
    assert f"elasticml kill {APPLICATION}: end it\n" in err
    assert "elasticml status" not in err


@pytest.mark.parametrize("detach", [True, False])
def test_a_second_interrupt_while_recording_prints_the_id(plan, capsys, writing_down, detach):
    writing_down(lambda: send_interrupts(2))
    with pytest.raises(click.exceptions.Exit) as ended:
        submit_and_follow(InterruptedYarn(), plan, RECORD, detach=detach)
    assert ended.value.exit_code == 130
    out, err = capsys.readouterr()
    assert out == (f"{APPLICATION}\n" if detach else "")
    assert f"elasticml: {APPLICATION} keeps running\n" in err
    assert filesystem.names(plan.place) == ["driver"]


def test_an_interrupted_job_is_ended_and_fetched(plan, tmp_path, capsys, writing_down):
    def interrupted():
        filesystem.write_whole(f"{plan.place}/story.jsonl", b"")
        send_interrupts(2)

    writing_down(interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit_and_follow(InterruptedYarn(), plan, RECORD, path=tmp_path / "run")
    assert f"{APPLICATION}; its run is in {plan.place}" in capsys.readouterr().err
    assert (tmp_path / "run" / "story.jsonl").exists()


def test_a_second_interrupt_while_yarn_is_asked_says_that_the_job_may_run(plan, capsys):
    with pytest.raises(click.exceptions.Exit) as ended:
        submit_and_follow(InterruptedYarn(2), plan, RECORD)
    assert ended.value.exit_code == 130
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the job job, which may be running: check with yarn application -list" in err
    assert filesystem.names(plan.place) == ["driver"]
