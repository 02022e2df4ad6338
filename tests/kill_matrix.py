"""The kill matrix: which tests find which small wrong changes (mutants) of the package.

    python tests/kill_matrix.py reach [--only tests/unit/data]
    python tests/kill_matrix.py draw --seed 1 --count 90
    python tests/kill_matrix.py run --seed 1 --minutes 60
    python tests/kill_matrix.py report --seed 1

``reach`` runs each in-process test file in a process of its own and writes to ``runs/reach.jsonl``
which test calls which functions. ``draw`` writes mutants to ``tests/frozen/mutants-1.jsonl``, after
the commit that they are of: the same number from a thousand lines of each room. ``run`` goes on
with the first mutant without a result. It runs the tests that call the mutated function, those of
the quickest files first, until one fails. A kernel is called compiled; tests that call functions
that name it stand for its own. A test that takes ten times its usual time is ended, and has found
the mutant. Tests beyond ``SECONDS_MAX`` usual seconds are not run: such a mutant is not found
``within the limit``.

Libraries are imported once. Results are written as they come, so that each command can be
interrupted, and goes on where it was. Slow tests and the frozen digests are left out; the latter
notice any change, right or wrong.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import copy
import functools
import importlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
REACH: Final = ROOT / "runs" / "reach.jsonl"
#: Imported once, so that processes that run tests need not do so.
LIBRARIES: Final = (
    "hypothesis.stateful numba numpy pydantic scipy.sparse sklearn distributed".split()
)
#: Test files of these folders start few processes.
IN_PROCESS: Final = tuple(f"tests/{name}/" for name in ("unit", "sim", "property", "paper"))
#: Files whose functions numba compiles, what its decorators have in their names, and its calls.
COMPILED: Final = tuple(
    f"elasticml/objectives/{x}.py" for x in ("losses", "multiclass", "penalties", "penalty_kernels")
)
DECORATORS: Final = re.compile("kernel|jit|overload|intrinsic|replaces|register")
CALLS: Final = re.compile(r"kernel\((\w+)\)")
OPTIONS: Final = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-m", "not slow and not torch and not gpu", "--hypothesis-profile=repeatable"]
#: A test may always take this long on a busy machine, a process this much of a processor besides
#: ten times the usual, and this much memory.
SECONDS_MIN: Final = 60.0
CPU_S_MIN: Final = 60.0
BYTES_MAX: Final = 8 << 30
#: Usual seconds of tests after which a process is followed by another, and the last of all.
BATCHES: Final = (3.0, 20.0, 90.0)

#: The functions that were called in a test so far.
called: set[str] = set()


# --- mutants --------------------------------------------------------------------------------------

COMPARE: Final[dict[type, type]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type, type]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
#: Functions whose first two arguments may be swapped.
SYMMETRIC: Final = {"maximum", "minimum", "add", "multiply", "vdot", "array_equal", "hypot"}
SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield wrong versions of one node of a syntax tree."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]):
            other.ops = [COMPARE[type(op)]()]
            yield other
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in OPERATORS:
            other.op = OPERATORS[type(op)]()
            yield other
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield other.operand
        case ast.Constant(value=value) if type(value) in (int, bool):
            other.value = not value if isinstance(value, bool) else value + 1
            yield other
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield ast.UnaryOp(op=ast.Not(), operand=test)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            other.func = ast.Name(id=SWAPPED[name])
            yield other
        case ast.Call(func=ast.Attribute(attr=name)) if name in SYMMETRIC:
            return
        case ast.Call(args=[first, second, *rest]) if not isinstance(first, ast.Starred):
            other.args = [second, first, *rest]
            yield other


def mutants_of(file: str) -> Iterator[dict[str, Any]]:
    """Yield all mutants of a file: the place, the old and the new text, and the function."""
    source = (ROOT / file).read_text()
    encoded = source.encode()
    starts = [0, *itertools.accumulate(map(len, encoded.splitlines(keepends=True)))]

    def text_of(node: Any) -> str:
        begin = starts[node.lineno - 1] + node.col_offset
        return encoded[begin : starts[node.end_lineno - 1] + node.end_col_offset].decode()

    def visit(node: ast.AST, function: str, is_in: bool) -> Iterator[dict[str, Any]]:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or isinstance(node, ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        is_in |= is_function
        for new in changed(node) if is_in else ():
            place = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            text = ast.unparse(ast.fix_missing_locations(new))
            if text != ast.unparse(place):
                yield {
                    "file": file,
                    "function": function,
                    "line": place.lineno,
                    "column": place.col_offset,
                    "old": text_of(place),
                    "new": f"({text})" if isinstance(new, ast.expr) else text,
                }
        if isinstance(node, ast.JoinedStr):
            return  # its parts have no true places
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "type_params"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from visit(child, function, is_in)

    yield from visit(ast.parse(source), "", False)


def planted(source: str, mutant: dict[str, Any]) -> str:
    """Return a file's source with the mutant."""
    lines = source.splitlines(keepends=True)
    start = sum(len(line) for line in lines[: mutant["line"] - 1])
    start += len(lines[mutant["line"] - 1].encode()[: mutant["column"]].decode())
    end = start + len(mutant["old"])
    assert source[start:end] == mutant["old"], mutant
    return source[:start] + mutant["new"] + source[end:]


def draw(seed: int, count: int) -> list[dict[str, Any]]:
    """Draw mutants at random, the same number from a thousand lines of each room."""
    listed = subprocess.run(
        ["git", "ls-files", "elasticml/*.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rooms: dict[str, list[str]] = defaultdict(list)
    for file in listed.stdout.split():
        rooms[room_of(file)].append(file)
    lines = {r: sum(len((ROOT / f).read_text().split("\n")) for f in rooms[r]) for r in rooms}
    rng = random.Random(seed)
    drawn = []
    for room, files in sorted(rooms.items()):
        by_line: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for mutant in (mutant for file in files for mutant in mutants_of(file)):
            by_line[mutant["file"], mutant["line"]].append(mutant)
        n = round(count * lines[room] / sum(lines.values()))
        places = rng.sample(sorted(by_line), min(n, len(by_line)))
        drawn += [rng.choice(by_line[place]) for place in sorted(places)]
    rng.shuffle(drawn)
    return drawn


def room_of(file: str) -> str:
    """Return the room of a file: the folder below the package."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "elasticml"


# --- running tests --------------------------------------------------------------------------------


class Loader(SourceFileLoader):
    """Loads modules of the package whose functions note each call in ``called``.

    Compiled functions do not. Tests that call functions which name them stand for theirs.
    """

    def get_code(self, fullname: str) -> Any:
        """Return a module's code."""
        path = self.get_filename(fullname)
        source = Path(path).read_text()
        tree, file = ast.parse(source), str(Path(path).relative_to(ROOT))
        if not file.startswith(COMPILED):
            for name, node in functions_of(tree, "", set(CALLS.findall(source))):
                at = bool(ast.get_docstring(node, clean=False))
                note = ast.parse(f"__called__('{file}:{name}')").body
                node.body[at:at] = [ast.copy_location(each, node) for each in note]
                ast.fix_missing_locations(node)
        return compile(tree, path, "exec", dont_inherit=True)

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Find modules of the package."""
        if name.partition(".")[0] != "elasticml":
            return None
        spec = PathFinder.find_spec(name, path or [str(ROOT)])
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = cls(name, str(spec.origin))
        return spec


def functions_of(node: ast.AST, name: str, kernels: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the functions that Python runs, with their names."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
            if child.name in kernels or DECORATORS.search(
                " ".join(map(ast.unparse, child.decorator_list))
            ):
                continue
            if not isinstance(child, ast.ClassDef):
                yield inner, child
        yield from functions_of(child, inner, kernels)


class Journal:
    """A plugin of pytest: the order of tests, how long each takes, what it calls, what fails."""

    def __init__(self, path: str, tests: Sequence[str]) -> None:
        self.out = Path(path).open("a", buffering=1)  # noqa: SIM115
        self.order = {test: at for at, test in enumerate(tests)}
        self.seconds = 0.0
        self.passes = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the order of the command."""
        items.sort(key=lambda item: self.order.get(item.nodeid, 0))

    def pytest_collection_finish(self) -> None:
        """Record what a file calls while it is imported for all of its tests."""
        self.write("", 0.0, True, sorted(called))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Record what a fixture of many tests calls for all tests of the file."""
        if fixturedef.scope == "function":
            return (yield)
        before = set(called)
        called.clear()
        try:
            return (yield)
        finally:
            self.write("", 0.0, True, sorted(called))
            called.update(before)

    def write(self, *values: Any) -> None:
        """Append a line that outlives the process."""
        self.out.write(json.dumps(values) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        called.clear()
        self.seconds, self.passes = 0.0, True
        self.write(nodeid, 0.0, False, [])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test's phase that has ended."""
        self.seconds += report.duration
        self.passes &= not report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note a test that has ended."""
        self.write(nodeid, round(self.seconds, 3), self.passes, sorted(called))

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.write(report.nodeid, 0.0, False, [])


def run_tests(
    folder: Path, tests: Sequence[str], seconds: float, *more: str
) -> tuple[list[list[Any]], bool]:
    """Run tests in one process; return its journal, and whether it was ended."""
    with tempfile.NamedTemporaryFile(prefix="journal-") as journal:
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                os.chdir(folder)
                sys.path[0] = str(folder)
                os.environ["PYTHONPATH"] = str(folder)
                resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                options = [*OPTIONS, *more, *tests]
                os._exit(int(pytest.main(options, plugins=[Journal(journal.name, tests)])))
            finally:
                os._exit(99)
        ended = threading.Timer(SECONDS_MIN + 10 * seconds, os.killpg, (child, signal.SIGKILL))
        ended.start()
        _, status = os.waitpid(child, 0)
        ended.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that tests have left
        lines = [json.loads(line) for line in Path(journal.name).read_text().splitlines()]
    return lines, os.waitstatus_to_exitcode(status) not in (0, 1, 2, 5)


def reach(only: str) -> None:
    """Run each test file alone and write which functions its tests call, and how long they take."""
    sys.meta_path.insert(0, Loader)
    builtins.__called__ = called.add  # type: ignore[attr-defined]
    for path in sorted((ROOT / "elasticml").rglob("[a-z]*.py")):
        with contextlib.suppress(ImportError):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    REACH.parent.mkdir(exist_ok=True)
    REACH.touch()
    done = {row["file"] for row in _rows(REACH)}
    for file in sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py")):
        if not file.startswith(IN_PROCESS) or not file.startswith(only) or file in done:
            continue
        journal, was_ended = run_tests(ROOT, [file], 900.0)
        names: dict[str, int] = {}
        tests: dict[str, Any] = {}
        for test, seconds, passes, calls in journal:
            before = tests.get(test, (0.0, []))[1] if test == "" else []
            now = [names.setdefault(name, len(names)) for name in calls]
            tests[test] = (seconds, [*before, *now]) if passes else (0.0, None)
        failed = [test for test in tests if tests[test][1] is None]
        tests = {} if was_ended else {t: row for t, row in tests.items() if t not in failed}
        row = {"file": file, "names": list(names), "tests": tests}
        with REACH.open("a") as out:
            out.write(json.dumps(row) + "\n")
        spent = sum(row[0] for row in tests.values())
        print(f"{spent:7.1f} s {len(tests):5} {len(names):5} {file} {failed or ''}", flush=True)


class Reach:
    """Which tests call which functions, as ``reach`` has written it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tests: dict[str, set[str]] = defaultdict(set)
        for row in _rows(REACH):
            _, for_all = row["tests"].pop("", (0.0, []))
            for test, (seconds, calls) in row["tests"].items():
                self.seconds[test] = seconds
                for at in {*calls, *for_all}:
                    self.tests[row["names"][at]].add(test)

    @functools.cached_property
    def uses(self) -> dict[str, set[str]]:
        """The names that each function of the package uses."""
        found: dict[str, set[str]] = defaultdict(set)

        def visit(node: ast.AST, file: str, function: str) -> None:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                function = f"{function}.{node.name}".lstrip(".")
            elif isinstance(node, ast.Name):
                found[f"{file}:{function}"].add(node.id)
            elif isinstance(node, ast.Attribute):
                found[f"{file}:{function}"].add(node.attr)
            for child in ast.iter_child_nodes(node):
                visit(child, file, function)

        for path in sorted((ROOT / "elasticml").rglob("*.py")):
            visit(ast.parse(path.read_text()), str(path.relative_to(ROOT)), "")
        return found

    def of(self, mutant: dict[str, Any]) -> list[str]:
        """Return the tests that call a mutant's function, those of the quickest files first.

        If there are none, those that call functions that name it. The other tests of the same files
        follow: they may start processes that call it.
        """
        place = f"{mutant['file']}:{mutant['function']}"
        names, seen = {mutant["function"].rpartition(".")[2]}, {place}
        found = set(self.tests.get(place, ()))
        while names and not found:
            users = {one for one, used in self.uses.items() if used & names and one not in seen}
            # What a module does when it is imported is done for all of its functions.
            users |= {one for one in self.uses if f"{one.partition(':')[0]}:" in users}
            seen |= users
            found = {test for one in users for test in self.tests.get(one, ())}
            names = {one.rpartition(":")[2].rpartition(".")[2] for one in users} - {""}
        files: dict[str, float] = defaultdict(float)
        for test in found:
            files[file_of(test)] += self.seconds[test]
        return sorted(
            (test for test in self.seconds if file_of(test) in files),
            key=lambda test: (test not in found, files[file_of(test)], test),
        )


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def find(mutant: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Return the first test that finds a mutant, and whether all tests that reach it were run."""
    tests = reach.of(mutant)
    spent = list(itertools.accumulate(reach.seconds[test] for test in tests))
    found, at, begin = None, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for part in ("elasticml", "tests"):
            shutil.copytree(ROOT / part, folder / part, copy_function=os.link)
        for part in ("pyproject.toml", "README.md", "docs", "examples", "yarn", "tools"):
            (folder / part).symlink_to(ROOT / part)
        place = folder / mutant["file"]
        source = place.read_text()
        place.unlink()
        place.write_text(planted(source, mutant))
        for limit in BATCHES:
            end = sum(seconds <= limit for seconds in spent)
            batch, at = tests[at:end], end
            if batch and not found:
                usual = [reach.seconds[test] for test in batch]
                longest = max(SECONDS_MIN, 10 * max(usual))
                options = (f"--timeout={longest:.0f}", "-x")
                journal, was_ended = run_tests(folder, batch, CPU_S_MIN + 10 * sum(usual), *options)
                ended = {test: passes for test, _, passes, _ in journal}
                failed = [test for test, passes in ended.items() if not passes]
                if was_ended and not failed:
                    failed = [batch[0]]
                found = next(iter(failed), None)
    seconds = round(time.monotonic() - begin, 1)
    return {"found": found, "all": at == len(tests), "reached": len(tests), "seconds": seconds}


# --- the commands ---------------------------------------------------------------------------------


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.rename(path)


def run(path: Path, minutes: float) -> None:
    """Run the mutants that have no result yet."""
    end = time.monotonic() + 60 * minutes
    rows, reach = _rows(path), Reach()
    for at, row in enumerate(rows[1:]):
        if "found" not in row and time.monotonic() < end:
            row.update(find(row, reach))
            _write(path, rows)
            print(f"{at:4} {row['seconds']:7.1f} s  {row['file']}:{row['line']}  {row['found']}")
            sys.stdout.flush()


def report(path: Path) -> None:
    """Print the share found by room and by kind of test, and what no test finds."""
    rows = [row for row in _rows(path) if "found" in row]
    rooms = Counter(room_of(row["file"]) for row in rows)
    found = Counter(room_of(row["file"]) for row in rows if row["found"])
    kinds = Counter(row["found"].split("/")[1] for row in rows if row["found"])
    print(f"{sum(found.values())} of {len(rows)} mutants found, first by {dict(kinds)}")
    print(f"{sum(row['seconds'] for row in rows) / 3600:.1f} hours of one process")
    for room, n in sorted(rooms.items()):
        print(f"{room:20} {found[room]:4} of {n}")
    for row in (row for row in rows if not row["found"]):
        why = "no test" if not row["reached"] else "" if row["all"] else "within the limit"
        print(f"{row['file']}:{row['line']} {row['old']!r} -> {row['new']!r} {why}")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("reach", "draw", "run", "report"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="tests", help="files that begin so, for reach")
    options = parser.parse_args()
    path = ROOT / "tests" / "frozen" / f"mutants-{options.seed}.jsonl"
    os.environ.setdefault("ELASTICML_DATA", str(ROOT.parent / "shared" / "data"))
    if options.command == "draw":
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()
        _write(path, [{"commit": commit}, *draw(options.seed, options.count)])
    elif options.command == "report":
        report(path)
    else:
        for library in LIBRARIES:
            importlib.import_module(library)
        reach(options.only) if options.command == "reach" else run(path, options.minutes)


if __name__ == "__main__":
    main()
