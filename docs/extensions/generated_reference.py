"""Reference pages that are written from the code: names, job-file keys, story records.

They are written into ``docs/generated`` before the sources are read, whole files only if they
changed, so that a second build is quick.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import elasticml
from elasticml.jobs.job_schema import job_schema
from elasticml.specification import sections
from elasticml.specification.algorithms import ALGORITHMS, ImportedAlgorithm
from elasticml.specification.settings_model import SettingsModel

#: Every public name, in the groups of the reference.
GROUPS: Mapping[str, str] = {
    "Jobs": "Job Handle Result watch",
    "Algorithms": "Linear CoCoA BatchGradient PrimalCoCoA LocalSGD AsyncSGD ImportedAlgorithm",
    "Settings of a job": (
        "Stop Validate settings.Checkpoint settings.Collective settings.Evaluate settings.Members"
    ),
    "Policies": (
        "policies.Rebalance policies.ScaleInAtKnee policies.GapPerContainerSecond "
        "policies.ElasticScaling policies.Redeal policies.GlobalShuffle policies.Straggler "
        "policies.TuneLocalWork policies.ChooseInnerIterations"
    ),
    "Data": (
        "from_arrays from_frame from_pandas from_dask read_svmlight read_csv read_parquet "
        "read_images read_chunks"
    ),
    "Estimators": (
        "LinearSVC LogisticRegression Ridge Lasso ElasticNet LassoCV ElasticNetCV "
        "lasso_path enet_path PoissonRegressor KMeans"
    ),
    "Models": "load_model",
    "Clusters": "LocalCluster YarnCluster install announce withdraw",
    "Callbacks": (
        "callbacks.Callback callbacks.MLflowCallback callbacks.TensorBoardCallback "
        "callbacks.WandbCallback"
    ),
    "Errors": (
        "errors.ElasticmlError errors.ConfigError errors.DataError errors.JobFailedError "
        "errors.NotEnoughMembersError errors.ProtocolError errors.SubmissionError"
    ),
    "Testing and version": "testing __version__",
}

#: Members of these classes are not documented again in their subclasses.
_BASES = (
    "BaseModel, BaseEstimator, object, Exception, BaseException, ClassifierMixin, RegressorMixin"
)

#: What scikit-learn's base classes add to each estimator.
_OF_SCIKIT_LEARN = re.compile(r"set_\w+_request|set_output|get_metadata_routing")


def write_pages(app: Sphinx) -> None:
    """Write the generated pages."""
    folder = Path(app.srcdir) / "generated"
    pages = dict(_name_pages())
    pages["job-keys.md"] = _job_keys(job_schema())
    pages["story-records.md"] = _story_records()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.glob("api/*.rst"):
        if f"api/{path.name}" not in pages:
            path.unlink()


# --- public names -----------------------------------------------------------------------------


def _name_pages() -> Iterator[tuple[str, str]]:
    index = ["Public names", "============", "", _ABOUT_NAMES, ""]
    for group, words in GROUPS.items():
        names = words.split()
        index += [group, "-" * len(group), "", ".. list-table::", "   :widths: 30 70", ""]
        for name in names:
            index += [f"   * - :doc:`{name} <api/{name}>`", f"     - {_first_line(name)}"]
            yield f"api/{name}.rst", _name_page(name)
        index += ["", ".. toctree::", "   :hidden:", ""]
        index += [f"   {name} <api/{name}>" for name in names] + [""]
    yield "names.rst", "\n".join(index)


_ABOUT_NAMES = """\
Everything below is imported with ``import elasticml as em``. To write algorithms and policies,
import from ``elasticml.algorithms.base``, ``elasticml.algorithms.matrix`` and
``elasticml.control.policy``; these modules are public too. The examples run in the tests of
elasticml; they share these names:

.. code-block:: python

   import numpy as np
   import elasticml as em
   from dask.distributed import Client

   X, y = ...  # 200 rows of 5 columns, labels -1 and 1, from np.random.default_rng(0)
   client = Client(em.LocalCluster(workers=2).start().scheduler_address)
   stop = em.Stop(rounds=3)
"""


def _first_line(name: str) -> str:
    text = inspect.getdoc(attrgetter(name)(elasticml)) or ""
    if name == "__version__":
        return "The version of elasticml."
    return text.split("\n\n")[0].replace("\n", " ")


def _name_page(name: str) -> str:
    value = attrgetter(name)(elasticml)
    lines = [name, "=" * len(name), "", ".. currentmodule:: elasticml", ""]
    if inspect.ismodule(value):
        lines += [f".. automodule:: {value.__name__}"]
        lines += ["   :members: run_here, check_algorithm, LocalRun, Check"]
    elif inspect.isclass(value):
        # In full: of "policies.Rebalance" autodoc would import a module "policies".
        lines += [f".. autoclass:: elasticml.{name}", "   :members:"]
        lines += [f"   :inherited-members: {_BASES}"]
    elif callable(value):
        lines += [f".. autofunction:: {name}"]
    else:
        lines += [f".. autodata:: {name}", "   :no-value:", "", f"   {_first_line(name)}"]
    return "\n".join(lines) + "\n"


def _settings_sections() -> dict[type, str]:
    """Return the name of each settings class in the schema."""
    by_class: dict[type, str] = {kind: f"algorithm_{name}" for name, kind in ALGORITHMS.items()}
    by_class[ImportedAlgorithm] = "ImportedAlgorithm"
    for name in ("Stop", "Members", "Evaluate", "Validate", "Checkpoint", "Collective"):
        by_class[getattr(sections, name)] = name
    return by_class


def add_settings(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Add the settings of a class to its docstring, from the schema of job files."""
    if not (inspect.isclass(obj) and issubclass(obj, SettingsModel)):
        return
    section = job_schema()["$defs"].get(_settings_sections().get(obj, ""))
    if section is None:
        return
    parameters = ["Parameters", "----------"]
    for key, schema in section["properties"].items():
        if "const" in schema and "default" not in schema:
            continue
        parameters.append(f"{key} : {_type(schema)}{_default(schema)}")
        parameters.append(f"    {schema.get('description', '')}")
    at = next((i for i, line in enumerate(lines) if line.startswith("---")), len(lines) + 1) - 1
    lines[at:at] = ["", *parameters, ""]


def skip_member(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn adds to estimators."""
    return True if _OF_SCIKIT_LEARN.fullmatch(name) else None


# --- keys of job files ------------------------------------------------------------------------


def _job_keys(schema: Mapping[str, Any]) -> str:
    definitions = schema["$defs"]
    lines = ["# Keys of a job file", "", _ABOUT_KEYS, "", *_key_table(schema), ""]
    prefixes = {"algorithm_": "algorithm", "data_": "data", "cluster_": "cluster"}
    prefixes["policy_"] = "policies"
    for name in sorted(definitions, key=lambda name: _rank(name, prefixes)):
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        title = f"{prefixes[prefix]}: {name.removeprefix(prefix)}" if prefix else name
        lines += [f"## {title}", "", definitions[name].get("description", ""), ""]
        if definitions[name].get("properties"):
            lines += [*_key_table(definitions[name]), ""]
    return "\n".join(lines)


_ABOUT_KEYS = """\
This page is generated from the specification that validates job files, as `elasticml schema` prints
it. [Job files](../reference/job-files.md) explains the sections. "text" is a string of YAML."""


def _rank(name: str, prefixes: Mapping[str, str]) -> tuple[int, str]:
    order = ["data_", "algorithm_", "cluster_", "policy_"]
    place = next((i for i, prefix in enumerate(order) if name.startswith(prefix)), len(order))
    return place, name.lower()


def _key_table(schema: Mapping[str, Any]) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    required = set(schema.get("required", ()))
    for key, value in schema["properties"].items():
        default = "required" if key in required else _cell(_default(value).removeprefix(", "))
        text = value.get("description", "").replace("|", r"\|").replace("``", "`")
        kind = _type(value).replace("|", r"\|")
        rows.append(f"| `{key}` | {kind} | {default.removeprefix('default ')} | {text} |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


_WORDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
_WORDS |= {"array": "list", "object": "mapping", "null": "null"}


def _type(schema: Mapping[str, Any]) -> str:
    """Return what a value may be, in words."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"] if value is not None)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name.partition("_")[2] or name
    for key in ("anyOf", "oneOf"):
        if key in schema:
            words = [_type(part) for part in schema[key] if part.get("type") != "null"]
            return " or ".join(dict.fromkeys(words))
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(_WORDS[word] for word in kind if word != "null")
    return _WORDS.get(kind, kind) + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    parts = [f"{sign} {schema[key]}" for key, sign in bounds.items() if key in schema]
    return f" {' and '.join(parts)}" if parts else ""


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema or schema["default"] is None:
        return ""
    return f", default {json.dumps(schema['default'])}"


# --- records of the story ---------------------------------------------------------------------


def _story_records() -> str:
    from elasticml.story import records, summary

    texts = _comments(records.__name__)
    lines = ["# Records of the story", "", _ABOUT_STORY, ""]
    for name, kind in sorted(records.StoryRecord.kinds.items()):
        if name in ("JobBegun", "UnknownRecord"):
            continue
        lines += [f"## {name}", "", inspect.getdoc(kind) or "", "", *_fields(kind, texts), ""]
    lines += ["# The summary", "", "`summary.json` is one object with these fields.", ""]
    lines += _fields(summary.RunSummary, _comments(summary.__name__))
    return "\n".join(lines).replace("``", "`") + "\n"


_ABOUT_STORY = """\
This page is generated from the dataclasses in `elasticml/story`. A line of `story.jsonl` is the
JSON of one record: `t` (seconds since the job started), `event` (the name below), `cause` (the
event or the reason that led to it), in most records `round`, then the fields in this order. Member
ids are text, `"slot.incarnation"`. [Contracts](../explanation/contracts.md#the-story) says when
each is written."""


def _comments(module: str) -> dict[tuple[str, str], str]:
    analyzer = ModuleAnalyzer.for_module(module)
    return {key: " ".join(lines).strip() for key, lines in analyzer.find_attr_docs().items()}


def _fields(kind: type, texts: Mapping[tuple[str, str], str]) -> list[str]:
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for owner in reversed(kind.__mro__):
        if owner.__name__ in ("StoryRecord", "JsonFields", "object"):
            continue
        for name, hint in inspect.get_annotations(owner).items():
            text = texts.get((owner.__name__, name), "").replace("|", r"\|")
            if not str(hint).startswith("ClassVar"):
                rows.append(f"| `{name}` | `{str(hint).replace('|', 'or')}` | {text} |")
    return rows if len(rows) > 2 else []


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before the sources are read; add settings before numpydoc reads them."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", add_settings, priority=100)
    app.connect("autodoc-skip-member", skip_member)
    # Blocks that tests/test_layers.py reads.
    for language in ("layers", "pure", "plain"):
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
