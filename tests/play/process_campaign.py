"""Many plans on processes, each group of one world in a program of its own.

A program of its own can be ended when it waits for ever, and whatever it leaves shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from tests.play import raising
from tests.play.campaign import Verdict
from tests.play.leftovers import Leftovers
from tests.play.plan import Plan
from tests.play.processes import START_S_MAX, play_all
from tests.play.worlds import disk_of, mounted_disk

ROOT: Final = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER: Final = 36
#: For a program to start, and for a world to start and end.
_WORLD_S_MAX: Final = 240.0
#: Lines of a traceback in a log, up to its exception. The job's own code may raise what it likes.
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ |+].*\n)*(.*)")
#: Dask's workers leave it empty, or with the files of a killed one.
_DASKS: Final = "dask-scratch-space"
_OURS: Final = str(ROOT / "elasticml")
_RAISING: Final = raising.__name__.replace(".", "/")


def judge_groups(groups: Iterable[Sequence[Plan]], out: Path) -> Iterator[Verdict]:
    """Play groups of plans; the plans of a group have the same world.

    Parameters
    ----------
    out : Path
        Folder for the logs of the processes of plans that violate a rule.
    """
    # Orphans of the programs become children of this process, so that they are found.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for plans in groups:
        with Leftovers() as left:
            lines, found = _play_group(plans, out)
        _end(left.processes)
        found += [("leaves_nothing", text) for text in left.found]
        if found and lines:  # of the last plan that ended
            lines[-1]["violations"] += found
        for plan, line in zip(plans, lines, strict=False):
            yield Verdict(plan=plan, **line)


def _play_group(plans: Sequence[Plan], out: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Play plans in a program; return what it wrote of each, and what it left."""
    world = plans[0].world
    stops_s = sum(plan.job["stop"]["seconds"] + plan.rules["ends"] for plan in plans)
    limit_s = _WORLD_S_MAX + stops_s + len(plans) * START_S_MAX
    folder = Path(tempfile.mkdtemp(prefix="play-"))
    found: list[Any] = []
    try:
        with mounted_disk(world, folder):
            files = disk_of(world, folder) / "tmp"
            for place in (files, folder / "logs"):
                place.mkdir()
            (folder / "plans.json").write_text(json.dumps([plan.to_json() for plan in plans]))
            with open(folder / "logs" / "program.log", "wb") as log:
                program = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(folder)],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "TMPDIR": str(files), "PYTHONPATH": str(ROOT)},
                )
                try:
                    code: object = program.wait(limit_s)
                except subprocess.TimeoutExpired:
                    code = "endless"
                finally:
                    if program.poll() is None:
                        program.kill()
                        program.wait()
            lines = _lines(folder / "played.jsonl")
            if len(lines) < len(plans):
                name = "ends" if code == "endless" else "one_line"
                text = f"the program is {code}: {_tail(folder / 'logs' / 'program.log')}"
                lines.append({"hits": [], "violations": [[name, text]]})
            names = sorted(place.name for place in files.iterdir() if place.name != _DASKS)
            found += [("leaves_nothing", f"{name} in TMPDIR") for name in names]
        may = "|".join(str(plan.rules["may_fail"]) for plan in plans if "may_fail" in plan.rules)
        found += [("one_line", text) for text in raw_errors(folder / "logs", may)]
        if found or any(line["violations"] for line in lines):
            kept = out / f"play-{world['on']}-{plans[0].seed}-logs"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder / "logs", kept, symlinks=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return lines, found


def _lines(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


def _tail(path: Path) -> str:
    return " / ".join(path.read_text(errors="replace").splitlines()[-3:])


def raw_errors(folder: Path, expected: str = "") -> Iterator[str]:
    """Yield the exceptions in logs that passed through code of elasticml.

    Parameters
    ----------
    expected : str
        Pattern of what faults raise anywhere in a process, such as no memory; "" for nothing.
    """
    for path in sorted(folder.rglob("*.log")):
        text = path.read_text(errors="replace")
        for match in _TRACEBACK.finditer(text):
            is_expected = bool(expected and re.search(expected, match[1]))
            # Python makes another exception of a generator's StopIteration.
            wrapped = ("ControlFlowError", "generator raised StopIteration")
            is_users = _RAISING in match[0] or any(name in match[1] for name in wrapped)
            if _OURS in match[0] and not is_users and not is_expected:
                yield f"{path.name}: {match[1][:200]}"


def _end(processes: Sequence[psutil.Process]) -> None:
    """End what a program has left, and wait for all orphans that have ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child in processes or child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, 0)


def _main(folder: Path) -> None:
    """Play the plans in a folder, and write a line of each."""
    # As on the command line: SIGTERM ends the program in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plans = [Plan.from_json(text) for text in json.loads((folder / "plans.json").read_text())]
    with open(folder / "played.jsonl", "a") as file:
        for played in play_all(plans, folder):
            print(json.dumps(played.to_json()), file=file, flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
