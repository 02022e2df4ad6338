"""Job files: what is read, what is refused, and the record that travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import elasticml as em
from elasticml.algorithms.registry import algorithm
from elasticml.errors import ConfigError, shown
from elasticml.job import Job
from elasticml.jobs import yaml_text
from elasticml.jobs.job_spec import JobSpec, apply_override, job_file_from_record
from elasticml.jobs.yaml_text import DEPTH_MAX, TEXT_BYTES_MAX, dump_yaml, load_yaml
from elasticml.protocol.job_record import job_record
from elasticml.specification.sections import Address, LocalWorkers, YarnContainers

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
SMALL = """
data: {format: synthetic_splice, rows: 100}
algorithm: {name: batch_gradient}
"""


def write(folder: Path, content: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def read(folder: Path, text: str, **sections: str) -> JobSpec:
    """Read a file: this text, of which some sections are replaced."""
    changes = {key: yaml.safe_load(value) for key, value in sections.items()}
    return JobSpec.from_file(write(folder, yaml.safe_load(text) | changes))


def record(folder: Path, text: str, members: int = 4, **sections: str) -> dict[str, Any]:
    read(folder, text, **sections)
    return Job.from_file(folder / "job.yaml").record("a", members)


def test_every_section_is_read_and_omitted_settings_have_their_defaults(tmp_path) -> None:
    file = read(tmp_path, WHOLE)
    assert file.name == "whole"
    assert file.data.spec()["path"] == str(tmp_path / "train.svm")
    assert file.test.spec()["path"] == str(tmp_path / "test.svm")
    assert file.test.spec()["zero_based"] is False
    assert file.algorithm == em.BatchGradient(
        loss="squared_hinge", l2=1e-3, optimizer="gd", step="constant"
    )
    assert file.cluster == LocalWorkers(workers=14, threads=1, memory="1 GiB")
    assert (file.absent, file.seed, file.threads, file.chunk_size) == ("ignore", 7, 1, 204800)
    assert file.cache == str(tmp_path / "blocks")
    assert file.stop == em.Stop(rounds=300, seconds=600)
    assert [fault.how for fault in file.faults] == ["terminate", "kill"]
    assert (file.collective.topology, file.collective.fan_out) == ("tree", 3)
    assert (file.members.start, file.members.min) == (14, 2)
    assert file.evaluate == em.settings.Evaluate(every=10)
    file = read(tmp_path, SMALL)
    assert (file.name, file.absent, file.seed, file.faults) == ("job", "auto", 0, ())
    assert (file.stop, file.cluster) == (em.Stop(rounds=1000), LocalWorkers())


def test_open_settings_are_resolved_in_the_record(tmp_path) -> None:
    known = ("absent", "holders", "placement")
    made = record(tmp_path, COCOA)
    assert [made[key] for key in (*known, "partitions")] == ["freeze", 2, "contiguous", 16]
    made = record(tmp_path, SMALL, algorithm="{name: cocoa}", seed="5")
    assert [made[key] for key in known] == ["reload", 2, "random"]
    assert made["algorithm"]["seed"] == 5
    assert [record(tmp_path, SMALL)[key] for key in known] == ["auto", 1, "contiguous"]
    made = record(
        tmp_path,
        SMALL,
        algorithm="{name: async_sgd, problem: linear, loss: squared}",
        collective="{topology: star}",
        stop="{seconds: 5}",
    )
    assert (made["algorithm"]["report_every"], made["collective"]["topology"]) == (1.0, "star")


@pytest.mark.parametrize("text", [WHOLE, COCOA])
def test_the_job_file_of_a_run_is_the_original_job(tmp_path, text) -> None:
    first = record(tmp_path, text, 14)
    again = write(tmp_path, job_file_from_record(job_record(first)))
    assert Job.from_file(again).record("a", 14) == first


def test_a_warm_start_is_sent_with_the_job_and_not_written_to_the_file(tmp_path) -> None:
    np.savez(tmp_path / "model.npz", coef=[[1.0, -2.0]], intercept=[0.5], classes=[0.0, 1.0])
    made = record(tmp_path, SMALL, algorithm="{name: cocoa}", warm_start="model.npz")
    assert made["algorithm"]["warm_start"] == {"coef": [1.0, -2.0], "intercept": [0.5]}
    written = job_file_from_record(job_record(made))
    assert "warm_start" not in written["algorithm"]
    assert written["warm_start"] == str(tmp_path / "model.npz")


DATA = em.from_arrays(np.eye(4), np.array([0.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"name": "batch_gradient", "loss": "logistic", "optimizer": "auto"}),
        ({"loss": "poisson", "engine": "tron"}, {"name": "batch_gradient", "optimizer": "tron"}),
        ({"loss": "quantile", "quantile": 0.9}, {"name": "cocoa", "quantile": 0.9}),
        ({"loss": "quantile", "smoothing": 0.1}, {"name": "batch_gradient", "smoothing": 0.1}),
        ({"loss": "absolute"}, {"name": "cocoa", "loss": "quantile", "quantile": 0.5}),
        ({"loss": "hinge", "class_weight": "balanced"}, {"name": "cocoa", "loss": "hinge"}),
        ({"engine": "cocoa", "intercept": False}, {"name": "cocoa", "loss": "logistic"}),
    ],
)
def test_the_engine_of_linear_follows_from_the_loss(tmp_path, given, expected) -> None:
    section = em.Job(em.Linear(**given), DATA).record("job", 1)["algorithm"]
    assert expected.items() <= section.items()
    assert section["scale"] == "auto"
    # The engine's settings, which the run directory has, make the same job.
    file = read(tmp_path, SMALL, algorithm=str({**given, "name": "linear"}))
    assert file.algorithm == em.Linear(**given).resolved()


# --- clusters, paths and test data ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("tcp://host:8786", Address(address="tcp://host:8786")),
        (
            "{kind: yarn, specification: spec.yaml, result: 'hdfs://nn:8020/runs/a'}",
            YarnContainers(specification="/jobs/spec.yaml", result="hdfs://nn:8020/runs/a"),
        ),
        (
            "{kind: address, scheduler_file: s.json, tls: {ca: ca.pem, cert: me.pem}}",
            Address(
                scheduler_file="/jobs/s.json", tls={"ca": "/jobs/ca.pem", "cert": "/jobs/me.pem"}
            ),
        ),
    ],
)
def test_paths_of_a_cluster_are_relative_to_the_file_and_urls_stay(section, expected) -> None:
    job = yaml.safe_load(SMALL) | {"cluster": yaml.safe_load(section)}
    assert JobSpec.from_sections(job, folder=Path("/jobs"), name="job").cluster == expected


@pytest.mark.parametrize("section", [{}, {"cluster": None}, {"cluster": {"workers": 2}}])
def test_a_file_without_a_kind_of_cluster_is_for_the_commands_own(tmp_path, section) -> None:
    path = write(tmp_path, yaml.safe_load(SMALL) | section)
    workers = (section.get("cluster") or {}).get("workers", 4)
    assert JobSpec.from_file(path, default_kind="yarn").cluster == YarnContainers(workers=workers)


def test_a_cluster_from_a_function_sets_the_numbers_of_members(tmp_path) -> None:
    file = read(tmp_path, SMALL, cluster="{kind: factory, call: 'm:C', workers: 2, workers_max: 6}")
    assert (file.members.start, file.members.max, file.checkpoint) == (2, 6, False)
    more = {"cluster": "{kind: factory, call: 'm:C'}", "members": "{start: 3, max: 3}"}
    file = read(tmp_path, SMALL, **more)
    assert (file.cluster.workers, file.members.start, file.members.max) == (3, 3, 3)


def test_paths_have_variables_of_the_environment(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    data = "{format: svmlight, path: $SOME_DATA/x.svm, cache: $SOME_DATA/blocks}"
    # A relative folder of the environment is relative to the working directory.
    for value, wanted in (("/some", "/some"), ("some/data", str(tmp_path / "some" / "data"))):
        monkeypatch.setenv("SOME_DATA", value)
        file = read(folder, SMALL, data=data)
        assert (file.data.spec()["path"], file.cache) == (f"{wanted}/x.svm", f"{wanted}/blocks")
    monkeypatch.delenv("SOME_DATA")
    with pytest.raises(ConfigError, match="environment variable SOME_DATA, which is not set"):
        read(folder, SMALL, data=data)
    caches = [
        read(tmp_path, SMALL, data=f"{{format: synthetic_splice, rows: 9, cache: {value}}}").cache
        for value in ("null", "true", "false")
    ]
    assert caches == [None, None, False]


def test_test_data_inherit_the_settings_of_training_data_of_the_same_format(tmp_path) -> None:
    splice = "{format: synthetic_splice, rows: 100, length: 60, test: %s}"
    test = read(tmp_path, SMALL, data=splice % "{rows: 30, seed: 5}").test.spec()
    assert (test["rows"], test["seed"], test["length"]) == (30, 5, 60)
    other = "{format: svmlight, path: test.svm}"
    test = read(tmp_path, SMALL, data=splice % other).test.spec()
    assert (test["format"], test["path"]) == ("svmlight", str(tmp_path / "test.svm"))


# --- texts that are no jobs, or attack the parser -------------------------------------------------

_FOLD = "[" + ", ".join(["*a{0}"] * 9) + "]"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{k + 1}: &a{k + 1} {_FOLD.format(k)}\n" for k in range(9)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{k + 1}: &a{k + 1} {{<<: {_FOLD.format(k)}}}\n" for k in range(9)
)
NO_ALIAS = "an alias (*) of another value, wanted the value itself"
REFUSED = {
    "an open list": ("data: [1, 2", ", line 1, column 12: not YAML"),
    "nothing": ("", "got nothing"),
    "a list": ("- a\n- b\n", "got list"),
    "aliases of aliases": (BOMB, NO_ALIAS),
    "merged aliases": (MERGES, NO_ALIAS),
    "long lists": ("a: [" + "1, " * 2000 + "1]\n", "more than 2000 values"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000 + "\n", f"nested more than {DEPTH_MAX} deep"),
    "deep mappings": ("{a: " * 5000 + "1" + "}" * 5000, f"nested more than {DEPTH_MAX} deep"),
    "6,000 digits": ("seed: " + "9" * 6000 + "\n", "a number of 6000 characters"),
    "6,000 hex digits": ("seed: 0x" + "f" * 6000 + "\n", "a number of 6002 characters"),
    "30 February": ("name: 2024-02-30\n", "'2024-02-30' cannot be read"),
    "25 o'clock": ("name: 2024-02-03 25:00:00\n", "cannot be read"),
    "two megabytes": ("# " + "x" * 2 * TEXT_BYTES_MAX, f"more than {TEXT_BYTES_MAX} bytes"),
    "a tag of Python": ("a: !!python/object/apply:os.system [id]\n", "could not determine"),
    "bad binary": ("a: !!binary 'a'\n", "failed to decode base64"),
    "a wide value": ("data: {format: [" + "y, " * 1000 + "y]}\n", "data.format: got"),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_text_that_is_no_job_is_one_short_line_that_says_where(
    tmp_path, monkeypatch, text, expected
) -> None:
    monkeypatch.setattr(yaml_text, "VALUES_MAX", 2000)
    settings = ["algorithm.name=batch_gradient"] if ":" in text and "[1, 2" not in text else []
    with pytest.raises(ConfigError) as caught:
        JobSpec.from_file(write(tmp_path, text), settings)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 1000


def test_a_missing_and_a_binary_file_are_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml': does not exist; name a YAML file"):
        JobSpec.from_file(tmp_path / "nothing.yaml")
    (tmp_path / "job.yaml").write_bytes(b"PAR1\xff\x00")
    with pytest.raises(ConfigError, match=r"job\.yaml': byte 4 is not UTF-8; name a YAML"):
        JobSpec.from_file(tmp_path / "job.yaml")


def test_what_is_not_an_attack_is_read_and_written_as_yaml_has_it() -> None:
    value = load_yaml("a: {k: [1, 2.5, yes, ~, 0x10, 2024-02-29]}\n", "text")
    assert value["a"]["k"][:5] == [1, 2.5, True, None, 16]
    shared = {"rows": [1, 2]}
    twice = {"train": shared, "test": shared}
    assert load_yaml(dump_yaml(twice), "text") == twice


def test_values_in_messages_are_cut_in_bounded_time() -> None:
    nested: list = []
    for _ in range(60):
        nested = [nested, nested]  # 2^60 values, of which repr would write each
    assert len(shown(nested)) <= 60
    assert len(shown({"k" * 1000: "v" * 10**7})) <= 60
    assert shown(16**6000) == "<an integer of 24001 bits>"


@pytest.mark.parametrize("name", ["..:x", ":x", "a..b:x", "json:", "json:x y"])
def test_an_import_path_that_is_none_is_one_line(name) -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm.name: got .*cannot be imported \(wanted module"
    ):
        algorithm(name)


# --- settings of the command line -----------------------------------------------------------------


def test_settings_from_the_command_line_change_the_file(tmp_path) -> None:
    settings = ["stop.rounds=5", "algorithm.l2=1e-2", "faults.0.lose=2", "evaluate={every: 3}"]
    path = write(tmp_path, SMALL + "faults: [{round: 1, lose: 1}]")
    file = JobSpec.from_file(path, settings)
    assert (file.stop.rounds, file.algorithm.l2, file.faults[0].lose) == (5, 1e-2, 2)
    assert file.evaluate == em.settings.Evaluate(every=3)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("stop.rounds", "wanted section.key=value"),
        ("=3", "wanted section.key=value"),
        ("faults.4.lose=1", "wanted a number below 1, got '4"),
        ("name.first=x", "first"),
        ("seed.a.b=x", "which has no keys"),
        ("seed=[1", "the value is not YAML"),
        ("seed=" + "9" * 6000, "the value is not YAML"),
    ],
)
def test_settings_of_unknown_paths_are_refused(setting, text) -> None:
    raw = {"name": "n", "seed": 0, "faults": [{"round": 1, "lose": 1}]}
    with pytest.raises(ConfigError) as caught:
        apply_override(raw, setting)
    assert text in caught.value.message
    assert len(caught.value.message) < 500
