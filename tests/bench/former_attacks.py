"""Attacks that earlier versions did not stand: ``python tests/bench/former_attacks.py``.

They use only what earlier versions have, too. To see what one of them does::

    git worktree add ../before aea8b8e4
    PYTHONPATH=../before python tests/bench/former_attacks.py

Each attack is a process of its own with at most 30 s. It prints what came out, its seconds and the
most memory that it took. The exit code is 1 if an attack has an effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 30.0
#: More than this is an effect: of seconds, and of MiB above an empty process.
SECONDS_MAX, MIB_MAX = 6.0, 200.0
SECRET = b"-----BEGIN PRIVATE KEY-----" * 8
_JOB = "algorithm: {name: batch_gradient}\n"
_NINE = "[" + ", ".join(["*a{0}"] * 9) + "]"
_ALIASES = ", ".join(f"&a{k + 1} {_NINE.format(k)}" for k in range(6))
_NINES = f"&a0 [{', '.join('x' * 9)}], {_ALIASES}"
_WIDE = "&x [" + "y, " * 10**4 + "y], " + "*x, " * 400 + "*x"
JOB_FILES = {
    "YAML aliases of aliases": f"{_JOB}data: {{format: [{_NINES}]}}\n",
    "YAML wide aliases": f"{_JOB}data: {{format: [{_WIDE}]}}\n",
    "YAML nested 5,000 deep": "a: " + "[" * 5000 + "]" * 5000 + "\n",
    "YAML number of 6,000 digits": "seed: " + "9" * 6000 + "\n",
    "YAML 30 February": "name: 2024-02-30\n",
}


def read_job_file(text: str) -> str:
    """Give a job file to the command line."""
    from elasticml.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(text)
        try:
            main(["run", str(path)])
        except SystemExit as end:
            return "refused" if end.code == 2 else f"EFFECT: exit code {end.code}"
    return "EFFECT: accepted"


def read_fifo(_: str) -> str:
    """Read a folder of images that has a FIFO."""
    import elasticml as em

    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/a")
        os.mkfifo(f"{folder}/a/x.png")
        return refused(lambda: em.read_images(folder))


def read_complex(_: str) -> str:
    """Give complex numbers, whose imaginary part was lost."""
    import numpy as np

    import elasticml as em

    return refused(lambda: em.from_arrays(np.full((4, 2), 1 + 2j), np.ones(4)))


def refused(read: Any) -> str:
    """Return whether a reader raises an error of this package."""
    from elasticml.data.source import load_all
    from elasticml.errors import ElasticmlError

    try:
        load_all(read())
    except ElasticmlError:
        return "refused"
    except Exception as error:
        return f"EFFECT: raw {type(error).__name__}"
    return "EFFECT: accepted"


def open_link(_: str) -> str:
    """Offer a private file as shared memory; look for its bytes in the answer."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(SECRET)
        file.flush()
        offer = {"pid": os.getpid(), "fd": file.fileno(), "life": bytes(16).hex()}
        answer = str(asyncio.run(linked({"shared": offer}, b"")))
    numbers = [str(n) for k in range(8) for n in struct.unpack_from("<6q", SECRET, k)]
    seen = sorted({n for n in numbers if n in answer})
    return f"EFFECT: {len(seen)} numbers of the key's bytes" if seen else "nothing of the file"


def long_prefix(_: str) -> str:
    """Send a header that announces a prefix of nearly 4 GiB; look at the address space."""
    from elasticml.collective.frames import MAGIC, VERSION

    header = struct.pack("<4sBBHIIQQ", MAGIC, VERSION, 1, 0, 0, 2**32 - 16, 0, 0)
    before = peak_mib()
    asyncio.run(linked({}, header))
    grown = peak_mib() - before
    return f"EFFECT: {grown:.0f} MiB allocated" if grown > 1000.0 else "no memory"


def peak_mib() -> float:
    """Return the most address space that this process has had."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmPeak:")[2].split()[0]) / 1024.0


async def linked(changes: dict[str, Any], raw: bytes) -> Any:
    """Open a link to a scheduler, send raw bytes, and return the answer to the opening."""
    from distributed import Scheduler
    from distributed.comm import connect

    from elasticml.collective.dask_transport import transport_of
    from elasticml.collective.frames import VERSION

    message = {"op": "em_link", "hello": "{}", "transport": "stream", "protocol": VERSION}
    async with Scheduler(dashboard=False, port=0, host="127.0.0.1") as scheduler:

        async def on_link(link: Any) -> None:
            await link.receive(lambda header, prefix: memoryview(b""))

        transport_of(scheduler).listen(on_link)
        comm = await connect(scheduler.address, timeout=5)
        await comm.write({**message, **changes})
        answer = await comm.read()
        if raw:
            await comm.stream.write(raw)
            await asyncio.sleep(2.0)
        comm.abort()
    return answer


def lose_most(_: str) -> str:
    """Kill 3 of 4 members of gradient descent for good; evaluate the model that is returned."""
    import numpy as np

    import elasticml as em
    from elasticml.sim.preemption_trace import options_from_section
    from elasticml.sim.simulation import simulate

    rng = np.random.default_rng(20261126)
    X, truth = rng.normal(size=(3000, 20)), rng.normal(size=20)
    y = np.sign(X @ truth + rng.normal(size=3000))
    source = em.from_arrays(X, y)
    record = {
        **{"version": 1, "job": "sim", "name": "away", "chunk_bytes": 768, "seed": 0},
        "algorithm": {"name": "batch_gradient", "l2": 1e-6, "optimizer": "gd"},
        **{"absent": "taylor", "stop": {"rounds": 60}, "members": {"start": 4, "min": 1}},
        "faults": [{"round": 3, "lose": 3}],
        **{"collective": {"topology": "tree", "fan_out": 2}, "evaluate": {"every": 1}},
        "data": source.spec(),
    }
    result = simulate(record, source, options=options_from_section(None))
    loss = float(np.logaddexp(0.0, -y * (X @ np.ravel(result.arrays["coef"])[:20])).mean())
    text = f"loss {loss:.4g} with {max(r['absent_examples'] for r in result.rows)} of 3,000 absent"
    return f"EFFECT: {text}" if loss > np.log(2.0) else text


ATTACKS: dict[str, tuple[Any, str]] = {
    "a private file offered as shared memory": (open_link, ""),
    "a header with a prefix of 4 GiB": (long_prefix, ""),
    "a FIFO named x.png": (read_fifo, ""),
    "complex numbers": (read_complex, ""),
    "3 of 4 members killed for good": (lose_most, ""),
    **{name: (read_job_file, text) for name, text in JOB_FILES.items()},
}


def run(name: str) -> str:
    """Run an attack in a process of its own; return what came out."""
    begin_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"EFFECT: not over after {LIMIT_S:g} s"
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return f"EFFECT: status {done.returncode}: {done.stderr[-200:]!r}"
    text = f"{found['text']}; {found['cpu_s']:.1f} s of CPU, {found['mib']:.0f} MiB"
    is_costly = found["cpu_s"] > SECONDS_MAX or found["mib"] > MIB_MAX
    text = f"EFFECT: {text}" if is_costly and "EFFECT" not in text else text
    return f"{text}, {time.monotonic() - begin_s:.1f} s"


def main() -> int:
    """Run one attack here, or all."""
    if len(sys.argv) > 1:
        import elasticml

        attack, text = ATTACKS[sys.argv[1]]
        cpu_s = time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome = attack(text)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu_s = time.process_time() - cpu_s
        found = {"text": outcome, "cpu_s": cpu_s, "mib": (after - before) / 1024.0}
        print(json.dumps({**found, "of": elasticml.__file__}))
        return 0
    outcomes = {name: run(name) for name in ATTACKS}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int(any("EFFECT" in outcome for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
