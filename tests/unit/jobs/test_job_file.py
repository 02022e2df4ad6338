"""Job files: what is read, what is refused, and the error messages."""

import numpy as np
import pytest
import yaml

from elasticml.algorithms.registry import algorithm
from elasticml.errors import ConfigError
from elasticml.job import Job
from elasticml.jobs.job_file import apply_override
from elasticml.jobs.job_spec import JobSpec, job_file_from_record
from elasticml.protocol.job_record import job_record
from elasticml.specification.algorithms import BatchGradient, CoCoA
from elasticml.specification.sections import Address, Evaluate, LocalWorkers, Stop, YarnContainers

WHOLE = """
name: whole
data: {format: svmlight, path: train.svm, zero_based: false, test: test.svm, chunk_size: 200 KiB,
  cache: blocks}
algorithm: {name: batch_gradient, loss: squared_hinge, l2: 1e-3, optimizer: gd, step: constant}
cluster: {kind: local, workers: 14, threads: 1, memory: 1 GiB}
absent: ignore
policies: []
stop: {rounds: 300, seconds: 600}
seed: 7
faults: [{round: 100, lose: 7, how: terminate, grace: 2}, {round: 200, return: 7}]
collective: {topology: tree, fan_out: 3}
members: {start: 14, min: 2}
evaluate: {every: 10}
threads: 1
"""
SMALL = {
    "data": {"format": "synthetic_splice", "rows": 100},
    "algorithm": {"name": "batch_gradient"},
}


def write(folder, content):
    path = folder / "job.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def message(folder, content, settings=()):
    with pytest.raises(ConfigError) as caught:
        JobSpec.from_file(write(folder, content), settings)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_paths_of_a_yarn_cluster_are_relative_to_the_file_and_urls_stay(tmp_path):
    cluster = {"kind": "yarn", "specification": "spec.yaml", "result": "hdfs://nn:8020/runs/a"}
    file = JobSpec.from_file(write(tmp_path, {**SMALL, "cluster": cluster}))
    assert file.cluster == YarnContainers(
        specification=str(tmp_path / "spec.yaml"), result="hdfs://nn:8020/runs/a"
    )


@pytest.mark.parametrize("section", [{}, {"cluster": None}, {"cluster": {"workers": 2}}])
def test_a_file_without_a_kind_of_cluster_is_for_the_commands_own(tmp_path, section):
    file = JobSpec.from_file(write(tmp_path, {**SMALL, **section}), default_kind="yarn")
    workers = (section.get("cluster") or {}).get("workers", 4)
    assert file.cluster == YarnContainers(workers=workers)


def test_every_section_is_read(tmp_path):
    file = JobSpec.from_file(write(tmp_path, WHOLE))
    assert file.name == "whole"
    assert file.data.spec()["path"] == str(tmp_path / "train.svm")
    assert file.test.spec()["path"] == str(tmp_path / "test.svm")
    assert file.test.spec()["zero_based"] is False
    assert file.algorithm == BatchGradient(
        loss="squared_hinge", l2=1e-3, optimizer="gd", step="constant"
    )
    assert file.cluster == LocalWorkers(workers=14, threads=1, memory="1 GiB")
    assert (file.absent, file.seed, file.threads, file.chunk_size) == ("ignore", 7, 1, 204800)
    assert file.cache == str(tmp_path / "blocks")
    assert file.stop == Stop(rounds=300, seconds=600)
    assert [fault.how for fault in file.faults] == ["terminate", "kill"]
    assert (file.collective.topology, file.collective.fan_out) == ("tree", 3)
    assert (file.members.start, file.members.min) == (14, 2)
    assert file.evaluate == Evaluate(every=10)


def test_omitted_settings_have_their_defaults(tmp_path):
    file = JobSpec.from_file(write(tmp_path, SMALL))
    assert (file.name, file.absent, file.seed, file.faults) == ("job", "auto", 0, ())
    assert file.stop == Stop(rounds=1000)
    assert file.cluster == LocalWorkers()


COCOA = """
data: {format: svmlight, path: train.svm}
algorithm: {name: cocoa, loss: squared_hinge, l2: 1e-2, local_epochs: 0.5, class_weight: {1: 3},
            scale: maxabs}
policies: [rebalance, {name: knee, factor: 2}, {redeal: none}]
absent: freeze
stop: {rounds: 50, gap: 1e-6}
partitions: 16
holders: 2
placement: contiguous
"""


def test_cocoa_and_its_policies_are_read(tmp_path):
    file = JobSpec.from_file(write(tmp_path, COCOA))
    assert file.algorithm == CoCoA(
        loss="squared_hinge", l2=1e-2, local_epochs=0.5, class_weight={1: 3}, scale="maxabs"
    )
    assert file.stop.gap == 1e-6
    assert [entry["name"] for entry in file.policies] == ["rebalance", "knee", "redeal"]
    record = Job.from_file(write(tmp_path, COCOA)).record("a", 4)
    assert (record["absent"], record["holders"], record["placement"]) == ("freeze", 2, "contiguous")
    assert (record["partitions"], record["algorithm"]["seed"]) == (16, 0)


def test_open_settings_are_resolved_in_the_record(tmp_path):
    job = {**SMALL, "algorithm": {"name": "cocoa"}, "seed": 5}
    record = Job.from_file(write(tmp_path, job)).record("a", 4)
    assert (record["absent"], record["holders"], record["placement"]) == ("reload", 2, "random")
    assert record["algorithm"]["seed"] == 5
    record = Job.from_file(write(tmp_path, SMALL)).record("a", 4)
    assert (record["absent"], record["holders"], record["placement"]) == ("auto", 1, "contiguous")


def test_a_warm_start_is_sent_with_the_job_and_not_written_to_the_file(tmp_path):
    np.savez(tmp_path / "model.npz", coef=[[1.0, -2.0]], intercept=[0.5], classes=[0.0, 1.0])
    job = {**SMALL, "algorithm": {"name": "cocoa"}, "warm_start": "model.npz"}
    record = Job.from_file(write(tmp_path, job)).record("a", 2)
    assert record["algorithm"]["warm_start"] == {"coef": [1.0, -2.0], "intercept": [0.5]}
    written = job_file_from_record(job_record(record))
    assert "warm_start" not in written["algorithm"]
    assert written["warm_start"] == str(tmp_path / "model.npz")


@pytest.mark.parametrize("content", [WHOLE, COCOA])
def test_the_job_file_of_a_run_is_the_original_job(tmp_path, content):
    first = Job.from_file(write(tmp_path, content)).record("a", 14)
    again = write(tmp_path, job_file_from_record(job_record(first)))
    assert Job.from_file(again).record("a", 14) == first


@pytest.mark.parametrize("name", ["..:x", ":x", "a..b:x", "json:", "json:x y"])
def test_an_import_path_that_is_none_is_one_line(name):
    with pytest.raises(
        ConfigError, match=r"algorithm.name is .*cannot be imported \(wanted module"
    ):
        algorithm(name)


def test_faults_need_workers_of_our_own(tmp_path):
    job = {**SMALL, "cluster": "tcp://host:8786", "faults": [{"round": 1, "lose": 1}]}
    assert "use cluster.kind: local" in message(tmp_path, job)


def test_an_address_alone_is_a_cluster(tmp_path):
    file = JobSpec.from_file(write(tmp_path, {**SMALL, "cluster": "tcp://host:8786"}))
    assert file.cluster == Address(address="tcp://host:8786")


def test_a_scheduler_file_and_certificates_are_paths_beside_the_job_file(tmp_path):
    tls = {"ca": "ca.pem", "cert": "me.pem"}
    section = {"kind": "address", "scheduler_file": "s.json", "tls": tls}
    cluster = JobSpec.from_file(write(tmp_path, {**SMALL, "cluster": section})).cluster
    assert cluster == Address(
        scheduler_file=str(tmp_path / "s.json"),
        tls={"ca": str(tmp_path / "ca.pem"), "cert": str(tmp_path / "me.pem")},
    )


def test_a_cluster_from_a_function_sets_the_numbers_of_members(tmp_path):
    section = {"kind": "factory", "call": "m:C", "workers": 2, "workers_max": 6}
    file = JobSpec.from_file(write(tmp_path, {**SMALL, "cluster": section}))
    assert (file.members.start, file.members.max, file.checkpoint) == (2, 6, False)
    members = {"start": 3, "max": 3}
    section = {"kind": "factory", "call": "m:C"}
    file = JobSpec.from_file(write(tmp_path, {**SMALL, "cluster": section, "members": members}))
    assert (file.cluster.workers, file.members.start, file.members.max) == (3, 3, 3)


def test_test_data_inherit_the_settings_of_the_training_data(tmp_path):
    data = {
        "format": "synthetic_splice",
        "rows": 100,
        "length": 60,
        "test": {"rows": 30, "seed": 5},
    }
    test = JobSpec.from_file(write(tmp_path, {**SMALL, "data": data})).test.spec()
    assert (test["rows"], test["seed"], test["length"]) == (30, 5, 60)


def test_test_data_of_another_format_inherit_nothing(tmp_path):
    data = {**SMALL["data"], "test": {"format": "svmlight", "path": "test.svm"}}
    test = JobSpec.from_file(write(tmp_path, {**SMALL, "data": data})).test.spec()
    assert (test["format"], test["path"]) == ("svmlight", str(tmp_path / "test.svm"))


def test_paths_expand_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_DATA", "/some")
    job = {**SMALL, "data": {"format": "svmlight", "path": "$SOME_DATA/x.svm"}}
    assert JobSpec.from_file(write(tmp_path, job)).data.spec()["path"] == "/some/x.svm"


def test_a_relative_folder_of_the_environment_is_relative_to_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SOME_DATA", "some/data")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "jobs"
    folder.mkdir()
    job = {**SMALL, "data": {"format": "svmlight", "path": "$SOME_DATA/x.svm"}}
    path = JobSpec.from_file(write(folder, job)).data.spec()["path"]
    assert path == str(tmp_path / "some" / "data" / "x.svm")


def test_an_unset_variable_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SOME_DATA", raising=False)
    job = {**SMALL, "data": {"format": "svmlight", "path": "${SOME_DATA}/x.svm"}}
    assert "environment variable SOME_DATA, which is not set" in message(tmp_path, job)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml': does not exist; name a YAML file"):
        JobSpec.from_file(tmp_path / "nothing.yaml")


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"PAR1\xff\x00")
    with pytest.raises(ConfigError, match=r"job\.yaml': byte 4 is not UTF-8; name a YAML"):
        JobSpec.from_file(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: [1, 2", ", line 1, column 12: not YAML"),
        ("", "got nothing"),
        ("- a\n- b\n", "got list"),
    ],
)
def test_a_file_without_a_job_is_refused(tmp_path, text, said):
    assert said in message(tmp_path, text)


def test_settings_from_the_command_line_change_the_file(tmp_path):
    settings = ["stop.rounds=5", "algorithm.l2=1e-2", "faults.0.lose=2", "cluster.workers=6"]
    job = {**SMALL, "faults": [{"round": 1, "lose": 1}]}
    file = JobSpec.from_file(write(tmp_path, job), settings)
    assert (file.stop.rounds, file.algorithm.l2, file.faults[0].lose) == (5, 1e-2, 2)
    assert file.cluster == LocalWorkers(workers=6)


def test_a_setting_may_be_any_yaml():
    raw = {"faults": [{"round": 1, "lose": 1}]}
    apply_override(raw, "faults=[]")
    apply_override(raw, "evaluate={every: 3}")
    assert raw == {"faults": [], "evaluate": {"every": 3}}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("stop.rounds", "wanted section.key=value"),
        ("=3", "wanted section.key=value"),
        ("faults.4.lose=1", "wanted a number below 1, got '4'"),
        ("name.first=x", "'first'"),
        ("seed.a.b=x", "which has no keys"),
        ("seed=[1", "the value is not YAML"),
    ],
)
def test_settings_of_unknown_paths_are_refused(setting, text):
    raw = {"name": "n", "seed": 0, "faults": [{"round": 1, "lose": 1}]}
    with pytest.raises(ConfigError) as caught:
        apply_override(raw, setting)
    assert text.strip("'") in caught.value.message
