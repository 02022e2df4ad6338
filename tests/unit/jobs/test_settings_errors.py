"""A wrong setting of a job file is one line: its path, what it got, what is wanted, a remedy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from elasticml.data.synthetic.splice_sites import SpliceSource
from elasticml.errors import ConfigError
from elasticml.jobs.job_schema import job_schema
from elasticml.jobs.job_spec import JobSpec
from elasticml.specification.algorithms import BatchGradient

SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MINIMAL = {
    "data": {"format": "synthetic_splice", "rows": 9},
    "algorithm": {"name": "batch_gradient"},
}
#: What a section needs besides the setting in question.
NEEDED = {"path": "a", "label": "y", "rows": 9, "shape": "rcv1", "round": 1, "call": "m:C"}
SECTIONS = {
    **{name.lower(): name for name in ("Collective", "Evaluate", "Members", "Stop", "Validate")},
    **{"checkpoint": "Checkpoint", "faults": "Fault", "simulate": "WorldOptions"},
}
CLUSTERS = {"format": "synthetic_clusters", "rows": 9}
KINDS = ("name", "kind", "format")
#: Beside the kind: what is no setting, and settings of the data that their readers do not have.
NOT_THE_SECTIONS = {*KINDS, "off", "test", "chunk_size", "cache", "scale"}
WORDS = ("wanted", "there is", "did you mean", "is missing", "is not a setting")


def settings_with_errors() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each setting of the schema: its section, a job's changes with a wrong one, what is said."""
    kinds = {name: key for key, name in SECTIONS.items()}
    for name, definition in SCHEMA["$defs"].items():
        section = kinds.get(name, name.partition("_")[0])
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


#: By bound: a step beyond it, and what is said.
BOUNDS = {
    "minimum": (-1, "at least"),
    "exclusiveMinimum": (0, "more than"),
    "maximum": (1, "at most"),
    "exclusiveMaximum": (0, "less than"),
}


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


def is_valid(job: dict[str, Any]) -> bool:
    return VALIDATOR.is_valid(MINIMAL | job)


CASES = [case for case in settings_with_errors() if not is_valid(case[1])]


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


@pytest.mark.parametrize("name", dict.fromkeys(case[0] for case in CASES))
def test_what_the_schema_refuses_is_one_line(name) -> None:
    for section, changes, text in CASES:
        if section == name:
            said = message(changes)
            assert said.startswith(next(iter(changes)))
            assert text in said
            assert any(word in said for word in WORDS)
            if changes.keys().isdisjoint(("data", "warm_start")):
                # Of the list of all settings, some are in a job file's section data.
                again = message_in_python(changes).partition(" (there is name")[0]
                assert again == said.partition(" (there is name")[0]


def faults(lose: Any, then: dict[str, Any]) -> dict[str, Any]:
    return {"faults": [{"round": 1, "lose": lose}, {"round": 2, **then}]}


def batch(**settings: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "batch_gradient", **settings}}


def cocoa(**settings: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "cocoa", **settings}}


def letters(**settings: Any) -> dict[str, Any]:
    return {"data": {"format": "synthetic_splice", "rows": 9, **settings}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data": None}, "data is missing; such as data: {format: svmlight"),
        ({"algorithm": None}, "algorithm is missing; such as algorithm: {name: batch_gradient}"),
        ({"data": {"format": ["csv"]}}, "data.format: got ['csv']; did you mean"),
        (
            {"data": {"format": "arrays"}},
            "data.format: data in memory have no file; write them to one and name it, or start "
            "the job from Python with em.from_arrays(X, y)",
        ),
        ({"data": {"format": "frame"}}, "from Python with em.from_frame(frame, label=...)"),
        ({"data": {"format": "dask_table"}}, "from Python with em.from_dask(frame, label=...)"),
        (letters(test={"format": "frame"}), "data.test.format: data in memory have no file"),
        ({"validate": {"data": {"format": "dask"}}}, "validate.data.format: data in memory"),
        (
            {"algorithm": {"name": "cocoa", "mode": "paper", "aggregation": "line_search"}},
            "algorithm.aggregation: mode: paper adds with a fixed gamma",
        ),
        ({"algorithm": {"name": "cocoa"}, "absent": "taylor"}, "absent: got 'taylor', which"),
        ({"absent": "freeze"}, "absent: got 'freeze', which algorithm batch_gradient cannot"),
        (
            {"stop": {"rounds": 9, "gap": 1e-3}},
            "stop.gap: batch_gradient with loss logistic and l2 0.0001 certifies no duality gap",
        ),
        ({"warm_start": 3}, "warm_start: got 3, wanted the path of a model.npz"),
        (
            {"cluster": {"kind": "yarn", "workers": 4, "workers_max": 3}},
            "cluster.workers_max: got 3, wanted at least workers, 4",
        ),
        (
            {"cluster": {"kind": "yarn", "workers": 4, "workers_min": 5}},
            "cluster.workers_min: got 5, wanted at most workers, 4",
        ),
        (
            {"cluster": {"kind": "yarn", "keytab": "me.keytab"}},
            "cluster.principal: missing, and keytab is given; Kerberos needs both",
        ),
        (
            {"cluster": {"kind": "yarn", "memory": "1 MiB"}},
            "cluster.memory: got '1 MiB': a container needs at least 64 MiB; give a size such as "
            "2 GiB",
        ),
        (
            {"cluster": {"kind": "yarn", "pack": True, "environment": "venv:///opt/env"}},
            "cluster.pack: it packs the submitting environment, but environment names "
            "venv:///opt/env; leave one of them out",
        ),
        (
            {"cluster": {"kind": "yarn", "pack": True, "specification": "spec.yaml"}},
            "cluster.pack: the specification already sets the environment of its containers; leave "
            "one of them out",
        ),
        (
            {"cluster": {"kind": "yarn"}, "faults": [{"round": 1, "lose": 1}]},
            "faults: cluster.kind is yarn, and elasticml cannot stop processes there; use "
            "cluster.kind: local, or leave faults out",
        ),
        (
            {"cluster": {"kind": "address"}},
            "cluster.address: is missing, wanted tcp://host:port, or scheduler_file",
        ),
        (
            {"cluster": {"kind": "address", "address": "tcp://h:1", "scheduler_file": "s.json"}},
            "cluster.scheduler_file: address is given, too; leave one of them out",
        ),
        (
            {"cluster": {"kind": "address", "address": "tls://h:1", "tls": {"ca": "ca.pem"}}},
            "cluster.tls.cert is missing: this client's certificate",
        ),
        (
            {"cluster": {"kind": "factory"}},
            "cluster.call is missing: a function that returns a cluster, such as",
        ),
        (
            {"cluster": {"kind": "factory", "call": "dask_jobqueue.SLURMCluster"}},
            "cluster.call: got 'dask_jobqueue.SLURMCluster', wanted module:function",
        ),
        (
            {"cluster": {"kind": "factory", "call": "m:C", "workers": 3, "workers_max": 2}},
            "cluster.workers_max: got 2, wanted at least workers, 3",
        ),
        (
            {"cluster": {"kind": "factory", "call": "m:C"}, "members": {"max": 9}},
            "members.max: got 9, wanted at most 4, the most workers that the cluster may have",
        ),
        ({"policies": 1.5}, "policies: got 1.5, wanted a list such as"),
        ({"policies": {"name": "knee"}}, "policies: got {'name': 'knee'}, wanted a list such as"),
        ({"policies": ["rebalance", "rebalance"]}, "policies[1]: 'rebalance' is listed twice"),
        ({"policies": ["knee"]}, "policies[0]: knee decides by the duality gap, which batch_grad"),
        (
            {"members": {"start": 5}, "cluster": {"workers": 4}},
            "members.start: got 5, wanted at most cluster.workers, 4",
        ),
        ({"members": {"min": 5}}, "members.min: got 5, wanted at most 4, the most workers"),
        ({"cluster": {"slowdown": {4: 2.0}}}, "cluster.slowdown: got worker 4, wanted numbers"),
        ({"policies": [5]}, "policies[0]: got 5, wanted a name or a mapping such as"),
        ({"policies": ["tune_local_work"]}, "policies[0]: tune_local_work decides by the duality"),
        ({"faults": [{"round": 1, "lose": 5}]}, "faults: round 1: lose: 5, but 4 of 4 members"),
        ({"faults": [{"round": 1, "return": 1}]}, "faults: round 1: return: 1, but 0 of 4"),
        ({"members": {"start": 1e20}}, "members.start: got 1e+20, wanted at most 92233720368"),
        (
            {
                "data": {
                    **{"format": "synthetic_clusters", "rows": 9},
                    "columns": 10**5,
                    "clusters": 10**5,
                }
            },
            "data.clusters: got 100000 of 100000 columns, wanted at most 1342",
        ),
        ({"seed": 10**20}, "seed: got 100000000000000000000, wanted at most 9223372036854775807"),
        ({"stop": {"rounds": 10**19}}, "stop.rounds: got 10000000000000000000, wanted at most 92"),
        ({"policies": ["..:x"]}, "policies[0]: policy '..:x' cannot be imported: wanted module:"),
        ({"algorithm": {"name": "cocoa"}, "absent": "ignore"}, "freeze"),
        (
            {"members": {"start": 2, "min": 3}},
            "members.min: got 3, wanted at most members",
        ),
        ({"faults": {"round": 1, "lose": 1}}, "faults: got {'lose': 1, 'round': 1}, wanted a list"),
        ({"faults": [{"round": 1}]}, "exactly one of lose"),
        ({"faults": [{"round": 1, "lose": 1, "return": 1}]}, "exactly one of lose"),
        ({"faults": [{"round": 1, "lose": []}]}, "wanted different slots"),
        ({"faults": [{"round": 1, "lose": [1, 1]}]}, "wanted different slots"),
        (
            faults(lose=2, then={"lose": 3}),
            "faults: round 2: lose: 3, but 2 of 4 members",
        ),
        (
            faults(lose=[1, 2], then={"return": 3}),
            "return: 3, but 2 of 4 members have gone",
        ),
        (faults(lose=[4], then={"return": 1}), "slot 4 holds no member"),
        (faults(lose=[1], then={"lose": [1]}), "slot 1 holds no member"),
        (
            faults(lose=1, then={"lose": 1, "hwo": "kill"}),
            "faults[1].hwo is not a setting",
        ),
        (batch(l2=float("nan")), "algorithm.l2: got nan, wanted a finite number"),
        (batch(class_weight={1: 0}), "algorithm.class_weight: every weight must be more than 0"),
        (batch(class_weight="balanced", loss="squared"), "class_weight: loss: squared has no"),
        (batch(step="decay"), "algorithm.step: decay goes with optimizer: gd, not lbfgs"),
        (
            cocoa(gap_every=1.5),
            "got 1.5, wanted a whole number or auto or target",
        ),
        (cocoa(class_weight="balancd"), "wanted a mapping or balanced; did you mean 'balanced'?"),
        (cocoa(sigma=0, gap_every=0, l2=0), "algorithm.l2: got 0, wanted more than 0 (and 4 more)"),
        (cocoa(l2=True), "algorithm.l2: got True, wanted a number"),
        ({"cluster": {"memory": "2 gigs"}}, "cluster.memory: got '2 gigs': size '2 gigs' is not"),
        ({"cluster": {"memory": "1 MiB"}}, "cluster.memory: got '1 MiB': a worker needs at least"),
        (
            {"cluster": {"kind": "yarn", "scheduler": {"strange": 1}}},
            "cluster.scheduler.strange is not a setting (there is memory, vcores)",
        ),
        (
            {"cluster": {"kind": "yarn", "scheduler": {"vcores": 0}}},
            "cluster.scheduler.vcores: got 0, wanted at least 1",
        ),
        (letters(test={"strange": 1}), "data.test.strange is not a setting"),
        ({"validate": {"data": {"strange": 1}}}, "validate.data.strange is not a setting"),
        ({"stop": 14}, "stop: got 14, wanted a mapping with keys such as rounds, seconds"),
        (letters(ngrams=[1, 5]), "longest <= 4"),
        (letters(length=8, ngrams=[0, 3]), "from 1 to 4"),
        ({"data": {"format": "images", "path": "a", "size": [32]}}, "data.size[1] is missing"),
        ({"data": {"format": "csv", "path": "a", "label": 1.5}}, "wanted a whole number or text"),
    ],
)
def test_settings_that_do_not_fit_together_are_one_line(changes, text) -> None:
    assert text in message(changes)


@pytest.mark.parametrize("lost", [[4], [3, 1], [[0, 3], 1]])
def test_possible_faults_are_sorted_by_round(lost) -> None:
    losses = [{"round": 2 + k, "lose": some} for k, some in enumerate(lost)]
    planned = parsed({"faults": [{"round": 9, "return": 1}, *losses]}).faults
    assert [(fault.round, fault.lose) for fault in planned] == [
        *((loss["round"], loss["lose"]) for loss in losses),
        (9, None),
    ]


def test_settings_of_python_have_the_same_messages_and_pickle_with_their_path() -> None:
    with pytest.raises(ConfigError, match=r"^BatchGradient\.tolerence is not a setting; did you "):
        BatchGradient(tolerence=1e-3)
    with pytest.raises(ConfigError) as caught:
        parsed({"cluster": {"workers": 0}})
    assert pickle.loads(pickle.dumps(caught.value)).path == "cluster.workers"
    with pytest.raises(ValueError, match="frozen"):
        BatchGradient().l2 = 1.0
    # YAML 1.1 reads 1e-4 as a string.
    assert parsed(batch(l2="1e-4")).algorithm.l2 == 1e-4
