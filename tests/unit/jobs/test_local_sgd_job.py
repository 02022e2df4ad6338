"""Local SGD as users write it: in Python, in a job file, and in a job's record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticml as em
from elasticml.clusters.yarn.jobs.job_driver import progress_fraction
from elasticml.data.source import merge_summaries
from elasticml.errors import ConfigError
from elasticml.jobs.job_spec import job_file_from_record
from elasticml.jobs.progress_bar import status_line
from elasticml.models.model import NetworkModel
from elasticml.protocol.job_record import job_record
from elasticml.report.status import JobStatus

pytest.importorskip("torch")
from tests.networks import linear

pytestmark = pytest.mark.torch

DATA = em.from_arrays(np.zeros((9, 4), np.float32), np.arange(9) % 3)


def record(algorithm: Any = None, **changes: Any) -> dict[str, Any]:
    stop = changes.pop("stop", em.Stop(epochs=7))
    job = em.Job(algorithm or em.LocalSGD(), DATA, stop=stop, seed=5, **changes)
    return job.record("job", 2)


def test_a_record_has_what_the_members_need():
    result = record(em.LocalSGD(batch=4, normalize=(0, 255), shape=(2, 2)))
    expected = {"name": "local_sgd", "batch": 4, "normalize": [0.0, 255.0], "shape": [2, 2]}
    assert result["algorithm"] == result["algorithm"] | expected | {"seed": 5, "epochs": 7}
    known = ("absent", "placement", "holders", "chunk_bytes")
    assert [result[key] for key in known] == ["reload", "random", 1, 200 * 1024]
    assert record(chunk_size="1 MiB")["chunk_bytes"] == 2**20


def test_the_job_file_of_a_run_is_the_same_job():
    result = record(em.LocalSGD(batch=4, holdout=0.1))
    raw = {
        **job_file_from_record(job_record(result)),
        "data": {"format": "images", "path": "a-images-idx3-ubyte"},
    }
    again = em.Job.from_sections(raw, folder=Path("/"), name="again")
    assert (again.algorithm, again.stop, again.seed) == (
        em.LocalSGD(batch=4, holdout=0.1),
        em.Stop(epochs=7),
        5,
    )


def test_callables_are_named_by_their_import_path():
    from tests.networks import linear, total

    made = em.LocalSGD(model=linear, loss=total)
    assert (made.model, made.loss) == ("tests.networks:linear", "tests.networks:total")
    assert em.LocalSGD(model=lambda: None).model.startswith("__main__.v")  # sent with the job


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: record(absent="taylor"),
            "algorithm local_sgd cannot follow, but batch_gradient; use reload",
        ),
        (lambda: record(stop=em.Stop(epochs=1, gap=1e-3)), "local_sgd certifies no duality gap"),
        (
            lambda: record(stop=em.Stop(epochs=1, objective=0.1)),
            "local_sgd computes only the mean loss of the last",
        ),
        (lambda: record(policies=["knee"]), "decides by the duality gap"),
        (lambda: record(warm_start={}), "warm_start: no arrays in what was given; wanted"),
    ],
)
def test_errors_are_one_line(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_progress_is_shown_in_epochs():
    status = JobStatus(job="a")
    for event in (
        {"event": "JobStarted", "t": 0.0, "name": "net", "spec": {"stop": {"epochs": 4}}},
        {"event": "RoundEnded", "t": 5.0, "round": 9, "epoch": 1.0, "members": 2},
    ):
        status = status.after(event)
    assert (progress_fraction(status), status.eta_s) == (0.25, 15.0)
    assert "epoch 1.00/4" in status_line(status)


def test_a_network_starts_from_a_model_a_file_or_a_module_s_state(tmp_path):
    module = linear((4,), 3)
    state = module.state_dict()
    arrays = {name: tensor.double().numpy() for name, tensor in state.items()}
    np.savez(tmp_path / "model.npz", classes=np.arange(3.0), **arrays)
    facts = merge_summaries([DATA.read(b.index, None, 1)[1] for b in DATA.blocks()])
    section = {"name": "local_sgd", "model": "tests.networks:linear"}
    expected = {name: array.tolist() for name, array in arrays.items()}
    for value in (state, tmp_path, NetworkModel(arrays, section, facts)):
        assert record(warm_start=value)["algorithm"]["warm_start"] == expected
    with pytest.raises(ConfigError, match="warm_start: bias is not finite"):
        record(warm_start={"bias": [np.nan]})
    for strange in (["a"], module.bias.detach().bfloat16(), module.bias):
        with pytest.raises(ConfigError, match="warm_start: bias is not an array of numbers"):
            record(warm_start={"bias": strange})


def test_the_network_of_a_file_is_made_by_code_that_the_user_trusts(tmp_path):
    facts = merge_summaries([DATA.read(b.index, None, 1)[1] for b in DATA.blocks()])
    arrays = {"weight": np.eye(3, 4), "bias": np.zeros(3)}
    arrays |= {"input_mean": np.zeros(1), "input_std": np.ones(1)}
    path = tmp_path / "model.npz"

    def of_script(shape: Any) -> Any:
        return linear(shape, 3)

    for own, trust in ((linear, "tests.networks:linear"), (linear, linear), (of_script, of_script)):
        section = em.LocalSGD(model=own).section()
        NetworkModel(arrays, section, facts).save(path)
        model = em.load_model(path, trust=trust)
        assert model.predict(np.eye(2, 4)).tolist() == [0, 1]
    assert em.load_model(path).predict(np.eye(2, 4)).tolist() == [0, 1]  # it is in this process
