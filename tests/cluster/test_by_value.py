"""What no file has, an algorithm of a script or data in memory, is given again to resume a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

import elasticml as em
from elasticml.errors import ConfigError
from examples.huber import HUBER

pytestmark = pytest.mark.cluster

SCRIPT = """
import sys
from pathlib import Path

import numpy as np

import elasticml as em
from elasticml.algorithms.base import Algorithm, Exchange, Model, Resume, RoundEnd


def trainer(settings, facts, absent, resume=None):
    w, go_on = np.zeros(1) if resume is None else resume.arrays["w"], True
    while go_on:
        sums = yield Exchange(operation="add", model={"w": w}, returns={"g": (1,)})
        after = w + settings["step"] * sums.arrays["g"] / sums.examples
        go_on = yield RoundEnd(
            objective=1.0 / (1.0 + float(after[0])),
            model={"w": w},
            next_model={"w": after},
            resume=Resume(arrays={"w": after}),
        )
        w = after
    return Model(arrays={"w": w}, converged=False, reason="all rounds done")


class Solver:
    def __init__(self, settings, facts):
        pass

    def compute(self, work, chunks, parallel):
        return {"g": np.array([float(sum(len(c.labels) for c in chunks))])}


class Watching:
    name = "watching"

    def suggest(self, view):
        return []


OWN = Algorithm(name="own", trainer=trainer, solver=Solver)
address, folder, data, what = sys.argv[1:]
kept = str(Path(folder).resolve() / "checkpoints")


def job(**settings):
    algorithm = em.ImportedAlgorithm(name=OWN, step=1.0)
    return em.Job(algorithm, em.read_csv(data, label="y"), policies=[Watching()], **settings)


if what == "run":
    result = job(stop=em.Stop(rounds=3)).run(address, run_dir=Path(folder) / "run")
    print(result.summary["rounds"])
    checkpoint = em.settings.Checkpoint(path=kept, every=0.1)
    handle = job(stop=em.Stop(rounds=10**9), checkpoint=checkpoint).start(address)
    for record in handle:
        if record["event"] == "RoundEnded" and any(Path(kept).glob("*")):
            break
    handle.cancel()
else:
    objects = [] if what == "resume" else [OWN, Watching]
    try:
        em.Job.resume(address, kept, objects=objects).cancel()
        print("resumed")
    except em.errors.ConfigError as error:
        print(error)
"""


def test_an_algorithm_of_a_script_trains_and_is_given_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    data, folder = tmp_path / "rows.csv", tmp_path / "written"
    data.write_text("x,y\n" + "".join(f"{k},{k % 2}\n" for k in range(50)))

    def script(what: str) -> str:
        arguments = [cluster.scheduler_address, str(folder), str(data), what]
        return subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), *arguments],
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
            cwd=tmp_path,
        ).stdout

    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        assert script("run") == "3\n"
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert {file.parent.name for file in files} >= {"run", "checkpoints"}
        assert not [file for file in files if b"cloudpickle" in file.read_bytes()]
        assert "was defined in a script or a notebook, and files do not keep it" in script("resume")
        assert script("resume with objects") == "resumed\n"


def test_an_algorithm_object_of_a_module_needs_no_name() -> None:
    settings = em.ImportedAlgorithm(name=HUBER, delta=1.0, step=0.5)
    assert settings.name.endswith(":huber")


def test_all_data_that_were_in_memory_are_given_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), rng.integers(0, 2, 300).astype(float)
    parts = {"data": slice(0, 200), "validate": slice(200, 250), "test": slice(250, 300)}
    sources = {name: em.from_arrays(X[part], y[part]) for name, part in parts.items()}
    checkpoint = em.settings.Checkpoint(path=str(tmp_path / "kept"), every=0.0)
    stop = em.Stop(rounds=10**9)
    job = em.Job(em.CoCoA(tolerance=0.0), **sources, checkpoint=checkpoint, stop=stop)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        handle = job.start(client)
        for record in handle:
            if record["event"] == "CheckpointWritten":
                break
        handle.cancel()
        with pytest.raises(ConfigError, match=r"data and validate and test of job .* in memory"):
            em.Job.resume(client, tmp_path / "kept", data=job.data, test=job.test)
        resumed = em.Job.resume(client, tmp_path / "kept", **sources)
        began = False
        for record in resumed:
            began = began or record["event"] == "JobResumed"
            if began and record["event"] == "RoundEnded":
                break
        resumed.cancel()
    assert any(name.startswith("validation_") for name in record)
