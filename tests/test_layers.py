"""The rules of ``docs/explanation/architecture.md``, checked on the syntax trees."""

from __future__ import annotations

import ast
import io
import itertools
import re
import symtable
import sys
import tokenize
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "elasticml"


def shown(block: str) -> str:
    """The text of one fenced block of the architecture document."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    return re.search(rf"```{block}\n(.*?)```", text, re.DOTALL)[1]


def banned(block: str) -> tuple[set[str], set[str]]:
    """Parts of the package, and the libraries that they may not import."""
    left, _, right = shown(block).partition(":")
    return set(left.split()), set(right.split())


#: Lowest first. A file imports from strictly lower layers, and from its own part.
LAYERS = [layer.split() for layer in shown("layers").split("<")]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
#: Parts whose functions depend on their arguments alone.
PURE, IMPURE_LIBRARIES = banned("pure")
#: Parts in which no array occurs, not even through what they import.
PLAIN, ARRAY_LIBRARIES = banned("plain")
#: Parts that may write to the log; the others return messages. The command line only selects what
#: is shown.
LOGGING = ("runtime", "collective", "clusters", "cli")

#: Projects whose modules have another name.
MODULE_OF_PROJECT = {
    "ipython": "IPython",
    "mlflow_skinny": "mlflow",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit_learn": "sklearn",
}

FUNCTION_LINES_MAX = 60


def module_of(path: Path) -> str:
    """Dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The layered part of a module; empty for the two entry points, facade and ``__main__``."""
    part = module.partition(".")[2].partition(".")[0]
    return "" if part == "__main__" else part


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
#: The modules behind the entry points, which may import them all.
INSIDE = [name for name in MODULES if part_of(name)]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(), str(MODULES[module]))


@cache
def imports_of(module: str) -> list[tuple[int, str]]:
    """Line and name of every module that a module imports, also for the type checker alone."""
    results = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            results |= {(node.lineno, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                results.add((node.lineno, name if name in MODULES else str(node.module)))
    return sorted(results)


def own_imports(module: str) -> list[tuple[int, str]]:
    """The imports of the package's own modules."""
    return [entry for entry in imports_of(module) if entry[1].split(".")[0] == "elasticml"]


def libraries_of(module: str) -> set[str]:
    """Top-level names of the libraries that a module imports."""
    return {name.split(".")[0] for _, name in imports_of(module)} - {"elasticml"}


@cache
def reached_from(module: str) -> frozenset[str]:
    """The package's modules that a module imports, directly or not, itself included."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in reached:
            reached.add(name)
            waiting += [other for _, other in own_imports(name)]
    return frozenset(reached)


@cache
def assigned_names(module: str) -> set[str]:
    """Names that a module of the package binds at its top level."""
    path = MODULES[module]
    table = symtable.symtable(path.read_text(), str(path), "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def test_every_part_of_the_package_has_a_layer():
    assert {part_of(name) for name in INSIDE} - RANK.keys() == set()


def test_files_import_only_from_strictly_lower_layers():
    wrong = []
    for module in INSIDE:
        part = part_of(module)
        for line, other in own_imports(module):
            theirs = part_of(other)
            if theirs != part and RANK.get(theirs, len(LAYERS)) >= RANK.get(part, -1):
                wrong.append(f"{module} line {line} imports {other}")
    assert wrong == []


def test_no_two_files_import_each_other():
    wrong = [
        f"{module} line {line}: {other} imports it in turn"
        for module in INSIDE
        for line, other in own_imports(module)
        if module in reached_from(other)
    ]
    assert wrong == []


def test_pure_parts_import_nothing_that_acts_on_the_world():
    wrong = {
        module: libraries_of(module) & IMPURE_LIBRARIES
        for module in INSIDE
        if part_of(module) in PURE and libraries_of(module) & IMPURE_LIBRARIES
    }
    assert wrong == {}


def test_the_control_plane_has_no_arrays():
    wrong = [
        f"{module} reaches {other}, which imports {library}"
        for module in INSIDE
        if part_of(module) in PLAIN
        for other in sorted(reached_from(module))
        for library in sorted(libraries_of(other) & ARRAY_LIBRARIES)
    ]
    assert wrong == []


def test_only_the_shells_write_to_the_log():
    wrong = [
        module
        for module in INSIDE
        if "logging" in libraries_of(module) and part_of(module) not in LOGGING
    ]
    assert wrong == []


def test_only_the_command_line_prints():
    wrong = [
        f"{module} line {node.lineno}"
        for module in MODULES
        if part_of(module) != "cli"
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert wrong == []


def test_functions_have_at_most_sixty_lines():
    wrong = []
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # The docstring does not count: its length depends on the content.
                body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{module}.{node.name}: {lines} lines")
    assert wrong == []


def test_only_the_package_itself_lists_public_names():
    wrong = [
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Name) and node.id == "__all__" and module != "elasticml"
    ]
    assert wrong == []


def test_every_library_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = itertools.chain(project["dependencies"], *extras)
    names = {re.match(r"[\w-]+", entry)[0].lower().replace("-", "_") for entry in declared}
    names |= {module for name, module in MODULE_OF_PROJECT.items() if name in names}
    imported = {name for module in MODULES for name in libraries_of(module)}
    assert imported - names - sys.stdlib_module_names == set()


def test_skein_is_called_by_its_adapter_alone():
    # The specification of an application stays in dask-yarn's format, which is skein's classes.
    allowed = {"compat", "skein_client", "application_spec"}

    def calls_skein(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name.startswith("skein") for alias in node.names)
        if isinstance(node, ast.Call):
            return ast.unparse(node.func).endswith("import_skein")
        return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skein")

    wrong = set()
    for module in INSIDE:
        if part_of(module) == "cli" or module.rpartition(".")[2] in allowed:
            continue  # `elasticml doctor` looks whether skein is installed
        text = MODULES[module].read_text()
        tree = ast.parse(text if "skein" in text else "")  # the shared one is kept whole
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        wrong |= {module for node in ast.walk(tree) if calls_skein(node)}
    assert wrong == set()


def test_the_parts_of_the_package_have_no_facade_of_their_own():
    """The policies have one: users write ``em.policies.Rebalance()``."""
    wrong = [
        module
        for module in INSIDE
        if MODULES[module].name == "__init__.py" and MODULES[module].read_text() != ""
    ]
    assert wrong == ["elasticml.policies"]


def test_programs_outside_of_the_package_import_names_that_exist():
    """Studies run in slow tests alone, and mypy reads the package alone."""
    wrong = []
    for folder in ("tests", "examples", "yarn"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or node.module not in MODULES:
                    continue
                names = assigned_names(node.module)
                wrong += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} has no {alias.name}"
                    for alias in node.names
                    if alias.name not in names
                    and f"{node.module}.{alias.name}" not in MODULES
                    and "__getattr__" not in names
                ]
    assert wrong == []


def test_no_comment_has_a_todo():
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    wrong = []
    for folder in ("elasticml", "tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            for token in tokenize.generate_tokens(
                io.StringIO(text * bool(marks.search(text))).readline
            ):
                if token.type in (tokenize.COMMENT, tokenize.STRING) and marks.search(token.string):
                    wrong.append(f"{path.relative_to(ROOT)}:{token.start[0]}")
    assert wrong == []
