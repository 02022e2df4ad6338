"""The JSON schema of job files, from the models that validate them.

Editors complete and check a job file with it; ``elasticml schema`` prints it. It states every key
with type, range, default and description, in one branch for each algorithm, data format, policy
and kind of cluster. Constraints between keys are checked by elasticml alone.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter

from elasticml.data.source import FILE_FORMATS, format_named
from elasticml.policies.registry import LOCAL_WORK, OFF, POLICIES
from elasticml.policies.validation import NAME, settings_of
from elasticml.specification.algorithms import ImportedAlgorithm, Scale
from elasticml.specification.linear import NAMED
from elasticml.specification.sections import (
    CLUSTERS,
    DEFAULT_ROUNDS,
    ROUNDS_MAX,
    Checkpoint,
    Collective,
    Evaluate,
    Fault,
    JobOptions,
    Members,
    Stop,
    Validate,
)
from elasticml.specification.settings_model import documented_parameters, names_by_key
from elasticml.specification.simulator import WorldOptions

SCHEMA_ID = "urn:elasticml:job-file"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIZE = {"type": ["integer", "string", "null"]}
_Schema = dict[str, Any]
#: The import path of a user's class.
_OWN = r"^[\w.]+:[\w.]+$"


def job_schema() -> _Schema:
    """Return the JSON schema (draft 2020-12) of a job file."""
    definitions: dict[str, _Schema] = {}
    data = [_data(name, definitions) for name in FILE_FORMATS]
    own = {"properties": {"format": {"type": "string", "pattern": _OWN}}, "required": ["format"]}
    data.append(_described("a format of your own, as module:Class", type="object", **own))
    algorithms = [_algorithm(name, definitions) for name in NAMED]
    algorithms.append(_ref(ImportedAlgorithm, definitions))
    clusters = [_cluster(kind, definitions) for kind in CLUSTERS]
    sections: dict[str, _Schema] = {
        "name": _plain("the job's name; by default the file's", type=["string", "null"]),
        "data": _described("the training data, and the data for tests", anyOf=data),
        "algorithm": _described("the algorithm and its settings", anyOf=algorithms),
        "cluster": _described(
            "where the job runs; by default 4 worker processes on this machine",
            anyOf=[*clusters, {"type": "string", "description": "a scheduler's address"}, _NULL],
        ),
        "policies": _policies(definitions),
        "stop": _section(
            Stop,
            definitions,
            "when the job ends; by default when its model is good enough (algorithm.tolerance) or "
            f"after {ROUNDS_MAX} rounds; local_sgd and async_sgd after {DEFAULT_ROUNDS}",
        ),
        "faults": {
            "description": "planned faults; on a local cluster only",
            "type": ["array", "null"],
            "items": _ref(Fault, definitions),
        },
        "collective": _section(Collective, definitions),
        "warm_start": _plain("path of the initial model, a model.npz", type=["string", "null"]),
        "members": _section(Members, definitions),
        "evaluate": _section(Evaluate, definitions, more=[{"const": False}]),
        "validate": _section(Validate, definitions, more=[{"type": "number"}, {"type": "string"}]),
        "checkpoint": _section(
            Checkpoint, definitions, more=[{"type": "boolean"}, {"type": "string"}]
        ),
        "memory_limit": _plain("memory limit of a member, such as 1 GiB", **_SIZE),
        "simulate": _section(WorldOptions, definitions, "options of elasticml simulate"),
        **_schema_of(JobOptions, definitions)["properties"],
    }
    return {
        "$schema": _DIALECT,
        "$id": SCHEMA_ID,
        "title": "elasticml job file",
        "type": "object",
        "properties": sections,
        "required": ["data", "algorithm"],
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


_NULL: _Schema = {"type": "null"}


def _plain(description: str, **schema: Any) -> _Schema:
    return {"description": description, **schema}


_described = _plain


def _section(
    kind: Any,
    definitions: dict[str, _Schema],
    description: str | None = None,
    more: list[_Schema] | None = None,
) -> _Schema:
    """Return the schema of a section that may be left empty."""
    text = description or str(inspect.getdoc(kind)).split("\n\n")[0].replace("\n", " ")
    return _described(text, anyOf=[_ref(kind, definitions), *(more or ()), _NULL])


def _data(name: str, definitions: dict[str, _Schema]) -> _Schema:
    """Return the branch of a data format: the reader's options, and the job's own keys."""
    kind = format_named(name)
    branch = _schema_of(kind, definitions)
    options = branch["properties"]
    test = {"type": "object", "properties": options, "additionalProperties": False}
    branch["properties"] = {
        "format": {"const": name},
        **options,
        "test": _described(
            "data for the test metrics: a path, or the options that differ from the training data",
            anyOf=[
                {"type": "string"},
                {**test, "properties": {"format": {"const": name}, **options}},
                {"type": "object", "required": ["format"]},
                _NULL,
            ],
        ),
        "chunk_size": _plain("bytes of a chunk, such as 1 MiB; by default auto", **_SIZE),
        "cache": _plain(
            "directory on the workers' hosts for parsed text; false: none",
            type=["boolean", "string", "null"],
        ),
        "scale": _plain("as algorithm.scale", enum=[*get_args(Scale), None]),
    }
    # Suffixes and the manifest of a folder of chunks imply the format.
    named = [] if kind.suffixes or name == "chunks" else ["format"]
    branch["required"] = [*named, *branch.get("required", [])]
    return _define(f"data_{name}", branch, definitions)


def _algorithm(name: str, definitions: dict[str, _Schema]) -> _Schema:
    return _define(
        f"algorithm_{name}",
        _named(_schema_of(NAMED[name], definitions), "name", name),
        definitions,
    )


def _cluster(kind: str, definitions: dict[str, _Schema]) -> _Schema:
    branch = _schema_of(CLUSTERS[kind], definitions)
    if kind != "local":
        branch["required"] = sorted({"kind", *branch.get("required", [])})
    return _define(f"cluster_{kind}", branch, definitions)


def _policies(definitions: dict[str, _Schema]) -> _Schema:
    """Return the list of policies: names, mappings with settings, and default policies off."""
    branches = [
        _define(f"policy_{name}", _policy(name, definitions), definitions) for name in POLICIES
    ]
    off = {name: {"enum": [OFF, None, False]} for name in POLICIES}
    items = [
        {"enum": [*POLICIES]},
        *branches,
        _described(
            "switches a default policy off",
            type="object",
            properties=off,
            additionalProperties=False,
            minProperties=1,
            maxProperties=1,
        ),
        _described("a policy of your own, as module:Class", type="string", pattern=_OWN),
        {"type": "object", "properties": {NAME: {"pattern": _OWN}}, "required": [NAME]},
    ]
    described = f"decisions between rounds; at most one of {' and '.join(LOCAL_WORK)}"
    return _described(described, type=["array", "null"], items={"anyOf": items})


def _policy(name: str, definitions: dict[str, _Schema]) -> _Schema:
    kind = POLICIES[name]
    if settings_of(kind):
        branch = _schema_of(kind, definitions)
    else:
        branch = {"type": "object", "properties": {}, "additionalProperties": False}
        branch["description"] = str(inspect.getdoc(kind)).split("\n\n")[0]
    branch = _named(branch, NAME, name)
    branch["properties"]["off"] = {"const": True, "description": "switches the policy off"}
    return branch


def _named(branch: _Schema, key: str, name: str) -> _Schema:
    """Return a branch that a key with a fixed value selects."""
    properties = {key: {"const": name}, **branch["properties"]}
    required = [key, *branch.get("required", [])]
    return {**branch, "properties": properties, "required": required}


def _define(name: str, schema: _Schema, definitions: dict[str, _Schema]) -> _Schema:
    definitions[name] = schema
    return {"$ref": f"#/$defs/{name}"}


def _ref(kind: Any, definitions: dict[str, _Schema]) -> _Schema:
    return _define(kind.__name__, _schema_of(kind, definitions), definitions)


def _schema_of(kind: Any, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a class of settings; those of nested classes become definitions."""
    schema = _tidied(TypeAdapter(kind).json_schema())
    for name, nested in schema.pop("$defs", {}).items():
        module = sys.modules[kind.__module__]
        definitions[name] = _with_descriptions(nested, getattr(module, name))
    return _with_descriptions(schema, kind)


def _with_descriptions(schema: _Schema, kind: Any) -> _Schema:
    schema["description"] = str(inspect.getdoc(kind)).split("\n\n")[0].replace("\n", " ")
    texts = _field_descriptions(kind)
    for key, name in names_by_key(kind).items() if "properties" in schema else ():
        if name in texts:
            schema["properties"][key].setdefault("description", texts[name])
    return schema


def _tidied(schema: Any) -> Any:
    """Return a schema without titles, which repeat the keys, and without the types of keys.

    In a job file a key may be a number; in JSON it is always text.
    """
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if k not in ("title", "propertyNames", "properties")}
    tidied = {key: _tidied(value) for key, value in kept.items()}
    if "properties" in schema:
        tidied["properties"] = {k: _tidied(v) for k, v in schema["properties"].items()}
    return tidied


@cache
def _field_descriptions(kind: Any) -> Mapping[str, str]:
    """Return what the code says about each field of a class.

    Fields are documented by ``#:`` comments above them, or under "Parameters" in the docstring.
    """
    above_class = kind.__mro__[1]
    is_section = "model_fields" in dir(above_class) and above_class.model_fields
    inherited = _field_descriptions(above_class) if is_section else {}
    texts = {**inherited, **{n: text for n, (_, text) in documented_parameters(kind).items()}}
    source = inspect.getsource(kind)
    lines = [line.strip() for line in source.splitlines()]
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above: list[str] = []
            line = node.lineno - 2
            while line >= 0 and lines[line].startswith("#:"):
                above.insert(0, lines[line].removeprefix("#:").strip())
                line -= 1
            if above:
                texts[node.target.id] = " ".join(above)
    return texts
