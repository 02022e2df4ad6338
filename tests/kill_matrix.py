"""The kill matrix: which test files find which small wrong changes (mutants) of the package.

    python tests/kill_matrix.py reach [--only tests/unit/data]
    python tests/kill_matrix.py draw --seed 1
    python tests/kill_matrix.py run --seed 1 --minutes 60
    python tests/kill_matrix.py report --seed 1

``reach`` runs each test file in a process of its own and writes to ``runs/reach.json`` which
functions it reaches: at its first call a function appends a line, so that killed processes count,
too. ``draw`` writes 200 mutants to ``tests/frozen/mutants-1.jsonl``, after the commit that they are
of: the same number from a thousand lines of each room. ``run`` goes on with the first mutant
without a result. One process, with libraries imported and elasticml not, runs all in-process files
that reach the mutated function, to the end. If none finds the mutant, the files of real processes
run until one does. A test is ended at ten times the usual time of its file's longest, and then has
found the mutant. Results are written after each mutant, whole, so that ``run`` can be interrupted.

The frozen digests are left out: they notice any change, right or wrong.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import itertools
import json
import os
import random
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

    def visit(node: ast.AST, function: str, line: int) -> Iterator[dict[str, Any]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Code objects of decorated functions begin at the first decorator.
            line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            function = f"{function}.{node.name}".lstrip(".")
        elif isinstance(node, ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        for new in changed(node) if line else ():
            place = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            text = ast.unparse(ast.fix_missing_locations(new))
            if text != ast.unparse(place):
                yield {
                    "file": file,
                    "function": function,
                    "first": line,
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
                        yield from visit(child, function, line)

    yield from visit(ast.parse(source), "", 0)


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


def record_calls() -> None:
    """Append each function of the package to the file of ``CALLS`` when it is first called."""
    out = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    folder, seen = f"{ROOT}/", set[int]()

    def called(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if id(code) not in seen:
            seen.add(id(code))
            name = code.co_filename
            if name.startswith(folder + "elasticml/"):
                os.write(out, f"{name.removeprefix(folder)}:{code.co_firstlineno}\n".encode())

    threading.settrace(called)
    sys.settrace(called)


class Journal:
    """A plugin of pytest: which file is run, how long tests take, and which fail."""

    def __init__(self, path: Path) -> None:
        self.out = path.open("a", buffering=1)

    def write(self, *values: Any) -> None:
        """Append a line that outlives the process."""
        self.out.write(json.dumps(values) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        self.write("begun", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test's phase that has ended."""
        self.write("failed" if report.failed else "passed", report.nodeid, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.write("failed", report.nodeid, 0.0)


def run_tests(
    folder: Path, files: Sequence[str], seconds: float, *more: str
) -> tuple[list[list[Any]], float, bool]:
    """Run test files in one process; return its journal, its seconds, and whether it was ended."""
    with tempfile.NamedTemporaryFile(prefix="journal-") as journal:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                _run_tests(folder, files, Path(journal.name), more)
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


def _run_tests(folder: Path, files: Sequence[str], journal: Path, more: Sequence[str]) -> None:
    """Run tests in this process, which ends with them."""
    os.setpgid(0, 0)
    os.chdir(folder)
    assert "elasticml" not in sys.modules
    sys.path[0] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    if CALLS in os.environ:
        record_calls()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not torch"]
    code = pytest.main([*options, *more, *files], plugins=[Journal(journal)])
    os._exit(int(code))


def reach(only: str) -> None:
    """Run each test file alone and write which functions it reaches, and how long it takes."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py"))
    files = [file for file in files if file.startswith(only)]
    result: dict[str, Any] = json.loads(REACH.read_text()) if REACH.exists() else {}
    with tempfile.TemporaryDirectory(prefix="reach-") as folder:
        # Processes that tests start record their calls, too.
        text = f"import sys; sys.path.append({str(ROOT)!r})\n"
        text += "from tests.kill_matrix import record_calls; record_calls()\n"
        (Path(folder) / "sitecustomize.py").write_text(text)
        os.environ["PYTHONPATH"] = folder
        for file in files:
            if file in result or file in DIGESTS:
                continue
            calls = Path(folder) / "calls"
            calls.write_text("")
            os.environ[CALLS] = str(calls)
            journal, seconds, was_ended = run_tests(ROOT, [file], 1800.0)
            failed = sorted({line[1] for line in journal if line[0] == "failed"})
            longest = max([line[2] for line in journal if len(line) > 2], default=0.0)
            result[file] = {
                "seconds": round(seconds, 2),
                "longest": round(longest, 2),
                "failed": failed + ["ended"] * was_ended,
                "calls": sorted(set(calls.read_text().split())),
            }
            print(f"{seconds:7.1f} s  {len(result[file]['calls']):5} {file}", flush=True)
            _write(REACH, json.dumps(result))


def is_real(file: str) -> bool:
    """Whether a test file starts processes."""
    return file.split("/")[1] in ("cluster", "yarn", "faults")


def find(mutant: dict[str, Any], reached: dict[str, Any]) -> dict[str, Any]:
    """Return the test files that find a mutant, each with its failing tests."""
    place = f"{mutant['file']}:{mutant['first']}"
    module = f"{mutant['file']}:1"  # kernels are called compiled
    is_kernel = "kernel" in (ROOT / mutant["file"]).read_text()
    wanted = {place, module} if is_kernel else {place}
    files = [f for f, row in reached.items() if wanted & set(row["calls"]) and not row["failed"]]
    files.sort(key=lambda file: reached[file]["seconds"])
    found: dict[str, list[str]] = {}
    seconds = 0.0
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        _copy(folder, mutant)
        todo = [file for file in files if not is_real(file)]
        while todo:
            usual = sum(reached[file]["seconds"] for file in todo)
            longest = 10 * max(reached[file]["longest"] for file in todo)
            journal, spent, was_ended = run_tests(
                folder,
                todo,
                10 * usual + SECONDS_MIN,
                f"--timeout={max(SECONDS_MIN, longest):.0f}",
                "--hypothesis-profile=search",
            )
            seconds += spent
            for line in journal:
                if line[0] == "failed":
                    found.setdefault(line[1].partition("::")[0], []).append(line[1])
            begun = [line[1].partition("::")[0] for line in journal]
            if not was_ended:
                break
            hung = begun[-1] if begun else todo[0]
            found.setdefault(hung, []).append("the process ended or hung")
            todo = todo[todo.index(hung) + 1 :] if hung in todo else todo[1:]
        for file in [file for file in files if is_real(file)] if not found else []:
            limit = 10 * reached[file]["seconds"] + SECONDS_MIN
            journal, spent, was_ended = run_tests(folder, [file], limit, "-x")
            seconds += spent
            failed = [line[1] for line in journal if line[0] == "failed"]
            if failed or was_ended:
                found[file] = failed or ["the process ended or hung"]
                break
    tests = {file: len(set(names)) for file, names in sorted(found.items())}
    return {"found": tests, "reached": len(files), "seconds": round(seconds, 1)}


def _copy(folder: Path, mutant: dict[str, Any]) -> None:
    """Copy package and tests, with the mutant and without the digests."""
    for name in ("elasticml", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "bench")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "tests" / "bench").symlink_to(ROOT / "tests" / "bench")
    for name in ("pyproject.toml", "README.md", "docs", "examples", "yarn", "tools"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("stories", "faults"):
        (folder / "tests" / "frozen" / f"{name}.json").unlink()
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


def run(seed: int, minutes: float) -> None:
    """Run the mutants that have no result yet."""
    end = time.monotonic() + 60 * minutes
    rows, reached = _read_matrix(seed), json.loads(REACH.read_text())
    for at, row in enumerate(rows):
        if "commit" in row or "found" in row:
            continue
        if time.monotonic() > end:
            break
        row.update(find(row, reached))
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
        reach(options.only) if options.command == "reach" else run(options.seed, options.minutes)


if __name__ == "__main__":
    main()
