"""Frozen behaviour: digests of what jobs did, kept as test data while code moves.

While the tests of ``tests/sim`` run, every simulated job that ends is looked up by its
record, its options and its data, and its story is compared with the digest in
``tests/frozen/stories.json``. So the comparison covers every scenario, costs no run of its own, and
does not depend on which tests are selected.

Two digests of a simulated story:

control
    Records without the numbers that were computed from data. Equal on every processor.
values
    All of it, every bit of every float. Compared only on a processor of the class, and with the
    libraries, that the digests were written with.

Rewrite the digests after an intended change of behaviour::

    python -m tests.frozen_behaviour

It runs the tests twice, the second time as on an older processor; what differs then is compared
only on a processor like this one. Digests that need PyTorch stay as they
are where it is missing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis

from elasticml.sim.world import World
from elasticml.specification.simulator import WorldOptions
from elasticml.training.fingerprint import cpu_class, versions

FOLDER = Path(__file__).parent / "frozen"
STORIES = FOLDER / "stories.json"
#: Names a folder: digests are written there, and nothing is compared.
WRITES = "ELASTICML_FREEZE"
#: What depends on the machine that a job runs on.
_MACHINE = {"versions", "cpu", "blas_threads", "pid", "host"}
#: Records of what a job waits for: they follow from the others, and from what counts as a wait.
_LEFT_OUT = {"Waiting", "WaitEnded"}
#: Sentences about what other records say, with numbers that were computed from data.
_SENTENCES = {"unconverged"}
#: Virtual times: sums and products of options, and not of data.
_TIMES = {"t", "start_t", "seconds", "grace_s", "absent_s"}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _control(value: Any, name: str = "") -> Any:
    """Drop from a record what was computed from data; round virtual times."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if name in _TIMES else "float"
    if isinstance(value, Mapping):
        return {
            k: _control(v, k)
            for k, v in value.items()
            if k not in _MACHINE | _SENTENCES | {"digest"}
        }
    if isinstance(value, list | tuple):
        return [_control(v) for v in value]
    return value


def _values(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in _MACHINE | _SENTENCES}


def processor() -> str:
    """Return what the bits of floats depend on."""
    libraries = {k: v for k, v in versions().items() if k != "elasticml"}
    return f"{cpu_class()} {_digest(libraries)}"


def scenario_of(world: World) -> str:
    """Identify a job and its world by their content."""
    fingerprint = getattr(world.session.source, "fingerprint", lambda: "")()
    record = world.session.record.json
    return _digest(
        [record, repr(world.environment.options), len(world.session.source.blocks()), fingerprint]
    )


def is_frozen(options: WorldOptions) -> bool:
    """Whether a world is the same in each run: no measured times, no new draws."""
    return options.compute_s != "measured" and not hypothesis.currently_in_test_context()


class Digests:
    """One file of digests: compared with, or rewritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        #: Scenarios that were compared in this process.
        self.compared: set[str] = set()
        self._folder = os.environ.get(WRITES)
        self._written: dict[str, Any] = {}
        if path.exists():
            self.known = json.loads(path.read_text())

    def note(self, key: str, entry: dict[str, str]) -> None:
        """Compare a scenario's result, or record it."""
        if self._folder is not None:
            former = self._written.setdefault(key, entry)
            if former != entry:
                self._written[key] = None  # the name does not distinguish these scenarios
            self._save(Path(self._folder))
            return
        frozen = self.known.get("scenarios", {}).get(key)
        if frozen is None:
            return  # a scenario that is newer than the digests
        self.compared.add(key)
        names = ["control"] if frozen.get("only_here") is None else []
        if self.known["processor"] == processor():
            names = ["control", "values"]
        for name in names:
            if name in frozen and frozen[name] != entry[name]:
                raise AssertionError(
                    f"frozen behaviour has changed: {name} digest of scenario {key} is "
                    f"{entry[name]}, was {frozen[name]} ({frozen.get('title')}); if the change is "
                    "meant, run python -m tests.frozen_behaviour"
                )

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.path.name).write_text(json.dumps(self._written))


stories = Digests(STORIES)


def is_writing() -> bool:
    """Return whether digests are being rewritten."""
    return WRITES in os.environ


def watch_simulations() -> None:
    """Compare every simulated job of this process that ends."""
    run = World.run
    if run.__name__ == "watched":
        return

    def watched(world: World) -> Iterator[None]:
        key = scenario_of(world) if is_frozen(world.environment.options) else None
        yield from run(world)
        session = world.session
        if key is not None and session.state != "cancelled":
            story = json.loads(json.dumps(list(session.journal.story), default=str))
            stories.note(key, _entry(story, _title(session.record.json)))

    World.run = watched  # type: ignore[method-assign]


def _title(record: Mapping[str, Any]) -> str:
    faults = json.dumps(record.get("faults") or [])
    return f"{record['algorithm'].get('name')} absent {record.get('absent')} faults {faults}"[:120]


def _entry(story: list[dict[str, Any]], title: str) -> dict[str, str]:
    story = [record for record in story if record["event"] not in _LEFT_OUT]
    control = [_control(record) for record in story]
    values = [_values(record) for record in story]
    return {"control": _digest(control), "values": _digest(values), "title": title}


# --- writing ----------------------------------------------------------------------------------

_SUITES = ("tests/sim", "tests/test_frozen_behaviour.py")
#: Makes numba, OpenBLAS and numpy compute as on a much older processor.
_OTHER_PROCESSOR = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
}


def _run(folder: Path, **more: str) -> dict[str, Any]:
    environment = {**os.environ, WRITES: str(folder), **more}
    command = [sys.executable, "-m", "pytest", "-q", *_SUITES]
    subprocess.run(command, env=environment, check=False)
    made: dict[str, Any] = json.loads((folder / STORIES.name).read_text())
    return made


#: Algorithms whose tests are skipped without PyTorch.
_NEED_TORCH = ("local_sgd ",)


def without_torch(former: Mapping[str, Any]) -> dict[str, Any]:
    """Return the former digests that only a machine with PyTorch can make.

    Made with other libraries or on another processor, bits of floats are not compared.
    """
    kept = {
        key: entry
        for key, entry in former["scenarios"].items()
        if entry.get("title", "").startswith(_NEED_TORCH)
    }
    if former["processor"] == processor():
        return kept
    return {
        key: {name: value for name, value in entry.items() if name != "values"}
        for key, entry in kept.items()
    }


def renewed(
    former: Mapping[str, Any], first: Mapping[str, Any], other: Mapping[str, Any], has_torch: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the digests to keep, and sentences about those that are not this run's.

    Parameters
    ----------
    former : mapping
        The present file.
    first, other : mapping
        The scenarios of the two runs.
    """
    made: dict[str, Any] = {}
    for key, entry in first.items():
        again = other.get(key)
        if entry is None or again is None:
            continue
        if again["control"] == entry["control"]:
            made[key] = entry
        elif "title" in entry:
            made[key] = {**entry, "only_here": True}
    kept = {} if has_torch else without_torch(former)
    kept = {key: entry for key, entry in kept.items() if key not in made}
    gone = former["scenarios"].keys() - made.keys() - kept.keys()
    notes = [f"{sum('only_here' in entry for entry in made.values())} for this processor"]
    notes.append(f"{len(first.keys() - made.keys())} left out")
    if kept:
        notes.append(f"{len(kept)} kept as they were: there is no PyTorch here to make them")
    if gone:
        notes.append(f"{len(gone)} deleted that no test makes now: {', '.join(sorted(gone))}")
    return made | kept, notes


def write(scratch: Path) -> None:
    """Rewrite the file."""
    first = _run(scratch / "first")
    other = _run(scratch / "other", **_OTHER_PROCESSOR)
    has_torch = importlib.util.find_spec("torch") is not None
    former = json.loads(STORIES.read_text())
    scenarios, notes = renewed(former, first, other, has_torch)
    file = {"processor": processor(), "scenarios": scenarios}
    STORIES.write_text(json.dumps(file, indent=0, sort_keys=True) + "\n")
    print(f"{STORIES.name}: {len(scenarios)} digests, {'; '.join(notes)}")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
