"""Settings of a job: the schema, the job file and Python agree; a wrong one is one line."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

import elasticml as em
from elasticml.cli.main import elasticml
from elasticml.data.source import FILE_FORMATS, format_named
from elasticml.data.synthetic.splice_sites import SpliceSource
from elasticml.errors import ConfigError
from elasticml.jobs.job_schema import job_schema
from elasticml.jobs.job_spec import OF_DATA, SECTIONS, JobSpec
from elasticml.policies.registry import POLICIES
from elasticml.specification.algorithms import ALGORITHMS, record_section, settings_from_section
from elasticml.specification.sections import CLUSTERS, default_stop

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MINIMAL = {
    "data": {"format": "synthetic_splice", "rows": 9},
    "algorithm": {"name": "batch_gradient"},
}


def parsed(changes: dict[str, Any]) -> JobSpec:
    return JobSpec.from_sections(MINIMAL | changes, folder=Path(), name="job")


def message(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(changes)
    assert "\n" not in caught.value.message
    return caught.value.message


def message_in_python(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        JobSpec(**{"algorithm": MINIMAL["algorithm"], "data": SpliceSource(rows=9)} | changes)
    return caught.value.message


# --- a contract of errors, made from the schema ---------------------------------------------------

#: What a section needs besides the setting in question.
NEEDED = {"path": "a", "label": "y", "rows": 9, "shape": "rcv1", "round": 1, "call": "m:C"}
OWN_NAMES = {
    **{name: name.lower() for name in ("Collective", "Evaluate", "Members", "Stop", "Validate")},
    **{"Checkpoint": "checkpoint", "Fault": "faults", "WorldOptions": "simulate"},
}
KINDS = ("name", "kind", "format")
#: Beside the kind: what is no setting, and settings of the data that their readers do not have.
NOT_THE_SECTIONS = {*KINDS, "off", "test", "chunk_size", "cache", "scale"}
WORDS = ("wanted", "there is", "did you mean", "is missing", "is not a setting")
#: By bound: a step beyond it, and what is said.
BOUNDS = {
    "minimum": (-1, "at least"),
    "exclusiveMinimum": (0, "more than"),
    "maximum": (1, "at most"),
    "exclusiveMaximum": (0, "less than"),
}


def settings_with_errors() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each setting of the schema: its section, a job's changes with a wrong one, what is said."""
    for name, definition in SCHEMA["$defs"].items():
        section = OWN_NAMES.get(name, name.partition("_")[0])
        section = "policies" if section == "policy" else section
        if section not in SCHEMA["properties"]:
            continue
        properties = definition["properties"]
        good = {key: NEEDED.get(key) for key in definition.get("required", ())}
        good |= {
            key: properties[key]["const"] for key in KINDS if "const" in properties.get(key, ())
        }

        def job(values: dict[str, Any], section: str = section) -> dict[str, Any]:
            return {section: [values] if section in ("policies", "faults") else values}

        own = {key: schema for key, schema in properties.items() if key not in NOT_THE_SECTIONS}
        for key, schema in own.items():
            for value, wanted in wrong_values(schema):
                yield name, job({**good, key: value}), f"{key}{wanted}"
            if key in definition.get("required", ()):
                left = {k: v for k, v in good.items() if k != key}
                yield name, job(left), f"{key} is missing"
            misspelt = job({**good, f"{key}x": 1})
            yield name, misspelt, f"{key}x is not a setting; did you mean '{key}'?"
    for key, schema in SCHEMA["properties"].items():
        yield "", {f"{key}x": 1}, f"{key}x is not a setting; did you mean '{key}'?"
        for value, wanted in wrong_values(schema) if "$ref" not in str(schema) else ():
            yield "", {key: value}, f"{key}{wanted}"


def wrong_values(schema: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Values that a setting cannot have: another type, another word, beyond the bounds.

    With what is said of each after the setting; of a value that may be of several types, anything.
    """
    yield "no such word", ""
    if "$ref" not in str(schema):
        yield {"strange": [1]}, ""
    parts = [part for part in schema.get("anyOf", [schema]) if part != {"type": "null"}]
    for part in parts:
        for bound in part.keys() & BOUNDS.keys():
            step, words = BOUNDS[bound]
            value = part[bound] + step
            said = f": got {value}, wanted {words} {part[bound]:g}"
            yield value, said if len(parts) == 1 else ""


CASES = list(settings_with_errors())


@pytest.mark.parametrize("name", dict.fromkeys(case[0] for case in CASES))
def test_what_the_schema_refuses_is_one_line(name) -> None:
    refused = [
        (changes, text)
        for section, changes, text in CASES
        if section == name and not VALIDATOR.is_valid(MINIMAL | changes)
    ]
    assert refused
    for changes, text in refused:
        said = message(changes)
        assert said.startswith(next(iter(changes)))
        assert text in said
        assert any(word in said for word in WORDS)
        if changes.keys().isdisjoint(("data", "warm_start")):
            # Of the list of all settings, some are in a job file's section data.
            again = message_in_python(changes).partition(" (there is name")[0]
            assert again == said.partition(" (there is name")[0]


# --- settings that do not fit together ------------------------------------------------------------

#: Sections of a job file, and a part of what is said.
WRONG = [
    ("data: null", "data is missing; such as data: {format: svmlight"),
    ("algorithm: null", "algorithm is missing; such as algorithm: {name: batch_gradient}"),
    ("data: {format: arrays}", "data.format: data in memory have no file; write them to one and"),
    ("data: {format: dask_table}", "from Python with em.from_dask(frame, label=...)"),
    ("data: {format: synthetic_splice, rows: 9, test: {format: frame}}", "data.test.format: data "),
    ("data: {format: synthetic_splice, rows: 9, ngrams: [1, 5]}", "longest <= 4"),
    ("data: {format: synthetic_splice, rows: 9, length: 8, ngrams: [0, 3]}", "from 1 to 4"),
    ("data: {format: images, path: a, size: [32]}", "data.size[1] is missing"),
    ("data: {format: csv, path: a, label: 1.5}", "wanted a whole number or text"),
    ("data: {path: a.csv, label: y, chunk_size: a lot}", "data.chunk_size: got 'a lot', wanted 'a"),
    ("data: {path: a, format: csv, label: y, cache: 3}", "data.cache: got 3, wanted true, false o"),
    ("data: {path: a, format: csv, label: y, cache: 'hdfs:///a'}", "data.cache: got 'hdfs:///a'"),
    ("validate: {data: {format: dask}}", "validate.data.format: data in memory"),
    ("algorithm: {name: batch_gradient, l2: .nan}", "algorithm.l2: got nan, wanted a finite num"),
    ("algorithm: {name: batch_gradient, class_weight: {1: 0}}", "class_weight: every weight must"),
    ("algorithm: {name: batch_gradient, class_weight: balanced, loss: squared}", "squared has no"),
    ("algorithm: {name: batch_gradient, step: decay}", "decay goes with optimizer: gd, not lbfgs"),
    ("algorithm: {name: cocoa, mode: paper, aggregation: line_search}", "adds with a fixed gamma"),
    ("algorithm: {name: cocoa, class_weight: balancd}", "wanted a mapping or balanced; did you me"),
    ("algorithm: {name: cocoa, groups: 65}", "groups: got 65, wanted at most 64 or auto"),
    ("algorithm: {name: cocoa, sigma: 0, gap_every: 0, l2: 0}", "wanted more than 0 (and 4 more)"),
    ("algorithm: {name: linear, l1: 0.1}", "got l1, wanted an L2 penalty alone; use em.Lasso"),
    ("algorithm: {name: linear, loss: hinge, engine: tron}", "engine: tron needs a smooth loss, "),
    ("algorithm: {name: linear, loss: quantile, engine: newton}", "has a kink; give smoothing, or"),
    ("algorithm: {name: linear, engine: cocoa}", "another problem; set intercept=False, or leave"),
    ("algorithm: {name: linear, loss: gamma, engine: cocoa}", "cocoa has no loss gamma; leave"),
    ("algorithm: {name: linear, loss: squared, delta: 2.0}", "belongs to loss: huber, not squared"),
    ("algorithm: {name: linear, loss: hinge, l2: 0.0}", "l2: got 0.0, wanted more than 0"),
    ("algorithm: {name: linear}, absent: freeze", "cocoa"),
    (
        "algorithm: {name: linear, l2: 0}, policies: [knee]",
        "use algorithm batch_gradient with l2 ab",
    ),
    ("algorithm: {name: cocoa}, absent: taylor", "absent: got 'taylor', which"),
    ("algorithm: {name: cocoa}, absent: ignore", "freeze"),
    ("algorithm: {name: async_sgd, k: 3}, absent: taylor", "which algorithm async_sgd cannot foll"),
    ("algorithm: {name: async_sgd, k: 3}, stop: {gap: 0.1}", "async_sgd certifies no duality gap"),
    ("algorithm: {name: async_sgd, k: 3}, policies: [rebalance]", "rebalance relieves members tha"),
    ("algorithm: {name: async_sgd, k: 3}, policies: [knee]", "knee decides by the duality gap"),
    ("algorithm: {name: async_sgd, k: 3, batch: often}", "batch: got 'often'"),
    ("algorithm: {name: async_sgd}", "k: is missing, wanted a number of clusters"),
    ("algorithm: {name: async_sgd, k: 3, rate: 0.5}", "wanted none: a centre's step is 1/mass"),
    ("algorithm: {name: async_sgd, k: 3, rate: 2.0, mode: paper}", "at most 1 for K-Means"),
    ("algorithm: {name: async_sgd, problem: linear, k: 3}", "it belongs to problem: kmeans"),
    ("algorithm: {name: async_sgd, problem: linear, mode: batch}", "wanted problem: kmeans"),
    ("algorithm: {name: async_sgd, k: 3, mode: batch, batch: 9}", "wanted none: mode: batch sends"),
    ("algorithm: {name: async_sgd, k: 3, mode: batch, passes: 1.5}", "1.5, wanted a whole"),
    ("algorithm: {name: async_sgd, k: 3, mode: batch, slots: 2}", "slots: got 2, wanted "),
    ("algorithm: {name: async_sgd, k: 3, batch: inf, sends: 2}", "sends: got 2, wanted "),
    ("algorithm: {name: primal_cocoa, loss: hinge}", "got 'hinge' (there is squared, logistic, "),
    ("algorithm: {name: primal_cocoa, l1: 0.0}", "l1: got 0, wanted a penalty"),
    (
        "algorithm: {name: local_sgd, loss: 'my loss:f'}",
        "got 'my loss:f', wanted cross_entropy",
    ),
    ("algorithm: {name: local_sgd, model_options: [3]}", "model_options: got [3], wanted a map"),
    ("algorithm: {name: local_sgd, shape: 28x28}", "algorithm.shape: got '28x28', wanted a list"),
    ("algorithm: {name: local_sgd, normalize: maxabs}", "wanted auto or none or a list"),
    ("algorithm: {name: local_sgd, normalize: [0, 0]}", "normalize[1]: got 0, wanted more than 0"),
    ("algorithm: {name: local_sgd, model: resnet}", "model: got 'resnet', wanted cnn"),
    ("algorithm: {name: local_sgd, rate_rule: sqr}", "did you mean 'sqrt'"),
    ("stop: {epochs: 3}", "stop.epochs: local_sgd counts epochs, batch_gradient does not"),
    ("absent: freeze", "absent: got 'freeze', which algorithm batch_gradient cannot"),
    (
        "algorithm: {name: linear, l2: 0}, stop: {gap: 0.1}",
        "algorithm batch_gradient with l2 above",
    ),
    (
        "algorithm: {name: batch_gradient, loss: poisson, l2: 0}, stop: {gap: 0.1}",
        "certifies no duality gap; use algorithm batch_gradient with l2 above 0, or stop.objective",
    ),
    (
        "algorithm: {name: async_sgd, problem: linear, loss: hinge, l2: 0.1}, stop: {gap: 0.1}",
        "certifies no duality gap; use algorithm cocoa, or stop.objective",
    ),
    (
        "algorithm: {name: batch_gradient, mode: paper, intercept: true}, stop: {gap: 0.1}",
        "stop.gap: batch_gradient with loss logistic and l2 0.0001 certifies no duality gap; use "
        "algorithm batch_gradient without an intercept, or stop.objective",
    ),
    ("stop: 14", "stop: got 14, wanted a mapping with keys such as rounds, seconds"),
    ("stop: {rounds: 10000000000000000000}", "stop.rounds: got 10000000000000000000, wanted at mo"),
    ("members: {start: 5}, cluster: {workers: 4}", "got 5, wanted at most cluster.workers, 4"),
    ("members: {min: 5}", "members.min: got 5, wanted at most 4, the most workers"),
    ("members: {start: 2, min: 3}", "members.min: got 3, wanted at most members"),
    ("warm_start: 3", "warm_start: got 3, wanted the path or URL of a model.npz"),
    ("cluster: {slowdown: {4: 2.0}}", "cluster.slowdown: got worker 4, wanted numbers"),
    ("cluster: {memory: 2 gigs}", "cluster.memory: got '2 gigs': size '2 gigs' is not"),
    ("cluster: {memory: 1 MiB}", "cluster.memory: got '1 MiB', wanted at least 64 MiB"),
    ("cluster: {kind: yarn, workers: 4, workers_max: 3}", "got 3, wanted at least workers, 4"),
    ("cluster: {kind: yarn, workers: 4, workers_min: 5}", "got 5, wanted at most workers, 4"),
    ("cluster: {kind: yarn, keytab: me.keytab}", "cluster.principal: missing, and keytab is given"),
    ("cluster: {kind: yarn, memory: 1 MiB}", "wanted at least 64 MiB; give a size such as 2 GiB"),
    ("cluster: {kind: yarn, memory: auto}", "cluster.memory: got 'auto': size 'auto' is not"),
    ("cluster: {kind: yarn, pack: true, environment: 'venv:///e'}", "environment names venv:///e;"),
    ("cluster: {kind: yarn, pack: true, specification: s.yaml}", "the specification already sets"),
    ("cluster: {kind: yarn, scheduler: {x: 1}}", "scheduler.x is not a setting (there is memory, "),
    ("cluster: {kind: yarn}, faults: [{round: 1, lose: 1}]", "elasticml cannot stop processes the"),
    ("cluster: 'tcp://h:1', faults: [{round: 1, lose: 1}]", "use cluster.kind: local"),
    ("cluster: {kind: address}", "cluster.address: is missing, wanted tcp://host:port, or schedul"),
    ("cluster: {kind: address, address: 'tcp://h:1', scheduler_file: s}", "address is given, too"),
    ("cluster: {kind: address, address: 'tls://h:1', tls: {ca: c}}", "tls.cert is missing: this c"),
    ("cluster: {kind: factory}", "cluster.call is missing: a function that returns a cluster, suc"),
    ("cluster: {kind: factory, call: m.C}", "cluster.call: got 'm.C', wanted module:function"),
    ("cluster: {kind: factory, call: 'm:C', workers: 3, workers_max: 2}", "at least workers, 3"),
    ("cluster: {kind: factory, call: 'm:C'}, members: {max: 9}", "got 9, wanted at most 4, the mo"),
    ("policies: 1.5", "policies: got 1.5, wanted a list such as"),
    ("algorithm: {name: cocoa}, policies: [{name: knee, gap: lgo}]", "did you mean 'log'? (there"),
    ("algorithm: {name: cocoa}, policies: [{name: knee, factor: 0.5}]", "got 0.5, wanted a whole"),
    ("policies: [{name: kne}]", "there is no policy 'kne'; did you mean 'knee'"),
    ("policies: [rebalance, rebalance]", "policies[1]: 'rebalance' is listed twice"),
    (
        "algorithm: {name: batch_gradient, l2: 0}, policies: [knee]",
        "policies[0]: knee decides by the duality gap, which batch_grad",
    ),
    (
        "algorithm: {name: async_sgd, problem: linear}, policies: [tune_local_work]",
        "use algorithm cocoa, or leave it out",
    ),
    (
        "algorithm: {name: batch_gradient, mode: paper, intercept: true, l2: 0}, stop: {gap: 0.1}",
        "use algorithm batch_gradient with l2 above 0 without an intercept, or stop.objective",
    ),
    (
        "algorithm: {name: async_sgd, k: 3}, policies: [tune_local_work]",
        "policies[0]: tune_local_work decides by the duality",
    ),
    (
        "policies: [inner_iterations]",
        "policies[0]: inner_iterations sets local_epochs, which batch_gradient does not have; use "
        "algorithm cocoa, or leave it out",
    ),
    ("policies: ['..:x']", "policies[0]: got '..:x', which cannot be imported (wanted module:"),
    ("faults: {round: 1, lose: 1}", "faults: got {'lose': 1, 'round': 1}, wanted a list"),
    ("faults: [{round: 1, lose: 5}]", "faults: round 1: lose: 5, but 4 of 4 members"),
    ("faults: [{round: 1, return: 1}]", "faults: round 1: return: 1, but 0 of 4"),
    ("faults: [{round: 1}]", "exactly one of lose"),
    ("faults: [{round: 1, lose: [1, 1]}]", "wanted different slots"),
    ("faults: [{round: 1, lose: 2}, {round: 2, lose: 3}]", "round 2: lose: 3, but 2 of 4 members"),
    ("faults: [{round: 1, lose: [1]}, {round: 2, lose: [1]}]", "slot 1 holds no member"),
    ("faults: [{round: 1, lose: 1}, {round: 2, lose: 1, hwo: kill}]", "faults[1].hwo is not a set"),
]


@pytest.mark.parametrize(("sections", "text"), WRONG)
def test_settings_that_do_not_fit_together_are_one_line(sections, text) -> None:
    assert text in message(yaml.safe_load(f"{{{sections}}}"))


@pytest.mark.parametrize("lost", [[4], [3, 1], [[0, 3], 1]])
def test_possible_faults_are_sorted_by_round(lost) -> None:
    losses = [{"round": 2 + k, "lose": some} for k, some in enumerate(lost)]
    planned = parsed({"faults": [{"round": 9, "return": 1}, *losses]}).faults
    assert [(fault.round, fault.lose) for fault in planned] == [
        *((loss["round"], loss["lose"]) for loss in losses),
        (9, None),
    ]


def test_settings_of_python_have_the_same_messages_and_are_pickled_with_them() -> None:
    with pytest.raises(ConfigError, match=r"^BatchGradient\.tolerence is not a setting; did you "):
        em.BatchGradient(tolerence=1e-3)
    with pytest.raises(ConfigError) as caught:
        parsed({"cluster": {"workers": 0}})
    assert pickle.loads(pickle.dumps(caught.value)).message.startswith("cluster.workers: ")
    with pytest.raises(ValueError, match="frozen"):
        em.BatchGradient().l2 = 1.0
    # YAML 1.1 reads 1e-4 as a string.
    assert parsed({"algorithm": {"name": "cocoa", "l2": "1e-4"}}).algorithm.l2 == 1e-4


# --- the schema -----------------------------------------------------------------------------------


def as_json(job: Any) -> Any:
    """Return a job file as an editor sees it: keys are text, and 1e-4 is a number (YAML 1.2)."""
    if isinstance(job, dict):
        return {str(key): as_json(item) for key, item in job.items()}
    if isinstance(job, list):
        return [as_json(item) for item in job]
    is_number = isinstance(job, str) and re.fullmatch(r"\d+(\.\d*)?e-?\d+", job)
    return float(job) if is_number else job


def job_files() -> dict[str, Any]:
    """Return every job file of the documentation and the examples, by its place."""
    texts = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)):
            texts[f"{page.name}-{number}"] = text
    jobs = {place: yaml.safe_load(text) for place, text in texts.items()}
    # A page may show YAML of another program, such as Prometheus's list of rules.
    return {
        place: job
        for place, job in jobs.items()
        if isinstance(job, dict) and job.keys() & set(SECTIONS)
    }


JOB_FILES = job_files()


def test_the_schema_has_each_section_and_kind_and_describes_each_key() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")
    assert sorted(SCHEMA["properties"]) == sorted(SECTIONS)
    branches = {
        *(f"algorithm_{name}" for name in ALGORITHMS),
        *(f"data_{name}" for name in FILE_FORMATS),
        *(f"policy_{name}" for name in POLICIES),
        *(f"cluster_{kind}" for kind in CLUSTERS),
    }
    assert branches <= SCHEMA["$defs"].keys()
    bare = [
        f"{name}.{key}"
        for name, definition in SCHEMA["$defs"].items()
        for key, schema in definition.get("properties", {}).items()
        if "description" not in schema and "const" not in schema and key != "kind"
    ]
    assert bare == []


@pytest.mark.parametrize("place", JOB_FILES)
def test_the_job_files_of_documentation_and_examples_are_valid(place) -> None:
    """Some pages show sections without data or algorithm; those sections are checked."""
    job = as_json(MINIMAL | JOB_FILES[place])
    assert [error.message for error in VALIDATOR.iter_errors(job)] == []


GOOD = [
    "",
    "cluster: 'tcp://host:8786', checkpoint: false, evaluate: false, stop: null",
    "cluster: {workers: 3, slowdown: {0: 2.0}}, faults: [{round: 3, lose: [0, 1]}]",
    "policies: [rebalance, {redeal: none}, {name: straggler}, reload]",
    "algorithm: {name: 'my.module:own', depth: 3}",
    "algorithm: {name: linear, loss: hinge}, absent: freeze, stop: {gap: 0.001}, policies: [knee]",
    "simulate: {bandwidth: 1 GB, preemption: {rate: 0.1, away: 5}, slow: {3: 4}}",
    "simulate: {trace: [{at: 1, lose: 2}, {at: 2, grant: 1}]}",
    "data: {format: csv, path: a.csv, label: -1, test: b.csv, chunk_size: auto}",
    "faults: [{round: 2, lose: 1}, {round: 9, return: 1}], holders: 2",
]


@pytest.mark.parametrize("sections", GOOD)
def test_what_elasticml_accepts_is_valid(sections) -> None:
    changes = yaml.safe_load(f"{{{sections}}}")
    parsed(changes)
    assert VALIDATOR.is_valid(as_json(MINIMAL | changes))


def test_the_command_prints_it_or_writes_a_file(tmp_path) -> None:
    printed = CliRunner().invoke(elasticml, ["schema"])
    assert json.loads(printed.output) == SCHEMA
    path = tmp_path / "job.schema.json"
    written = CliRunner().invoke(elasticml, ["schema", "--out", str(path)])
    assert f"# yaml-language-server: $schema={path}" in written.output
    assert json.loads(path.read_text()) == SCHEMA


# --- arguments and defaults -----------------------------------------------------------------------


def test_the_settings_of_job_files_are_the_arguments_of_a_job_and_documented() -> None:
    arguments = [*inspect.signature(em.Job).parameters]
    assert arguments[:2] == ["algorithm", "data"]
    assert {*arguments} == {*SECTIONS, *OF_DATA}
    for key in arguments:
        assert f"\n{key} : " in em.Job.__doc__


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_every_option_of_a_format_is_an_argument_of_its_reader_and_documented(name: str) -> None:
    kind = format_named(name)
    function = getattr(importlib.import_module(kind.__module__), kind.reader)
    arguments = inspect.signature(function).parameters
    options = {key: field for key, field in kind.model_fields.items() if field.repr}
    assert set(arguments) == set(options)
    for key, field in options.items():
        assert f"\n{key} : " in function.__doc__
        assert field.is_required() or arguments[key].default == field.default


@pytest.mark.parametrize("kind", [em.BatchGradient, em.CoCoA])
def test_a_job_fits_an_intercept_and_has_a_tolerance(kind: Any) -> None:
    for given, has_target, wanted in (
        ({}, False, (True, None)),
        ({"mode": "paper"}, False, (False, 0.0)),
        ({"mode": "paper", "intercept": True, "tolerance": 0.1}, False, (True, 0.1)),
        ({}, True, (True, 0.0)),
        ({"tolerance": 0.1}, True, (True, 0.1)),
    ):
        section = record_section(kind(**given), seed=0, has_target=has_target)
        assert (section["intercept"], section["tolerance"]) == wanted
        settings = settings_from_section(kind, section)
        assert (settings.intercept, settings.tolerance) == wanted
    assert em.AsyncSGD("linear").intercept
    assert not em.AsyncSGD("linear", mode="paper").intercept
    assert not em.AsyncSGD(k=2).intercept


def test_a_stop_rule_always_ends_the_job_and_an_optimizer_is_chosen() -> None:
    assert em.Stop(gap=1e-3).rounds == em.Stop().rounds == 1000
    assert em.Stop(seconds=1.0).rounds is None
    assert default_stop(em.CoCoA()).rounds == 1000
    assert default_stop(em.AsyncSGD(k=2)).rounds == 100
    assert em.BatchGradient().chosen_optimizer == "lbfgs"
    assert em.BatchGradient(mode="paper").chosen_optimizer == "gd"
    assert em.BatchGradient(mode="paper", optimizer="tron").chosen_optimizer == "tron"
