"""Frozen behaviour: digests of the stories of a few simulated jobs, kept while code moves.

They notice what no rule of a plan asks for: another order of events, other times, other bits.
Two digests of a story:

control
    Records without the numbers that were computed from data. Left out where a decision depends on
    their bits, so that it is equal on every processor.
values
    All of it, every bit of every float. Compared only on a processor of the class, and with the
    libraries, that the digests were written with.

Rewrite the digests after an intended change of behaviour::

    python -m tests.frozen_behaviour
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from elasticml.training.fingerprint import cpu_class, versions
from tests.play.problems import source_of
from tests.sim.small_jobs import points, record

STORIES: Final = Path(__file__).parent / "frozen" / "stories.json"
#: What depends on the machine that a job runs on.
_MACHINE: Final = {"versions", "cpu", "blas_threads", "pid", "host"}
#: Records of what a job waits for: they follow from the others, and from what counts as a wait.
_LEFT_OUT: Final = {"Waiting", "WaitEnded"}
#: Sentences about what other records say, with numbers that were computed from data.
_SENTENCES: Final = {"unconverged"}
#: Virtual times: sums and products of options, and not of data.
_TIMES: Final = {"t", "start_t", "seconds", "grace_s", "absent_s"}

FAULTS: Final = [
    {"round": 2, "lose": 2, "how": "kill", "phase": "compute"},
    {"round": 4, "return": 2},
    {"round": 6, "lose": 1, "how": "notice", "grace": 1.0},
]
HINGE: Final = {"name": "cocoa", "loss": "hinge", "l2": 1e-2}
EIGHT: Final = {"rounds": 8}
SLOW: Final = {"compute_s": 2e-4, "tick_s": 0.1, "start_s": 0.1}
#: By name: changes of the record, and the world.
RUNS: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "gradient": ({"faults": FAULTS, "stop": EIGHT}, {}),
    "second order": (
        {
            "algorithm": {"name": "batch_gradient", "l2": 1e-2, "optimizer": "lbfgs"},
            "absent": "auto",
            "faults": FAULTS,
            "stop": EIGHT,
        },
        {"jitter": 0.3},
    ),
    "cocoa": (
        {
            "algorithm": HINGE,
            "absent": "reload",
            "holders": 2,
            "policies": [{"name": "shuffle"}],
            "faults": FAULTS,
            "stop": EIGHT,
        },
        {"jitter": 0.5, "slow": {2: 3.0}},
    ),
    "policies": (
        {
            "algorithm": HINGE,
            "absent": "freeze",
            "policies": [{"name": "straggler"}, {"name": "rebalance"}],
            "faults": FAULTS[:2],
            "collective": {"topology": "star"},
            "stop": EIGHT,
        },
        {"slow": {2: 8.0}, "compute_s": 1e-4},
    ),
    "columns": (
        {
            "algorithm": {"name": "primal_cocoa", "loss": "squared", "l1": 0.02, "gather": False},
            "absent": "reload",
            "faults": FAULTS,
            "stop": EIGHT,
        },
        {},
    ),
    "asynchronous": (
        {
            "algorithm": {"name": "async_sgd", "problem": "kmeans", "k": 3, "report_every": 0.25},
            "absent": "reload",
            "stop": {"seconds": 2.0},
            "evaluate": None,
        },
        {
            "compute_s": {"batch": 1e-4, "other": 1e-7},
            "trace": [
                {"at": 0.6, "lose": 2, "away": 0.3},
                {"at": 1.0, "lose": 1, "how": "pause", "away": 0.1},
            ],
        },
    ),
    "marks": (
        {"stop": {"rounds": 300}},
        {**SLOW, "trace": [{"at": 1.0, "reclaim": [0], "grace": 2.0, "away": 0.5}]},
    ),
    "pre-emptions": (
        {"members": {"start": 30, "min": 1}, "evaluate": None, "stop": {"rounds": 30}},
        {
            "costs": {"rows": 6000, "columns": 100},
            "hosts": 4,
            "seed": 1,
            "preemption": {"rate": 300.0, "away": [0.01, 0.1], "count": 3},
        },
    ),
    "all are lost": (
        {"absent": "stall", "faults": [{"round": 3, "lose": 6}], "stop": EIGHT},
        {"trace": [{"at": 5.0, "grant": 6}]},
    ),
}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _control(value: Any, name: str = "") -> Any:
    """Drop from a record what was computed from data; round virtual times."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if name in _TIMES else "float"
    if isinstance(value, Mapping):
        left_out = _MACHINE | _SENTENCES | {"digest"}
        return {k: _control(v, k) for k, v in value.items() if k not in left_out}
    if isinstance(value, list | tuple):
        return [_control(v) for v in value]
    return value


def processor() -> str:
    """Return what the bits of floats depend on."""
    libraries = {k: v for k, v in versions().items() if k != "elasticml"}
    return f"{cpu_class()} {_digest(libraries)}"


def digests(name: str) -> dict[str, str]:
    """Play a job, which must be done at the end; return its story's digests."""
    changes, world = RUNS[name]
    made = record(**changes)
    source: Any = None if "costs" in world else points()
    if name == "columns":
        source = source_of(made["algorithm"], {"rows": 120, "columns": 8, "seed": 0})
    result = simulate(made, source, options=options_from_section(world))
    assert (result.state, result.error) == ("done", None), name
    story = json.loads(json.dumps(result.story, default=str))
    story = [r for r in story if r["event"] not in _LEFT_OUT]
    values = [{k: v for k, v in r.items() if k not in _MACHINE | _SENTENCES} for r in story]
    return {"control": _digest([_control(r) for r in story]), "values": _digest(values)}


#: Makes numba, OpenBLAS and numpy compute as on a much older processor.
_OTHER_PROCESSOR: Final = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
}


def write() -> None:
    """Rewrite the file; leave out the control digests that another processor would not have."""
    made = {name: digests(name) for name in RUNS}
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "print"],
        env={**os.environ, **_OTHER_PROCESSOR},
        stdout=subprocess.PIPE,
        check=True,
    )
    for name, other in json.loads(done.stdout).items():
        if other["control"] != made[name]["control"]:
            del made[name]["control"]
    file = {"processor": processor(), "scenarios": made}
    STORIES.write_text(json.dumps(file, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if "print" in sys.argv:
        print(json.dumps({name: digests(name) for name in RUNS}))
    else:
        write()
