"""What README and docs name exists: commands, files, names, tests; their code blocks are code."""

from __future__ import annotations

import ast
import json
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import elasticml
from elasticml.cli.main import elasticml as elasticml_command
from elasticml.jobs.job_spec import JobSpec

ROOT = Path(__file__).resolve().parents[1]
FOLDERS_OF_DOCUMENTS = ("docs", "yarn")
#: Folders that ``make docs`` writes; it checks the links to and in them.
BUILT = tuple(ROOT / "docs" / name for name in ("_build", "generated", "tutorials/examples"))


def is_built(path: Path) -> bool:
    """Whether the build of the site writes a file."""
    return any(path.resolve().is_relative_to(folder) for folder in BUILT)


DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(
        path
        for name in FOLDERS_OF_DOCUMENTS
        for path in sorted((ROOT / name).rglob("*.md"))
        if not is_built(path)
    ),
]
#: First parts of the paths that documents name; other paths (``runs/…``) need not exist.
FOLDERS = ("elasticml", "tests", "docs", "examples", "yarn", ".ci")

every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


@cache
def blocks(document: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


@cache
def code_in(document: Path) -> list[str]:
    """Every ``code`` in a line, and every line of a shell block."""
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [
        line.partition("#")[0].strip()
        for language, text in blocks(document)
        if language in ("sh", "bash", "console")
        for line in text.splitlines()
    ]
    return re.findall(r"`([^`\n]+)`", prose) + lines


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, their methods and attributes, and constants that a file defines."""
    results: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                results.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            results.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text()).body, "")
    return frozenset(results)


@every_document
def test_every_file_and_name_that_a_document_names_exists(document):
    missing = []
    for code in code_in(document):
        benches = re.findall(r"-m tests\.bench (?:--against \S+ )?(\w+)", code)
        missing += [name for name in benches if not (ROOT / f"tests/bench/{name}.py").is_file()]
        for word in code.split():
            place, _, name = word.partition("::")
            if not re.fullmatch(r"[\w.\-/]+", place) or "/" not in place:
                continue
            if place.split("/")[0] not in FOLDERS:
                continue
            path = ROOT / place
            # A test may be named with its parameters in brackets.
            expected = name.partition("[")[0].replace("::", ".")
            if not path.exists() and not is_built(path):
                missing.append(place)
            elif expected and expected not in names_in(path):
                missing.append(word)
    assert missing == []


@every_document
def test_every_link_to_a_file_leads_somewhere(document):
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [link.partition("#")[0] for link in links if "://" not in link]
    paths = [document.parent / link for link in local if link]
    assert [str(path) for path in paths if not path.exists() and not is_built(path)] == []


@every_document
def test_every_make_target_that_a_document_names_exists(document):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {
        word
        for code in code_in(document)
        if code.startswith("make ")
        for word in code.split()[1:]
        if re.fullmatch(r"[a-z]+", word)
    }
    assert named - set(targets) == set()


@every_document
def test_every_command_that_a_document_names_exists(document):
    named = {
        code.split()[1]
        for code in code_in(document)
        if code.startswith("elasticml ") and re.fullmatch(r"[a-z]+", code.split()[1])
    }
    assert named - elasticml_command.commands.keys() == set()


@every_document
def test_every_block_of_python_compiles_and_names_what_is_public(document):
    for language, text in blocks(document):
        if language == "python":
            compile(text, str(document), "exec")
            assert set(re.findall(r"\bem\.(\w+)", text)) - set(elasticml.__all__) == set()


def algorithms_in(document):
    """Yield the job files of a document that name an algorithm, with that name."""
    for language, text in blocks(document):
        raw = yaml.safe_load(text) if language == "yaml" else {}
        if "algorithm" in raw:
            yield raw["algorithm"].get("name"), raw


@every_document
def test_every_block_of_yaml_that_names_an_algorithm_is_a_job(document):
    for name, raw in algorithms_in(document):
        if name != "local_sgd":
            JobSpec.from_sections(raw, folder=ROOT, name="example")


@pytest.mark.torch
def test_every_block_of_yaml_for_a_network_is_a_job():
    jobs = [raw for document in DOCUMENTS for name, raw in algorithms_in(document)
            if name == "local_sgd"]  # fmt: skip
    assert jobs
    for raw in jobs:
        JobSpec.from_sections(raw, folder=ROOT, name="example")


@every_document
def test_no_document_has_a_todo(document):
    marks = re.compile(r"to be measured|\bTB" r"D\b|\bTO" r"DO\b|\bFIX" r"ME\b")
    assert marks.findall(document.read_text()) == []


def test_every_document_that_the_code_names_exists():
    named = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("elasticml", "tests", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"docs/[\w./-]+\.md", path.read_text())
    }
    assert {entry for entry in named if not (ROOT / entry[1]).exists()} == set()


def texts_for_users(text):
    """Return the strings of a module that are not docstrings: messages and help."""
    tree = ast.parse(text)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in statements
    ]


def test_no_message_names_a_file_that_an_installed_package_lacks():
    names = re.compile(r"\b(?:docs|examples|tests)/[\w./-]*")
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "elasticml").rglob("*.py")
        if names.search(path.read_text())
        for text in texts_for_users(path.read_text())
        for name in names.findall(text)
    }
    assert named == set()


def test_the_page_on_security_has_every_dependency_with_its_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(text.partition(",<")[0].split(">=") for text in project["dependencies"])
    text = (ROOT / "docs/reference/security.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \| ([\d., ]+) \| [\d., ]+ \|", text, re.M)
    told = {}
    for names, versions in rows:
        told |= zip(re.findall(r"`([\w-]+)`", names), versions.split(", "), strict=True)
    assert told == bounds


def test_the_page_on_own_algorithms_shows_the_example():
    page = (ROOT / "docs/tutorials/own-algorithm.md").read_text()
    code = (ROOT / "examples/huber.py").read_text()
    assert f"```python\n{code[code.index('import numpy') :]}```" in page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "figures").glob("*.json")), ids=lambda path: path.stem
)
def test_every_result_file_says_what_was_measured_when_and_how(path):
    content = json.loads(path.read_text())
    for part in content.get("tables", [content]):
        table = {**content, **part}
        assert {"title", "date", "command", "machine", "columns", "rows"} - table.keys() == set()
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        programs = re.findall(r"\b(?:tests|examples|docs)/\S+\.py", table["command"])
        benches = re.findall(r"\btests\.bench (\w+)", table["command"])
        programs += [f"tests/bench/{name}.py" for name in benches]
        is_gone = "in the history" in table["command"]
        assert is_gone or all((ROOT / program).is_file() for program in programs)


def test_the_ratios_on_pages_are_those_of_the_stored_figures():
    ratios = runpy.run_path(str(ROOT / "docs" / "extensions" / "peer_ratios.py"))["ratios"]
    readme = (ROOT / "README.md").read_text()
    comparison = (ROOT / "docs" / "comparison.md").read_text()
    content = json.loads((ROOT / "docs" / "figures" / "linear-peers.json").read_text())
    summary = ratios(content["tables"][0]["columns"], content["tables"][0]["rows"])
    assert len(summary) == 6
    for _, _, peer, cases, mean, spread, slower in summary:
        if peer == "the fastest other":
            assert re.search(
                rf"\| {mean} .*\({spread}\); slower in {slower} of {cases} cases", readme
            )
        else:
            assert f"{mean} ({cases} cases, {spread})" in comparison
