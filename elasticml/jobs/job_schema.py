"""The JSON schema of job files, from the models that validate them.

Editors complete and check a job file with it; ``elasticml schema`` prints it. It states every key
with type, range, default and description, in one branch for each algorithm, data format, policy
and kind of cluster. Constraints between keys are checked by elasticml alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from elasticml.data.source import FILE_FORMATS, format_named
from elasticml.jobs.job_spec import OF_DATA, JobSpec
from elasticml.policies.registry import OFF, POLICIES
from elasticml.policies.validation import NAME, settings_of
from elasticml.specification.algorithms import NAMED, ImportedAlgorithm
from elasticml.specification.sections import CLUSTERS

SCHEMA_ID = "urn:elasticml:job-file"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, Any]
#: The import path of a user's class.
_OWN = r"^[\w.]+:[\w.]+$"
_NULL: _Schema = {"type": "null"}


def job_schema() -> _Schema:
    """Return the JSON schema (draft 2020-12) of a job file."""
    definitions: dict[str, _Schema] = {}
    sections = _schema_of(JobSpec, definitions)["properties"]
    of_data = {key: sections.pop(key) for key in OF_DATA}
    own = {"properties": {"format": {"type": "string", "pattern": _OWN}}, "required": ["format"]}
    sections["data"]["anyOf"] = [
        *(_data(name, of_data, definitions) for name in FILE_FORMATS),
        {"description": "a format of your own, as module:Class", "type": "object", **own},
    ]
    sections["algorithm"]["anyOf"] = [
        *(
            _define(
                f"algorithm_{name}",
                _named(_schema_of(kind, definitions), "name", name),
                definitions,
            )
            for name, kind in NAMED.items()
        ),
        _define("ImportedAlgorithm", _schema_of(ImportedAlgorithm, definitions), definitions),
    ]
    address = {"type": "string", "description": "a scheduler's address"}
    clusters = [_cluster(kind, definitions) for kind in CLUSTERS]
    sections["cluster"]["anyOf"] = [*clusters, address, _NULL]
    sections["policies"]["items"] = _policies(definitions)
    for section in sections.values():
        if isinstance(section.get("type"), str) and "enum" not in section:
            section["type"] = [section["type"], "null"]
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


def _data(name: str, of_data: Mapping[str, _Schema], definitions: dict[str, _Schema]) -> _Schema:
    """Return the branch of a data format: the reader's options, and the job's own keys."""
    kind = format_named(name)
    branch = _schema_of(kind, definitions)
    options = {"format": {"const": name}, **branch["properties"]}
    tests = [
        {"type": "string"},
        {"type": "object", "properties": options, "additionalProperties": False},
        {"type": "object", "required": ["format"]},
        _NULL,
    ]
    branch["properties"] = {**options, **of_data, "test": {**of_data["test"], "anyOf": tests}}
    # Suffixes and the manifest of a folder of chunks imply the format.
    named = [] if kind.suffixes or name == "chunks" else ["format"]
    branch["required"] = [*named, *branch.get("required", [])]
    return _define(f"data_{name}", branch, definitions)


def _cluster(kind: str, definitions: dict[str, _Schema]) -> _Schema:
    branch = _schema_of(CLUSTERS[kind], definitions)
    if kind != "local":
        branch["required"] = sorted({"kind", *branch.get("required", [])})
    return _define(f"cluster_{kind}", branch, definitions)


def _policies(definitions: dict[str, _Schema]) -> _Schema:
    """Return what an entry may be: a name, a mapping with settings, or a default policy off."""
    branches = [
        _define(f"policy_{name}", _policy(name, definitions), definitions) for name in POLICIES
    ]
    off = {name: {"enum": [OFF, None, False]} for name in POLICIES}
    items = [
        {"enum": [*POLICIES]},
        *branches,
        {
            "description": "switches a default policy off",
            "type": "object",
            "properties": off,
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        {"description": "a policy of your own, as module:Class", "type": "string", "pattern": _OWN},
        {"type": "object", "properties": {NAME: {"pattern": _OWN}}, "required": [NAME]},
    ]
    return {"anyOf": items}


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


def _schema_of(kind: Any, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a class of settings; those of nested classes become definitions."""
    schema: _Schema = _tidied(TypeAdapter(kind).json_schema())
    definitions.update(schema.pop("$defs", {}))
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
