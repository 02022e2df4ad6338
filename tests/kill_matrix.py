"""The kill matrix: which tests find which small wrong changes (mutants) of the package.

    python tests/kill_matrix.py reach [--only tests/unit/data]
    python tests/kill_matrix.py draw --seed 1
    python tests/kill_matrix.py run --seed 1 --minutes 60
    python tests/kill_matrix.py report --seed 1

``reach`` runs each test file in a process of its own and writes to ``runs/reach.json`` which test
calls which functions: a function's first call in a test appends a line, so that killed processes
count, too. ``draw`` writes 200 mutants to ``tests/frozen/mutants-1.jsonl``, after the commit that
they are of: the same number from a thousand lines of each room. ``run`` goes on with the first
mutant without a result. One process, with libraries imported and elasticml not, runs the in-process
tests that call the mutated function, the quickest files first: to the end for 120 usual seconds,
the slower ones until one fails (``--first``: all until one fails). A kernel is called compiled;
tests that call functions that name it stand for its own. ``run --real`` then runs the files of real
processes for the mutants that nothing has found. A test that takes ten times its file's longest is
ended, and has found the mutant. Results are written after each mutant, whole, so that ``run`` can
be interrupted.

The frozen digests are left out: they notice any change, right or wrong.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import importlib
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
REACH: Final = ROOT / "runs" / "reach.json"
#: Imported once, so that processes that run tests need not do so.
LIBRARIES: Final = "hypothesis.stateful numba numpy pydantic scipy.sparse distributed".split()
#: A test may always take this long; a process of a file this long besides.
SECONDS_MIN: Final = 30.0
#: Where a process and those that it starts append the functions that they call.
CALLS: Final = "KILL_MATRIX_CALLS"
DIGESTS: Final = ("tests/test_frozen_behaviour.py",)
#: Usual seconds of the tests that are run to the end, whatever they find.
WHOLE_S: Final = 120.0


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


def qualified(name: str) -> str:
    """Return the function of a code object: lambdas and comprehensions belong to the one around."""
    return re.sub(r"(\.?<\w+>)", "", name)


class Recorder:
    """Appends each function of the package to the file of ``CALLS`` at its first call in a test."""

    def __init__(self) -> None:
        self.out = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.seen = set[int]()
        threading.settrace(self.called)
        sys.settrace(self.called)

    def called(self, frame: Any, event: str, value: Any) -> None:
        """Note a call, unless the function was called before."""
        code = frame.f_code
        if id(code) not in self.seen:
            self.seen.add(id(code))
            name = code.co_filename
            if name.startswith(f"{ROOT}/elasticml/"):
                place = f"{name.removeprefix(f'{ROOT}/')}:{qualified(code.co_qualname)}"
                os.write(self.out, f"{place}\n".encode())

    def begin(self, name: str) -> None:
        """Note that what is called from now on is called by a test, or by all of a file."""
        self.seen.clear()
        os.write(self.out, f"= {name}\n".encode())


class Journal:
    """A plugin of pytest: which test is run, how long tests take, and which fail."""

    def __init__(self, path: Path, recorder: Recorder | None) -> None:
        self.out = path.open("a", buffering=1)
        self.recorder = recorder
        self.test = ""

    def write(self, *values: Any) -> None:
        """Append a line that outlives the process."""
        self.out.write(json.dumps(values) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        self.write("begun", nodeid)
        self.test = nodeid
        if self.recorder:
            self.recorder.begin(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Record what a fixture of many tests calls for all tests of the file."""
        if self.recorder is None or fixturedef.scope == "function":
            return (yield)
        self.recorder.begin("")
        try:
            return (yield)
        finally:
            self.recorder.begin(self.test)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test's phase that has ended."""
        self.write("failed" if report.failed else "passed", report.nodeid, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.write("failed", report.nodeid, 0.0)


def run_tests(
    folder: Path, tests: Sequence[str], seconds: float, *more: str
) -> tuple[list[list[Any]], float, bool]:
    """Run tests in one process; return its journal, its seconds, and whether it was ended."""
    with tempfile.NamedTemporaryFile(prefix="journal-") as journal:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                _run_tests(folder, tests, Path(journal.name), more)
            finally:
                os._exit(99)
        ended = threading.Timer(seconds, os.killpg, (child, signal.SIGKILL))
        ended.start()
        _, status = os.waitpid(child, 0)
        was_ended = not ended.is_alive()
        ended.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that tests have left
        lines = [json.loads(line) for line in Path(journal.name).read_text().splitlines()]
    was_ended |= os.waitstatus_to_exitcode(status) not in (0, 1, 2, 5)
    return lines, time.monotonic() - begin, was_ended


def _run_tests(folder: Path, tests: Sequence[str], journal: Path, more: Sequence[str]) -> None:
    """Run tests in this process, which ends with them."""
    os.setpgid(0, 0)
    os.chdir(folder)
    assert "elasticml" not in sys.modules
    sys.path[0] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    recorder = Recorder() if CALLS in os.environ else None
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not torch"]
    code = pytest.main([*options, *more, *tests], plugins=[Journal(journal, recorder)])
    os._exit(int(code))


def reach(only: str) -> None:
    """Run each test file alone and write which functions its tests call, and how long they take."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py"))
    result: dict[str, Any] = json.loads(REACH.read_text()) if REACH.exists() else {}
    with tempfile.TemporaryDirectory(prefix="reach-") as folder:
        # Processes that tests start record their calls, too.
        text = f"import sys; sys.path.append({str(ROOT)!r})\n"
        text += "from tests.kill_matrix import Recorder; Recorder()\n"
        (Path(folder) / "sitecustomize.py").write_text(text)
        os.environ["PYTHONPATH"] = folder
        calls = Path(folder) / "calls"
        os.environ[CALLS] = str(calls)
        for file in files:
            if not file.startswith(only) or file in result or file in DIGESTS:
                continue
            calls.write_text("")
            journal, seconds, was_ended = run_tests(ROOT, [file], 1800.0)
            result[file] = _reached(file, journal, calls.read_text(), was_ended)
            print(f"{seconds:7.1f} s  {len(result[file]['names']):5} {file}", flush=True)
            _write(REACH, json.dumps(result))


def _reached(file: str, journal: Any, calls: str, was_ended: bool) -> dict[str, Any]:
    """Return a file's tests that pass, and of each its seconds and the functions that it calls."""
    names: dict[str, int] = {}
    called: dict[str, set[int]] = defaultdict(set)
    test = ""
    for line in calls.splitlines():
        if line.startswith("="):
            test = line.removeprefix("= ")
        else:
            called[test].add(names.setdefault(line, len(names)))
    seconds: dict[str, float] = defaultdict(float)
    for kind, nodeid, *spent in journal:
        seconds[nodeid] += sum(spent) + (math.inf if kind == "failed" else 0.0)
    tests = {
        test: [round(seconds[test], 3), sorted(called[test])]
        for test in seconds
        if seconds[test] < math.inf and not was_ended
    }
    return {"names": list(names), "all": sorted(called[""]), "tests": tests}


def is_real(file: str) -> bool:
    """Whether a test file starts processes."""
    return file.split("/")[1] in ("cluster", "yarn")


class Reach:
    """Which tests call which functions.

    Parameters
    ----------
    files : mapping
        As ``reach`` writes it.
    """

    def __init__(self, files: dict[str, Any]) -> None:
        self.seconds = {t: row[0] for one in files.values() for t, row in one["tests"].items()}
        self.tests: dict[str, set[str]] = defaultdict(set)
        for row in files.values():
            names = row["names"]
            for test, (_, called) in row["tests"].items():
                for at in {*called, *row["all"]}:
                    self.tests[names[at]].add(test)

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

    def of(self, mutant: dict[str, Any]) -> set[str]:
        """Return the tests that call a mutant's function, or else the functions that name it."""
        place = f"{mutant['file']}:{mutant['function']}"
        names, seen = {mutant["function"].rpartition(".")[2]}, {place}
        found = set(self.tests.get(place, ()))
        while names and not found:
            users = {one for one, used in self.uses.items() if used & names and one not in seen}
            seen |= users
            found = {test for one in users for test in self.tests.get(one, ())}
            names = {one.rpartition(":")[2].rpartition(".")[2] for one in users}
        return found


def find(mutant: dict[str, Any], reach: Reach, first: bool) -> dict[str, Any]:
    """Return the in-process test files that find a mutant, each with the number of its tests."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in reach.of(mutant):
        by_file[test.partition("::")[0]].append(test)
    usual = {file: sum(reach.seconds[t] for t in tests) for file, tests in by_file.items()}
    quick: list[str] = []
    slow: list[str] = []
    spent = 0.0
    for file in sorted((file for file in by_file if not is_real(file)), key=usual.__getitem__):
        spent += usual[file]
        (slow if first or spent > WHOLE_S else quick).append(file)
    found: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        _copy(Path(name), mutant)
        for files, more in ((quick, []), (slow, ["-x"])):
            todo = files if not (more and found) else []
            while todo:
                tests = [test for file in todo for test in sorted(by_file[file])]
                seconds = 10 * sum(usual[file] for file in todo) + SECONDS_MIN
                longest = max(SECONDS_MIN, 10 * max(reach.seconds[test] for test in tests))
                options = [f"--timeout={longest:.0f}", "--hypothesis-profile=search", *more]
                journal, _, was_ended = run_tests(Path(name), tests, seconds, *options)
                found.update(_failing(journal))
                if not was_ended:
                    break
                # The test under way hung, or ended the process.
                hung = (journal[-1][1] if journal else todo[0]).partition("::")[0]
                found[hung] += 1
                todo = todo[todo.index(hung) + 1 :] if not more else []
    seconds = round(time.monotonic() - begin, 1)
    return {"found": dict(sorted(found.items())), "reached": len(by_file), "seconds": seconds}


def find_really(mutant: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Run the files of real processes that call a mutant's function until one finds it."""
    files = sorted({test.partition("::")[0] for test in reach.of(mutant)})
    begin = time.monotonic()
    found = dict(mutant["found"])
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        _copy(Path(name), mutant)
        for file in filter(is_real, files):
            usual = sum(s for test, s in reach.seconds.items() if test.startswith(f"{file}::"))
            journal, _, was_ended = run_tests(Path(name), [file], 10 * usual + SECONDS_MIN, "-x")
            if was_ended or _failing(journal):
                found[file] = 1
                break
    return {"found": found, "real": round(time.monotonic() - begin, 1)}


def _failing(journal: Sequence[Sequence[Any]]) -> Counter[str]:
    failed = {line[1] for line in journal if line[0] == "failed"}
    return Counter(test.partition("::")[0] for test in failed)


def _copy(folder: Path, mutant: dict[str, Any]) -> None:
    """Copy package and tests, with the mutant and without the digests."""
    for name in ("elasticml", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "bench")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "tests" / "bench").symlink_to(ROOT / "tests" / "bench")
    for name in ("pyproject.toml", "README.md", "docs", "examples", "yarn", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "tests" / "frozen" / "stories.json").unlink()
    path = folder / mutant["file"]
    path.write_text(planted(path.read_text(), mutant))


# --- the commands ---------------------------------------------------------------------------------


def _matrix(seed: int) -> Path:
    return ROOT / "tests" / "frozen" / f"mutants-{seed}.jsonl"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def _write_matrix(seed: int, rows: Sequence[dict[str, Any]]) -> None:
    _write(_matrix(seed), "".join(json.dumps(row) + "\n" for row in rows))


def _read_matrix(seed: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _matrix(seed).read_text().splitlines()]


def run(seed: int, minutes: float, first: bool, real: bool) -> None:
    """Run the mutants that have no result yet."""
    end = time.monotonic() + 60 * minutes
    rows, reach = _read_matrix(seed), Reach(json.loads(REACH.read_text()))
    for at, row in enumerate(rows):
        is_todo = not row.get("found", True) and "real" not in row if real else "found" not in row
        if "commit" in row or not is_todo:
            continue
        if time.monotonic() > end:
            break
        row.update(find_really(row, reach) if real else find(row, reach, first))
        _write_matrix(seed, rows)
        what = ", ".join(list(row["found"])[:3]) or "nothing"
        print(f"{at:4} {row['seconds']:7.1f} s  {row['file']}:{row['line']}  {what}", flush=True)


def report(seed: int) -> None:
    """Print the share found by room, what no test finds, and files that find nothing alone."""
    rows = [row for row in _read_matrix(seed) if "found" in row]
    rooms = Counter(room_of(row["file"]) for row in rows)
    found = Counter(room_of(row["file"]) for row in rows if row["found"])
    alone = Counter(file for row in rows if len(row["found"]) == 1 for file in row["found"])
    files = {file for row in rows for file in row["found"]}
    print(f"{sum(found.values())} of {sum(rooms.values())} mutants found")
    print(f"{sum(row['seconds'] for row in rows) / 3600:.1f} hours of one process")
    for room, n in sorted(rooms.items()):
        print(f"{room:20} {found[room]:4} of {n}")
    for row in (row for row in rows if not row["found"]):
        print(f"not found: {row['file']}:{row['line']} {row['old']!r} -> {row['new']!r}")
    print(f"{len(files)} test files find a mutant, {len(alone)} of them find one alone")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("reach", "draw", "run", "report"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="tests", help="files that begin so, for reach")
    parser.add_argument("--first", action="store_true", help="end at the first test that fails")
    parser.add_argument("--real", action="store_true", help="run files of real processes")
    options = parser.parse_args()
    os.environ.setdefault("ELASTICML_DATA", str(ROOT.parent / "shared" / "data"))
    if options.command == "draw":
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()
        drawn = draw(options.seed, options.count)
        _write_matrix(options.seed, [{"commit": commit, "seed": options.seed}, *drawn])
    elif options.command == "report":
        report(options.seed)
    else:
        for library in LIBRARIES:
            importlib.import_module(library)
        if options.command == "reach":
            reach(options.only)
        else:
            run(options.seed, options.minutes, options.first, options.real)


if __name__ == "__main__":
    main()
