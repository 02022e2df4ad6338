"""Job files submitted to a real YARN: from the command line to the run, through kills."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from elasticml.clusters.yarn.jobs.applications import load_application, status_at
from elasticml.clusters.yarn.jobs.submission import read_attempt
from elasticml.data.storage import filesystem
from tests.waiting import until

pytestmark = [pytest.mark.yarn, pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S_MAX = 180
ROWS, COLUMNS = 4000, 22
SMALL = {
    "kind": "yarn",
    "workers": 2,
    "memory": "512 MiB",
    "scheduler": {"memory": "768 MiB"},
    "queue": "ml",
}
COCOA = {"name": "cocoa", "loss": "hinge", "l2": 1e-3, "intercept": False, "tolerance": 0}
ENDLESS = {"rounds": 10**6}
#: Libraries that the containers of a job do not load.
LEFT_OUT = (
    "_polars _pytest babel bokeh cuda databricks hypothesis mlflow mypy nvidia onnx pandas pip "
    "polars pytest ruff selenium setuptools sympy tensorboard torch triton wandb"
).split()


@pytest.fixture(scope="module")
def text():
    """Rows of the shape of ijcnn1: 22 columns, a tenth positive."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 0.6)
    margins = rows @ rng.normal(size=COLUMNS) + 0.5 * rng.normal(size=ROWS)
    positive = margins > np.quantile(margins, 0.9)
    return "".join(
        f"{'+1' if positive[i] else '-1'} "
        + " ".join(f"{j + 1}:{rows[i, j]:.4f}" for j in np.flatnonzero(rows[i]))
        + "\n"
        for i in range(ROWS)
    )


@pytest.fixture(scope="module")
def on_hdfs(mini_yarn, text):
    path = f"{mini_yarn.hdfs_url}/data/train.svm"
    filesystem.write_whole(path, text.encode())
    return path


@pytest.fixture
def command(mini_yarn, tmp_path):
    """Run a command as a user would; return its exit code, output and errors."""

    def call(*arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "elasticml", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX * 2,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def job_file(tmp_path):
    def write(data, algorithm, stop, **cluster):
        path = tmp_path / "job.yaml"
        job = {
            "name": "submitted",
            "data": {"format": "svmlight", "path": str(data)},
            "algorithm": algorithm,
            "cluster": {**SMALL, **cluster},
            "stop": stop,
        }
        path.write_text(yaml.safe_dump(job))
        return path

    return write


def rounds_of(folder):
    with (folder / "history.csv").open() as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def events_of(folder, event):
    lines = (folder / "story.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def test_a_job_on_data_from_hdfs_ends_with_its_certificate_and_its_run(
    command, job_file, on_hdfs, tmp_path
):
    job = job_file(on_hdfs, COCOA, {"rounds": 500, "gap": 1e-5})
    code, out, err = command("submit", job, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["gap"] <= 1e-5
    assert not summary["gap_is_bound"]
    assert summary["examples"] == ROWS
    assert summary["run_dir"] == str(tmp_path / "run")
    assert rounds_of(tmp_path / "run") == list(range(summary["rounds"] + 1))
    assert {"job.yaml", "model.npz", "report.html"} <= set(os.listdir(tmp_path / "run"))
    application = err.split("application_")[1].split(";")[0]
    known = load_application(f"application_{application}")
    assert known.place.startswith(f"{on_hdfs.removesuffix('/data/train.svm')}/user/")
    assert not filesystem.exists(filesystem.join(known.place, "checkpoint"))


def test_run_does_the_same_on_a_shared_path(command, job_file, text, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "train.svm").write_text(text)
    job = job_file(
        shared / "train.svm",
        {"name": "batch_gradient", "optimizer": "gd", "intercept": False, "tolerance": 0},
        {"rounds": 10},
        result=str(shared / "result"),
    )
    code, out, err = command("run", job, "--out", tmp_path / "run")
    assert code == 0, err
    assert "rounds      10 (10 rounds)" in out
    assert rounds_of(tmp_path / "run") == rounds_of(shared / "result") == list(range(11))


def processes_in(container, word):
    """List the processes of a container whose command line contains a word, except shells."""
    results = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes()
            program = os.readlink(folder / "exe")
        except OSError:
            continue
        is_shell = program.endswith(("sh", "container-executor"))
        if f"CONTAINER_ID={container}".encode() in environment and word in line and not is_shell:
            results.append(int(folder.name))
    return results


def kill_9(container, word):
    pids = until(lambda: processes_in(container, word), f"a process of {container}")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_for_progress(place, attempt):
    """Wait until an attempt has brought the job some rounds beyond its former progress."""
    before = status_at(place)
    until(lambda: read_attempt(place).number == attempt, f"attempt {attempt} of the driver")
    until(lambda: status_at(place).round > before.round + 5, f"rounds after {before.round}")


def submit_and_detach(job, folder):
    """Submit a job, wait until it runs, then press Ctrl-C; return the application's id."""
    looking_on = subprocess.Popen(
        [sys.executable, "-m", "elasticml", "submit", str(job)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        first = looking_on.stderr.readline()
        application = first.removeprefix("elasticml: ").partition(";")[0]
        wait_for_progress(load_application(application).place, attempt=1)
        os.killpg(looking_on.pid, signal.SIGINT)
        out, err = looking_on.communicate(timeout=WAIT_S_MAX)
    finally:
        if looking_on.poll() is None:
            looking_on.kill()
            looking_on.communicate()
    assert (looking_on.returncode, out) == (130, ""), first + err
    assert f"elasticml: {application} keeps running\n" in err
    assert f"elasticml kill {application}: end it" in err
    return application


def test_a_job_without_a_client_outlives_its_scheduler_and_its_master(
    command, job_file, on_hdfs, tmp_path
):
    application = submit_and_detach(job_file(on_hdfs, COCOA, ENDLESS), tmp_path)
    place = load_application(application).place

    code, out, err = command("status", application, "--json")
    assert code == 0, err
    content = json.loads(out)
    assert (content["state"], content["queue"].split(".")[-1]) == ("RUNNING", "ml")
    assert content["containers"] == 4
    assert content["job"]["members"] == 2
    code, out, err = command("logs", application, "--service", "dask.scheduler")
    assert code == 0, err
    assert "--- dask.scheduler_0" in out
    assert "elasticml.clusters.yarn.scheduler_service" in out

    # The container of the scheduler, kill -9.
    kill_9(read_attempt(place).container, b"elasticml.clusters.yarn.jobs.job_driver")
    wait_for_progress(place, attempt=2)
    # The application master.
    container = read_attempt(place).container
    kill_9(f"{container.rpartition('_')[0]}_000001", b"skein.ApplicationMaster")
    wait_for_progress(place, attempt=3)
    assert read_attempt(place).container.split("_")[-2] == "02"

    code, out, err = command("kill", application)
    assert code == 0, err
    code, out, err = command("result", application, "--out", tmp_path / "run")
    assert code == 0, err
    assert f"{application}: cancelled after" in err
    run = tmp_path / "run"
    rounds = rounds_of(run)
    assert rounds == list(range(len(rounds)))
    # The second attempt is missing from the story if it ended before its first checkpoint.
    resumed = events_of(run, "JobResumed")
    assert len(resumed) in (1, 2)
    for record in resumed:
        assert record["repeated_s"] <= 10.0
    code, out, err = command("status", application)
    assert code == 0, err
    assert "KILLED: cancelled: " in out
    code, out, err = command("logs", application)
    assert code == 0, err
    # Two attempts: its first master was killed on purpose. A cancelled job is not restarted.
    attempts = set(re.findall(r"container_(?:e\d+_)?\d+_\d+_(\d+)_\d+", out))
    assert {"02"} <= attempts <= {"01", "02"}


def test_a_packed_environment_is_sent_with_a_job(command, job_file, on_hdfs, tmp_path):
    exclude = [f"*/site-packages/{name}*" for name in LEFT_OUT]
    exclude += ["bin/ruff", "*mypyc*", "*/__pycache__/*", "*/tests/*"]
    job = job_file(on_hdfs, COCOA, {"rounds": 3}, workers=1, pack_exclude=exclude)
    code, _, err = command("submit", job, "--pack", "--out", tmp_path / "run")
    assert code == 0, err
    assert "elasticml: packing " in err
    assert "elasticml: uploading " in err


def test_jobs_that_cannot_start_are_one_line_before_anything_starts(
    command, job_file, on_hdfs, mini_yarn
):
    def check_refused(*words, setting="stop.rounds=5", **environment):
        job = job_file(on_hdfs, COCOA, ENDLESS)
        code, out, err = command("submit", job, "--set", setting, **environment)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert [word for word in words if word not in err] == []

    check_refused("a container of 99.0 GiB was requested", setting="cluster.memory=99 GiB")
    archive = "/nowhere/env.tar.gz"
    check_refused(f"there is no file {archive}", setting=f"cluster.environment={archive}")
    check_refused("/user/stranger/", "cannot be written", HADOOP_USER_NAME="stranger")
    mini_yarn.stop_resource_manager()
    check_refused("the resource manager does not answer")
