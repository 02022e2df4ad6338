"""What every run of the bench ``goodput`` shares: the data, the trace of faults, and the logs.

A run is a folder with append-only logs. Its clock starts with the first line of ``progress.jsonl``;
before that come imports, reading and compiling.

``progress.jsonl``
    Lines with ``t`` (Unix seconds), ``examples`` (examples that the model has been trained on) and
    ``loss``.
``seen-*.bin``
    The numbers of the examples of each step, written by the process that computed it. A peer that
    writes them needs no ``examples`` in its progress lines.
``faults.jsonl``
    Kills and returns as they happened.
``notes.jsonl``
    What the peer did: restarts, errors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Worker processes of every peer, one thread each.
WORKERS = 4
#: Rows and columns of the linear problem, and rows of a row group of its file.
ROWS, COLUMNS, GROUP_ROWS = 600_000, 100, 37_500
#: l2 penalty of the linear problem, in the mean form; small, so that L-BFGS needs many passes.
L2 = 1e-8
#: Examples of the network's training data, of a step on one worker, and steps between snapshots.
IMAGES, BATCH, SNAPSHOT_STEPS = 60_000, 32, 100
#: Learning rate of one worker; ``world`` workers use its product with the root of ``world``.
RATE, MOMENTUM = 0.01, 0.9
#: Mean and deviation of the pixels.
PIXELS = (72.94, 90.02)
_HEAD = struct.Struct("<dqii")


# --- data -----------------------------------------------------------------------------------


def write_data(folder: Path, source: Path) -> None:
    """Write both data sets, unless they are there.

    Parameters
    ----------
    folder : path
        Gets ``images.npy`` (float32, not normalised), ``labels.npy``, and
        ``linear/train.parquet``, ``linear/x.npy`` and ``linear/y.npy``.
    source : path
        Folder of the IDX files of Fashion-MNIST.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "labels.npy").exists():
        with gzip.open(source / "train-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16)
        with gzip.open(source / "train-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)
        np.save(folder / "images.npy", pixels.reshape(IMAGES, 784).astype(np.float32))
        np.save(folder / "labels.npy", labels.astype(np.int64))
    if not (folder / "linear" / "complete").exists():
        _write_linear(folder / "linear")


def _write_linear(folder: Path) -> None:
    """Write rows of correlated columns whose scales differ by a factor of 1000."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(19)
    mixing = rng.standard_normal((COLUMNS, COLUMNS)) / COLUMNS**0.5 + np.eye(COLUMNS)
    scale = np.logspace(0.0, -3.0, COLUMNS)
    weights = rng.standard_normal(COLUMNS) / scale / COLUMNS**0.5
    names = [*(f"x{k:03d}" for k in range(COLUMNS)), "y"]
    schema = pa.schema([(name, pa.float32()) for name in names])
    X = np.empty((ROWS, COLUMNS), np.float32)
    with pq.ParquetWriter(folder / "train.parquet", schema, compression="none") as writer:
        for start in range(0, ROWS, GROUP_ROWS):
            x = (rng.standard_normal((GROUP_ROWS, COLUMNS)) @ mixing * scale).astype(np.float32)
            margin = x.astype(np.float64) @ weights + rng.standard_normal(GROUP_ROWS)
            y = (margin > 0.0).astype(np.float32)
            arrays = [pa.array(column) for column in (*x.T, y)]
            writer.write_table(pa.table(arrays, schema=schema), row_group_size=GROUP_ROWS)
            X[start : start + GROUP_ROWS] = x
    np.save(folder / "x.npy", X)
    np.save(
        folder / "y.npy", pq.read_table(folder / "train.parquet", columns=["y"])["y"].to_numpy()
    )
    (folder / "complete").touch()


# --- logs -----------------------------------------------------------------------------------


def append(folder: Path, name: str, /, **line: Any) -> None:
    """Append a line; lines of several processes do not mix."""
    text = json.dumps({"t": time.time(), **line}) + "\n"
    descriptor = os.open(folder / name, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a log; a last line that was cut off by a kill is left out."""
    path = folder / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


class Seen:
    """The examples that this process computes on, as a file.

    Parameters
    ----------
    folder : path
    start : int, optional
        The step with which this process starts after a restart from a snapshot: steps from this one
        on that were computed before are void.
    """

    def __init__(self, folder: Path, start: int | None = None) -> None:
        path = folder / f"seen-{os.getpid()}-{time.time_ns()}.bin"
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        if start is not None:
            os.write(self._file, _HEAD.pack(time.time(), start, 0, -1))

    def add(self, step: int, epoch: int, ids: np.ndarray) -> None:
        """Write the examples of a step when the model has taken it."""
        body = np.ascontiguousarray(ids, np.int32)
        os.write(self._file, _HEAD.pack(time.time(), step, epoch, body.size) + body.tobytes())


def read_seen(path: Path) -> Iterator[tuple[float, int, int, np.ndarray | None]]:
    """Yield time, step, epoch and examples; None for the start of a process."""
    data, at = path.read_bytes(), 0
    while at + _HEAD.size <= len(data):
        t, step, epoch, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        size = 4 * max(0, count)
        if at + size > len(data):
            return
        yield t, step, epoch, None if count < 0 else np.frombuffer(data[at : at + size], np.int32)
        at += size


# --- faults ---------------------------------------------------------------------------------


class Run:
    """A run of one peer, as the command line describes it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder: Path = arguments.folder
        self.data: Path = arguments.data
        self.seconds: float = arguments.seconds
        self.trace: list[tuple[float, int]] = json.loads(arguments.trace)
        self.arguments = arguments
        self.over = threading.Event()

    @classmethod
    def from_command_line(cls, doc: str | None, **options: Sequence[str]) -> Run:
        """Read the options; ``options`` are further ones with their choices."""
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--seconds", type=float, default=45.0, help="from the first progress")
        parser.add_argument("--trace", default="[]", help="[[seconds, workers that remain], ...]")
        for name, choices in options.items():
            parser.add_argument(f"--{name}", choices=choices, default=choices[0])
        return cls(parser.parse_args())

    def progress(self, examples: int | None = None, loss: float | None = None) -> None:
        """Write a line of progress."""
        append(self.folder, "progress.jsonl", examples=examples, loss=loss)

    def note(self, what: str, **more: Any) -> None:
        """Write what the peer did."""
        append(self.folder, "notes.jsonl", what=what, **more)

    def start_s(self) -> float | None:
        """Return the time of the first line of progress, in Unix seconds."""
        first = next(iter(lines(self.folder, "progress.jsonl")), None)
        return None if first is None else float(first["t"])

    def disturb(
        self, kill: Callable[[list[int]], Any], bring_back: Callable[[list[int]], Any]
    ) -> threading.Thread:
        """Play the trace in a thread; see :meth:`play`."""
        thread = threading.Thread(target=self.play, args=(kill, bring_back), daemon=True)
        thread.start()
        return thread

    def play(
        self, kill: Callable[[list[int]], Any], bring_back: Callable[[list[int]], Any]
    ) -> None:
        """Play the trace, and set ``over`` at the end.

        Parameters
        ----------
        kill, bring_back : callable of a list of int
            SIGKILL the workers in these places, or start workers there; places are 0 to 3.
        """
        rng, here, away = random.Random(19), list(range(WORKERS)), list[int]()
        while (start_s := self.start_s()) is None:
            if self.over.wait(0.05):
                return
        for at_s, remain in self.trace:
            if self.over.wait(max(0.0, start_s + at_s - time.time())):
                return
            if remain < len(here):
                places = rng.sample(sorted(here), len(here) - remain)
                here, away = [k for k in here if k not in places], away + places
                self._do("kill", kill, places)
            elif remain > len(here):
                # Who went first returns first.
                places, away = away[: remain - len(here)], away[remain - len(here) :]
                here += places
                self._do("return", bring_back, places)
        if not self.over.wait(max(0.0, start_s + self.seconds - time.time())):
            self.over.set()

    def _do(self, what: str, do: Callable[[list[int]], Any], places: list[int]) -> None:
        append(self.folder, "faults.jsonl", what=what, places=places)
        try:
            do(places)
        except Exception as error:
            self.note(f"{what} failed", error=f"{type(error).__name__}: {error}"[:500])


def kill_tree(pids: Iterable[int]) -> None:
    """SIGKILL processes and all their descendants."""
    import psutil

    doomed: list[psutil.Process] = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            doomed += [*process.children(recursive=True), process]
        except psutil.NoSuchProcess:
            continue
    # Stopped first, so that none starts another one meanwhile.
    for do in (psutil.Process.suspend, psutil.Process.kill):
        for process in doomed:
            try:
                do(process)
            except psutil.NoSuchProcess:
                continue


if __name__ == "__main__":
    write_data(*map(Path, sys.argv[1:]))
