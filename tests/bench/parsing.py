"""How fast svmlight text is read: MB a second, beside scikit-learn.

    python -m tests.bench parsing [--mb 100] [--rounds 5]

Two files: ``w8a`` repeated (short rows of ones), and a generated wide one (200 of 1,000,000 columns
a row, values as Python prints them, 15 to 17 digits). scikit-learn's ``load_svmlight_file`` and
elasticml take turns on the same bytes, in a random order for each round; times are CPU times (of
all threads), so that other load has little influence.

parse     bytes of the file to labels, row pointers, columns and values
read      the same, then chunks of 1 MiB, checked and hashed: all that a member does
cached    the chunks of the same blocks from the cache, digests checked
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.source import listed_once, read_block
from tests.bench import harness

MB = 10**6
CHUNK_BYTES = 2**20


def w8a_repeated(path, nbytes):
    """Write ``w8a`` repeatedly."""
    text = gzip.decompress((harness.DATA / "w8a" / "w8a.svm.gz").read_bytes())
    path.write_bytes(text * -(-nbytes // len(text)))


def wide(path, nbytes, seed=0):
    """Write rows of normal values in random columns."""
    rng = np.random.default_rng(seed)
    with path.open("w") as out:
        while out.tell() < nbytes:
            columns = np.unique(rng.integers(1, 1_000_001, 200)).tolist()
            values = rng.standard_normal(len(columns)).tolist()
            row = " ".join(f"{j}:{v!r}" for j, v in zip(columns, values, strict=True))
            out.write(f"{rng.choice([-1, 1])} {row}\n")


def over_blocks(source, work, n_threads):
    """Call ``work`` with every block's number, in this many threads."""
    blocks = [block.index for block in source.blocks()]
    if n_threads == 1:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, blocks))


def ways_of(path, cache):
    """Return what is timed: a method and a number of threads to a call without arguments."""
    source = listed_once(read_svmlight(str(path), zero_based=False))

    def parse(block):
        for _ in source.read_parts(block, source.files.parts(block)):
            pass

    def read(block):
        source.read(block, CHUNK_BYTES, 1)

    def cached(block):
        read_block(source, block, CHUNK_BYTES, 1, cache)

    ways = {("scikit-learn", 1): lambda: load_svmlight_file(str(path), zero_based=False)}
    for name, work in (("parse", parse), ("read", read), ("cached", cached)):
        for n_threads in (1, 2):
            ways[name, n_threads] = lambda w=work, n=n_threads: over_blocks(source, w, n)
    return ways


def first_reads(path, cache, rounds):
    """Return seconds for one block: without a cache, read and stored, and from the cache."""
    source = read_svmlight(str(path), zero_based=False)
    times = {"read": [], "read and stored": [], "cached": []}
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for name, setting in (("read", False), ("read and stored", cache), ("cached", cache)):
            start = time.process_time()
            read_block(source, 0, CHUNK_BYTES, 1, setting)
            times[name].append(time.process_time() - start)
    return harness.medians(times)


def timed(function):
    """Return processor seconds and seconds of a call."""
    wall, own = time.perf_counter(), time.process_time()
    function()
    return time.process_time() - own, time.perf_counter() - wall


def measure(name, path, rounds, rng):
    """Print one file's table."""
    mb = path.stat().st_size / MB
    cache = path.with_suffix(".cache")
    ways = ways_of(path, cache)
    for (way, _), call in ways.items():
        if way != "scikit-learn":
            call()  # compiles, and fills the cache
    timings = {key: lambda call=call: timed(call) for key, call in ways.items()}
    times = harness.interleaved(timings, rounds, rng=rng)
    print(f"\n{name}: {mb:.0f} MB, medians of {rounds}; load average {os.getloadavg()[0]:.0f}")
    columns = ("MB/s a core", "MB/s", "x scikit-learn a core")
    harness.head("file", "way", "threads", *columns, keys=3)
    own = harness.medians({key: [a for a, _ in some] for key, some in times.items()})
    wall = harness.medians({key: [b for _, b in some] for key, some in times.items()})
    for key, seconds in own.items():
        against = own["scikit-learn", 1] / seconds
        harness.row(name, *key, f"{mb / seconds:.0f}", f"{mb / wall[key]:.0f}", f"{against:.1f}")
    for way, seconds in first_reads(path, cache, rounds).items():
        print(f"one block, {way}: {1e3 * seconds:.1f} ms")


def main(*, mb: int = 100, rounds: int = 5):
    """Print both tables."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("w8a repeated", w8a_repeated), ("wide", wide)):
            path = Path(folder) / f"{name.split()[0]}.svm"
            write(path, mb * MB)
            measure(name, path, rounds, rng)
