"""Damaged and forged files of every kind are read, or refused in a line that names them.

``ELASTICML_DAMAGED_FILES=5000 .venv/bin/pytest tests/property/test_damaged_files.py`` reads that
many; ``ELASTICML_SEED`` draws others. A test's name has the kind and the seed of its files, and its
failure the number of the file.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
import yaml
from PIL import Image

import elasticml as em
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.data.dataset_stats import merge_summaries, summarise
from elasticml.data.readers.chunk_folder import convert, read_chunks
from elasticml.data.readers.npz import read_npz
from elasticml.data.source import Source, survey_all
from elasticml.data.storage.block_files import map_block, write_block
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_spec import JobSpec
from elasticml.jobs.warm_start import load_warm_start
from elasticml.models.file_format import HEADER
from elasticml.models.loading import load_model
from elasticml.models.model import LinearModel, NetworkModel
from elasticml.runtime.checkpoints import checkpoint_format
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from elasticml.specification.algorithms import CoCoA
from tests.unit.data.readers.test_reader_contract import FORMATS, TEXTS, X, Y

Forge = Callable[[bytes, np.random.Generator], bytes]

FILES = int(os.environ.get("ELASTICML_DAMAGED_FILES", 0))
SEED = int(os.environ.get("ELASTICML_SEED", 0))
#: Of the processor: a busy machine makes nothing hang. Fifteen times as many by the clock.
SECONDS_MAX = 20.0
MEMORY_KIB_MAX = 2**19
MESSAGE_CHARACTERS_MAX = 1500
#: Wider chunks are not multiplied: their model alone would fill the memory.
COLUMNS_MAX = 10_000_000
#: Numbers that overwrite sizes, and words that overwrite text.
NUMBERS = (0, 1, -1, 127, 255, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, -(2**63), 10**9)
WORDS = (
    *(b"nan", b"-inf", b"1e999", b"9" * 5000, b"-1", b"\0", b"\xff\xfe", b"\r", b",", b"\t", b":"),
    *(b'"', b"#", b"\n", b"> ", b"&c", b"*c", b"[[[[", b"{", b"2024-13-45", b"a" * 100_000),
    *(b"qid:3", b"1:1:1", b"4294967296:1", b"!!python/object/apply:planted_code.net []"),
)
#: Code that the header of a network names.
CODE = ("planted_code:net", "os:system", "builtins:exec", "subprocess:call", "planted_code:x")
#: Values that take the place of another in a JSON record.
VALUES = (None, [], {}, "x", -1, 2**70, 1e308, True, [[]], {"a": 1}, "planted_code:net", [1])


class Planted:
    """Calls the planted module when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('planted_code').net()",)


def use(source: Source) -> None:
    """Read all blocks, and compute on the chunks."""
    source.fingerprint()
    ready = survey_all(source)
    for block in ready.blocks():
        chunks, summary = ready.read(block.index, 4096, 2)
        for chunk in chunks:
            chunk.load()
            columns = max(summary.layout.n_columns, chunk.layout.n_columns)
            if columns > COLUMNS_MAX or not chunk.n_rows:
                continue
            layout = chunk.layout if chunk.layout.kind == "sequence" else summary.layout
            make_forward(layout, np.ones(columns))(chunk, np.empty(chunk.n_rows))
            make_adjoint(layout, columns).add(chunk, np.ones(chunk.n_rows))


# --- forging: the content is wrong, and all sizes and digests are right ---------------------------


def change_a_value(record: dict[str, Any], rng: np.random.Generator) -> None:
    parts: list[Any] = [record, *(v for v in record.values() if isinstance(v, dict | list))]
    parts += [v for part in parts[1:] if isinstance(part, dict) for v in part.values()]
    part = [p for p in parts if isinstance(p, dict | list) and p]
    at = part[int(rng.integers(len(part)))]
    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
    at[keys[int(rng.integers(len(keys)))]] = VALUES[int(rng.integers(len(VALUES)))]


def forge_arrays(content: bytes, rng: np.random.Generator) -> bytes:
    """Change an array of an archive, or a value of a model's header."""
    with np.load(io.BytesIO(content)) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    name = str(rng.choice(list(arrays)))
    array = arrays[name]
    if name == HEADER or (HEADER in arrays and rng.random() < 0.6):
        header = json.loads(bytes(arrays[HEADER]))
        if header["kind"] == "network" and rng.random() < 0.6:
            section = header["settings"]["algorithm"]
            section[str(rng.choice(["model", "loss"]))] = str(rng.choice(CODE))
            section["model_options"] = {"command": "true"} if rng.random() < 0.5 else {}
        else:
            change_a_value(header, rng)
        name, array = HEADER, np.frombuffer(json.dumps(header).encode(), np.uint8)
    else:
        match int(rng.integers(7)):
            case 0:
                array = array.astype(rng.choice(["c16", "f4", "i8", "u8", "S8", "U8", "?"]))
            case 1:
                array = array[: len(array) // 2] if array.ndim else array
            case 2:
                array = array.reshape(-1, 1)[:, [0, 0]]
            case 3:
                array = np.array([Planted()] * 9, object)
            case 4:
                array = np.array(array.ravel()[0])
            case _:
                array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
                hostile = (
                    [*NUMBERS] if array.dtype.kind == "i" else [np.inf, np.nan, 1e308, -1e-300]
                )
                array.reshape(-1)[rng.integers(array.size)] = rng.choice(hostile)
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, **{**arrays, name: array})
    return out.getvalue()


def forge_parquet(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a column's type, its values or its name."""
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    at, n = int(rng.integers(table.num_columns)), table.num_rows
    columns = (
        table.column(at),
        pyarrow.nulls(n),
        pyarrow.array(rng.choice([np.nan, np.inf, 1e308, 5e-324, 2.0**63], n)),
        pyarrow.array([[1.0]] * n),
        pyarrow.array([{"a": 1}] * n),
        table.column(at).combine_chunks().dictionary_encode(),
        pyarrow.array(rng.choice([2**63 - 1, -(2**63), 0], n), "timestamp[us]"),
        pyarrow.array([WORDS[int(k)] for k in rng.integers(6, size=n)], pyarrow.binary()),
    )
    name = str(rng.choice([table.column_names[at], "y", "", "a" * 500, "\x00"]))
    out = io.BytesIO()
    column = columns[int(rng.integers(len(columns)))]
    pyarrow.parquet.write_table(table.set_column(at, name, column), out, row_group_size=25)
    return out.getvalue()


def forge_chunks(content: bytes, rng: np.random.Generator) -> bytes:
    """Change integers of a body."""
    path = Path(f"/dev/shm/damaged-{os.getpid()}.chunks")
    try:
        path.write_bytes(content)
        chunks, _ = map_block(path)
        body = bytearray(chunks[0].body)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(2, min(256, len(body)) // 4)) * 4
            value = int(rng.choice(NUMBERS)) & (2**32 - 1)
            body[at : at + 4] = value.to_bytes(4, "little")
        with suppress(DataError):  # what the header says is checked when the chunk is made
            changed = [Chunk(chunks[0].id, memoryview(bytes(body))), *chunks[1:]]
            write_block(path, (changed, summarise(0, chunks, chunks[0].layout)))
        return path.read_bytes()
    finally:
        path.unlink()


def forge_checkpoint(content: bytes, rng: np.random.Generator) -> bytes:
    values, arrays = checkpoint_format.decode(content, "it")
    change_a_value(values, rng)
    return checkpoint_format.encode(values, arrays)


def forge_job(content: bytes, rng: np.random.Generator) -> bytes:
    record = yaml.safe_load(content)
    change_a_value(record, rng)
    # A job file may name the user's own code.
    return content if "planted_code" in str(record) else yaml.safe_dump(record).encode()


# --- good files -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kind of files: how good ones are written and read, and how one is forged."""

    write: Callable[[Path], None]
    read: Callable[[Path], None]
    forge: Forge | None = None


def write_archive(folder: Path, is_sparse: bool) -> None:
    S = scipy.sparse.csr_array(X.astype(float))
    parts = {"data": S.data, "indices": S.indices, "indptr": S.indptr, "shape": np.array(S.shape)}
    np.savez_compressed(folder / "a.npz", y=Y, **(parts if is_sparse else {"X": X}))


def write_images(folder: Path) -> None:
    for k, suffix in enumerate(("png", "jpg", "bmp", "gif", "tif", "webp", "ppm") * 2):
        (folder / "ab"[k % 2]).mkdir(exist_ok=True)
        pixels = np.random.default_rng(k).integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[k % 2] / f"{k}.{suffix}")


def write_chunks(folder: Path) -> None:
    with (folder.parent / "a.svm").open("wb") as file:
        file.write(FORMATS["svmlight"].content())
    convert(em.read_svmlight(file.name), folder / "out", chunk_bytes=2048)


def facts_of_rows() -> Any:
    return merge_summaries([em.from_arrays(np.zeros((9, 7)), np.arange(9) % 3).read(0, None, 1)[1]])


def write_model(folder: Path) -> None:
    LinearModel({"coef": np.ones((1, 7)), "intercept": np.zeros(1)}, [0.0, 1.0]).save(
        folder / "model.npz"
    )


def write_network(folder: Path) -> None:
    arrays = {"weight": np.ones((3, 7)), "bias": np.zeros(3)}
    NetworkModel(arrays, {"name": "local_sgd"}, facts_of_rows()).save(folder / "model.npz")


def read_model(folder: Path) -> None:
    model = load_model(folder / "model.npz")
    with suppress(ConfigError):  # rows of another width, or no PyTorch here
        model.predict(np.zeros((3, 7)))
    if not isinstance(model, NetworkModel):
        load_warm_start(folder / "model.npz", CoCoA(scale="none"))


def write_checkpoint(folder: Path) -> None:
    values = {
        **{"attempt": 1, "number": 1, "round": 3, "seconds": 1.5, "values": {"step": 2.0}},
        **{"tuned": {}, "machine": {"round": 3, "incarnations": {"0": 1}}, "counts": {}},
        **{"journal": [], "models": {}, "model_round": 2, "fingerprint": "ab"},
        **{"record": {"algorithm": {"name": "planted_code:net"}, "data": {"format": "npz"}}},
        **{"facts": facts_of_rows().to_json(), "owners": {"0.1": ["s/0/0"]}},
    }
    arrays = {"w": np.ones(4), "model/coef": np.ones(4), "model/intercept": np.zeros(1)}
    content = checkpoint_format.encode(values, arrays)
    (folder / "checkpoint-001-00000001.bin").write_bytes(content)


def read_a_checkpoint(folder: Path) -> None:
    notes: list[str] = []
    if read_checkpoint(str(folder), notes) is None:
        raise DataError("; ".join(notes))


def write_job(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "name: job\ndata: {format: svmlight, path: a.svm, zero_based: false}\n"
        "algorithm: {name: batch_gradient, loss: logistic, l2: 1.0e-4}\n"
        "cluster: {kind: local, workers: 4, memory: 1 GiB}\nstop: {rounds: 100}\nseed: 7\n"
        "faults: [{round: 10, lose: 2}, {round: 20, return: 2}]\npolicies: [rebalance]\n"
        "evaluate: {every: 10}\nmembers: {start: 4, min: 2}\n"
    )


def cases() -> dict[str, Case]:
    found = {}
    for name, form in FORMATS.items():
        if name in ("a user's own", "tsv", "fasta"):  # formats of users, whose errors are theirs
            continue
        packs = {"": bytes, ".gz": gzip.compress} if name in TEXTS else {"": bytes}
        for suffix, pack in packs.items():
            found[name + suffix] = Case(
                lambda folder, form=form, pack=pack: form.write(folder, pack),
                lambda folder, form=form: use(form.read(str(folder / "a-images-idx3-ubyte"))),
                forge_parquet if name == "parquet" else None,
            )
    for name, is_sparse in (("npz", False), ("sparse npz", True)):
        found[name] = Case(
            lambda folder, is_sparse=is_sparse: write_archive(folder, is_sparse),
            lambda folder: use(read_npz(str(folder / "a.npz"))),
            forge_arrays,
        )
    return {
        **found,
        "images": Case(write_images, lambda folder: use(em.read_images(str(folder)))),
        "chunks": Case(
            write_chunks, lambda folder: use(read_chunks(str(folder / "out"))), forge_chunks
        ),
        "model": Case(write_model, read_model, forge_arrays),
        "network": Case(write_network, read_model, forge_arrays),
        "checkpoint": Case(write_checkpoint, read_a_checkpoint, forge_checkpoint),
        "job": Case(write_job, lambda folder: JobSpec.from_file(folder / "job.yaml"), forge_job),
    }


# --- damage ---------------------------------------------------------------------------------------


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage bytes in one to three ways."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        n = len(data)
        if n == 0:
            break
        # Heads and tails have the sizes.
        near = min(n, 200)
        at = int(rng.choice([rng.integers(n), rng.integers(near), n - 1 - rng.integers(near)]))
        end = at + int(rng.integers(1, max(2, min(n, 400))))
        width = int(rng.choice([1, 2, 4, 8]))
        number = int(rng.choice(NUMBERS)) & (2 ** (8 * width) - 1)
        order: Any = str(rng.choice(["little", "big"]))
        match int(rng.integers(7)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                del data[at:]
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end]
            case 4:
                data[at:end] = bytes(len(data[at:end]))
            case 5:
                data[at : at + width] = number.to_bytes(width, order)
            case _:
                data[at : at + 2] = WORDS[int(rng.integers(len(WORDS)))]
    return bytes(data)


class Hang(BaseException):
    """A file took too long; not caught by any reader."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise Hang


def outcome(case: Case, folder: Path, name: str) -> str:
    """Read a folder; return what is wrong with how it went, or nothing."""
    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, _alarm) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
    signal.setitimer(signal.ITIMER_REAL, 15 * SECONDS_MAX)
    try:
        case.read(folder)
    except (DataError, ConfigError) as error:
        text = error.message
        # Errors of a job's settings name the key, those of a checkpoint are notes of its files.
        is_named = isinstance(error, ConfigError) or name in text or folder.name in text
        if "\n" in text or len(text) > MESSAGE_CHARACTERS_MAX or not is_named:
            return f"message: {text[:300]!r}"
    except (Hang, Exception) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        for timer, number in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
    return ""


@pytest.mark.parametrize("kind", cases())
def test_a_damaged_file_is_read_or_refused_in_a_line_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    case, good, mark = cases()[kind], tmp_path / "good", tmp_path / "mark"
    marking = f"open({str(mark)!r}, 'w').close()"
    (tmp_path / "planted_code.py").write_text(f"{marking}\n\n\ndef net(**_):\n    {marking}\n")
    monkeypatch.syspath_prepend(tmp_path)
    good.mkdir()
    case.write(good)
    if kind in FORMATS and kind != "idx":
        (good / "a-labels-idx1-ubyte").unlink()
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    warnings.simplefilter("ignore")
    assert outcome(case, good, "") == ""
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(max(6, FILES // len(cases()))):
        rng = np.random.default_rng([SEED, number])
        place = tmp_path / f"damaged-{number}"
        shutil.copytree(good, place)
        target = place / files[int(rng.integers(len(files)))]
        is_forged = case.forge and target.suffix != ".json" and rng.random() < 0.6
        content = (case.forge if is_forged else damage)(target.read_bytes(), rng)
        target.write_bytes(content)
        assert outcome(case, place, target.name) == "", number
        assert not mark.exists(), number
        assert "planted_code" not in sys.modules
        shutil.rmtree(place)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < MEMORY_KIB_MAX
