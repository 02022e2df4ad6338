"""Read damaged files with every reader: ``python -m tests.bench damaged_files [--files 5000]``.

    --seed N        another set of files (default 0); a file is made from the seed and its number
    --only KIND     kinds of files, such as parquet zip
    --number N      one file alone, with its traceback

Each file is a good one that was damaged: bits flipped, parts cut, repeated, swapped or zeroed,
sizes overwritten by hostile numbers, text by hostile words; or it is forged, with checksums that
are right. It is read as a member reads it, chunks are computed on, and the outcome is one of

read        the damage is in values, and does not show
refused     one line that names the file: DataError or ConfigError
raw         another exception, or a message of several lines, or without the file's name
hang        more than ``SECONDS_MAX`` seconds
crash       the process ended
command     something that the file names was imported, called or unpickled: a module of a folder on
            the path, ``os:system``, ``builtins:exec``, a pickle, a tag of YAML leave a mark

The column ``past`` counts the files that got past the first check, which is that of their format:
data that returned rows, archives of models that returned arrays, YAML that returned a mapping,
checkpoints that returned values; whether they were refused after that or not.

Files are read by processes of ``PROCESS_FILES`` files each. The table ends with the largest memory
of a process. The exit code is 1 if there is a raw error, a hang, a crash or a command, or if a
process took more than ``MEMORY_MIB_MAX``.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import yaml

from elasticml.data.chunks import body as body_format
from elasticml.data.chunks.checksums import checksum
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.data.readers.convert import convert
from elasticml.data.readers.images import read_images
from elasticml.data.readers.npz import read_npz
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.readers.tabular import feature_tables, read_csv, read_head, read_parquet
from elasticml.data.source import infer_format, survey_all
from elasticml.data.storage import block_file
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_file import read_job_file
from elasticml.jobs.warm_start import load_warm_start
from elasticml.jobs.yaml_text import load_yaml
from elasticml.models.file_format import HEADER, read_arrays
from elasticml.models.loading import load_model
from elasticml.models.model import LinearModel, NetworkModel
from elasticml.runtime.checkpoints import checkpoint_format
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from elasticml.specification.algorithms import CoCoA
from tests.bench import harness

SECONDS_MAX = 20.0
MEMORY_MIB_MAX = 1536
#: Address space of a process: what a reader allocates by a hostile size fails here, not the host.
ADDRESS_SPACE_BYTES = 24 * 2**30
PROCESS_FILES = 250
#: Wider chunks are not multiplied: their model alone would fill the memory.
COLUMNS_MAX = 10_000_000
MESSAGE_CHARACTERS_MAX = 1500


@dataclass(frozen=True)
class Case:
    """A kind of files: how good ones are written, which are damaged, and how they are read."""

    write: Callable[[Path], None]
    #: Files to damage; one is drawn.
    damaged: Sequence[str]
    read: Callable[[Path], None]
    #: Damages a file's content in ways of its own; None for the general ways alone.
    forge: Callable[[bytes, np.random.Generator], bytes] | None = None
    is_text: bool = False


# --- reading --------------------------------------------------------------------------------------


#: What the file that is being read has returned so far: rows, models, jobs.
returned = Counter[str]()


def use(source: Any) -> None:
    """Read all blocks, and compute on the chunks."""
    source.fingerprint()
    ready = survey_all(source)
    for block in ready.blocks():
        chunks, summary = ready.read(block.index, 4096, 2)
        for chunk in chunks:
            chunk.load()
            returned["rows"] += chunk.n_rows
            float(chunk.labels.sum())
            columns = max(summary.layout.n_columns, chunk.layout.n_columns)
            if columns > COLUMNS_MAX or not chunk.n_rows:
                continue
            layout = chunk.layout if chunk.layout.kind == "sequence" else summary.layout
            make_forward(layout, np.ones(columns))(chunk, np.empty(chunk.n_rows))
            adjoint = make_adjoint(layout, columns)
            adjoint.add(chunk, np.ones(chunk.n_rows))


def source_reader(make: Callable[[str], Any], name: str) -> Callable[[Path], None]:
    return lambda folder: use(make(str(folder / name)))


# --- good files -----------------------------------------------------------------------------------

ROWS = 60


def svmlight_text() -> bytes:
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(ROWS):
        columns = np.unique(rng.integers(1, 40, 6)).tolist()
        row = " ".join(f"{j}:{rng.normal():.6g}" for j in columns)
        lines.append(f"{rng.choice([-1, 1])} {row}")
    return ("\n".join(lines) + "\n").encode()


def csv_text() -> bytes:
    rng = np.random.default_rng(2)
    lines = ["y,a,b,colour,when"]
    for k in range(ROWS):
        colour = ("red", "green", "")[k % 3]
        lines.append(f"{k % 2},{rng.normal():.4f},{k},{colour},2024-02-{1 + k % 28:02}")
    return ("\n".join(lines) + "\n").encode()


def text_case(
    text: Callable[[], bytes], name: str, make: Callable[[str], Any], pack: Any = bytes
) -> Case:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(pack(text()))

    return Case(write, [name], source_reader(make, name), is_text=pack is bytes)


def write_parquet(folder: Path, **options: Any) -> None:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.csv.read_csv(io.BytesIO(csv_text() * 1))
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=25, **options)


def read_table(folder: Path, name: str, make: Callable[..., Any]) -> None:
    path = str(folder / name)
    read_head(path)
    source = make(path, "y", missing="mean")
    use(source)
    encoder = survey_all(source).fitted_encoder()
    for table, _ in feature_tables(path, str(infer_format(path)), encoder):
        returned["rows"] += table.num_rows


def forge_cells(content: bytes, rng: np.random.Generator) -> bytes:
    """Change cells of a CSV file: words, numbers without end, dates that are none."""
    lines = content.split(b"\n")
    for _ in range(int(rng.integers(1, 6))):
        k = int(rng.integers(1, len(lines) - 1))
        cells = lines[k].split(b",")
        hostile = (*(w for w in WORDS if len(w) < 30 and w not in b",\n\r"), b"", b"7", b"-0.0")
        cells[int(rng.integers(len(cells)))] = hostile[int(rng.integers(len(hostile)))]
        lines[k] = b",".join(cells)
    return b"\n".join(lines)


def forge_packed_cells(content: bytes, rng: np.random.Generator) -> bytes:
    return gzip.compress(forge_cells(gzip.decompress(content), rng))


def forge_parquet(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a column's type, its values or its name, and write a right file."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(content))
    at = int(rng.integers(table.num_columns))
    column = table.column(at).combine_chunks()
    n = len(column)
    numbers = (0.0, -1.0, np.nan, np.inf, -np.inf, 1e308, 5e-324, 2.0**63, -(2.0**70))
    drawn = [float(v) for v in rng.choice(numbers, n)]
    name = table.column_names[at]
    types = ("string", "large_string", "binary", "bool", "int8", "uint64", "float32", "date32")
    match int(rng.integers(9)):
        case 0:
            column = pyarrow.array([None] * n, column.type)
        case 1:
            column = pyarrow.array(drawn)
        case 2:
            column = pyarrow.array([[v] for v in drawn])
        case 3:
            column = pyarrow.array([{"a": v} for v in drawn])
        case 4:
            column = column.dictionary_encode()
        case 5:
            column = pyarrow.array(rng.choice([2**63 - 1, -(2**63), 0, 1], n), "timestamp[us]")
        case 6:
            with contextlib.suppress(pyarrow.ArrowException):
                column = column.cast(
                    getattr(pyarrow, str(rng.choice(types[:-1])).replace("bool", "bool_"))()
                )
        case 7:
            name = str(rng.choice(["y", "", "a" * 10_000, "\x00", "colour"]))
        case _:
            column = pyarrow.array([str(rng.choice(WORDS[:9])) for _ in range(n)])
    table = table.set_column(at, name, column)
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, row_group_size=int(rng.integers(1, 40)))
    return out.getvalue()


def npz_arrays(is_sparse: bool) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(ROWS, 7)), (np.arange(ROWS) % 2).astype(float)
    if not is_sparse:
        return {"X": X, "y": y, "sample_weight": np.ones(ROWS)}
    import scipy.sparse

    S = scipy.sparse.random(ROWS, 30, 0.2, "csr", random_state=6)
    parts = {"data": S.data, "indices": S.indices, "indptr": S.indptr}
    return {**parts, "shape": np.array(S.shape), "y": y}


def write_npz(is_sparse: bool, save: Any) -> Callable[[Path], None]:
    return lambda folder: save(folder / "a.npz", **npz_arrays(is_sparse))


#: Numbers that overwrite sizes.
NUMBERS = (0, 1, -1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**40)
NUMBERS += (2**62, 2**63 - 1, -(2**63), 10**9, 12345)


#: The arrays of a file, sparse or dense.
STRUCTURE = ("indices", "indptr", "shape", "data", "X", "y")


def forge_npz(
    content: bytes,
    rng: np.random.Generator,
    among: Sequence[str] = STRUCTURE,
) -> bytes:
    """Change arrays and keep the archive right: only the structure can show it."""
    if rng.random() < 0.1:
        return forge_objects(content, rng)
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    among = ("data", "X", "y") if among is STRUCTURE and rng.random() < 0.6 else among
    name = str(rng.choice([n for n in among if n in arrays]))
    array = arrays[name]
    match int(rng.integers(12)):
        case 0:
            array = array.astype(np.complex128)
        case 1:
            array = array[: rng.integers(array.shape[0])]
        case 2:
            array = array[::-1]
        case 3:
            array = array.reshape(-1, 1)[:, [0, 0]]
        case 4:
            array = array.astype(rng.choice(["f4", "i8", "u8", "i2", "S8", "U8", "?"]))
        case 5:
            array = np.array(array.ravel()[0])
        case 6 | 7 | 8 | 9 if array.dtype.kind == "f":
            array = array.copy()
            where = rng.integers(array.size, size=5)
            array.reshape(-1)[where] = rng.normal(size=5) * 10.0 ** rng.integers(-300, 300)
        case _:
            wide = array.astype(np.int64) if array.dtype.kind in "iu" else array.copy()
            hostile = int(rng.choice(NUMBERS)) if wide.dtype.kind == "i" else np.inf
            wide.reshape(-1)[rng.integers(wide.size)] = hostile
            array = wide
    out = io.BytesIO()
    np.savez(out, **{**arrays, name: array})
    return out.getvalue()


def forge_packed(content: bytes, rng: np.random.Generator) -> bytes:
    return (forge_npz if rng.random() < 0.6 else forge_zip)(content, rng)


def forge_zip(content: bytes, rng: np.random.Generator) -> bytes:
    """Change an archive's directory: flags, methods, sizes and names."""
    data = bytearray(content)
    starts = [at for at in range(len(data) - 46) if data[at : at + 4] == b"PK\x01\x02"]
    at = int(rng.choice(starts)) if starts else 0
    offset, form = [(8, "<H"), (10, "<H"), (20, "<I"), (24, "<I"), (28, "<H"), (42, "<I")][
        int(rng.integers(6))
    ]
    value = int(
        rng.choice([0, 1, 9, 14, 40, 97, 0xFFFF] if form == "<H" else [0, 1, 2**31, 2**32 - 1])
    )
    struct.pack_into(form, data, at + offset, value)
    return bytes(data)


def idx_files(folder: Path, pack: Any = bytes) -> None:
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (ROWS, 5, 4), dtype=np.uint8)
    head = bytes([0, 0, 8, 3]) + struct.pack(">III", *images.shape)
    (folder / "t-images-idx3-ubyte").write_bytes(pack(head + images.tobytes()))
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", ROWS) + bytes(k % 3 for k in range(ROWS))
    (folder / "t-labels-idx1-ubyte").write_bytes(pack(labels))


IMAGES = ("png", "jpg", "bmp", "gif", "tif", "webp", "ppm")


def picture(k: int, suffix: str) -> bytes:
    from PIL import Image

    rng = np.random.default_rng(k)
    out = io.BytesIO()
    image = Image.fromarray(rng.integers(0, 256, (9, 8, 3), dtype=np.uint8))
    forms = {"jpg": "JPEG", "tif": "TIFF"}
    image.save(out, forms.get(suffix, suffix.upper()))
    return out.getvalue()


def pictures() -> Iterator[tuple[str, bytes]]:
    for k, suffix in enumerate(itertools.islice(itertools.cycle(IMAGES), 14)):
        yield f"{'ab'[k % 2]}/{k}.{suffix}", picture(k, suffix)


def write_folder(folder: Path) -> None:
    for name, content in pictures():
        place = folder / "images" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def write_chunks(folder: Path, kind: str) -> None:
    if kind == "sequences":
        source: Any = synthetic_splice(ROWS, length=24)
    else:
        (folder / "a.svm").write_bytes(svmlight_text())
        source = read_svmlight(str(folder / "a.svm"))
    convert(source, folder / "out", chunk_bytes=2048)


def block_of(folder: Path) -> str:
    return next(str(p.relative_to(folder)) for p in sorted((folder / "out").glob("*.chunks")))


def read_chunks_folder(folder: Path) -> None:
    from elasticml.data.readers.converted import read_converted

    use(read_converted(str(folder / "out")))


def forge_chunks(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a body, and make checksums and digests right again."""
    head = block_file._FIXED
    magic, version, n_text, n_bodies, _ = head.unpack_from(content)
    start = block_file._bodies_start(n_text)
    index = json.loads(content[head.size : head.size + n_text])
    bodies, at = [], start
    for _, nbytes, _ in index["chunks"]:
        bodies.append(bytearray(content[at : at + nbytes]))
        at += nbytes
    k = int(rng.integers(len(bodies)))
    if bytes(bodies[k][:8]) == body_format.MAGIC:
        area = 256 if rng.random() < 0.5 else len(bodies[k])
        for _ in range(int(rng.integers(1, 4))):
            value = int(rng.choice(NUMBERS)) & (2**32 - 1)
            struct.pack_into("<I", bodies[k], int(rng.integers(8, area - 4)), value)
        index["chunks"][k][2] = f"{checksum(memoryview(bytes(bodies[k]))):016x}"
    else:
        bodies[k][int(rng.integers(len(bodies[k])))] ^= 1 << int(rng.integers(8))
    text = json.dumps(index).encode()
    out = head.pack(magic, version, len(text), n_bodies, block_file._digest(text)) + text
    return out.ljust(block_file._bodies_start(len(text)), b"\0") + b"".join(bodies)


def write_model(folder: Path) -> None:
    coef = np.random.default_rng(8).normal(size=(1, 7))
    LinearModel({"coef": coef, "intercept": np.zeros(1)}, [0.0, 1.0]).save(folder / "model.npz")


def read_a_model(folder: Path) -> None:
    with named_errors(folder / "model.npz"):
        returned["arrays"] += len(read_arrays(str(folder / "model.npz")))
        model = load_model(folder / "model.npz")
        with contextlib.suppress(ConfigError):  # rows of another width, or no PyTorch here
            model.predict(np.zeros((3, 7)))
    if not isinstance(model, NetworkModel):
        load_warm_start(folder / "model.npz", CoCoA(scale="none"))


#: What leaves a mark when it runs; ``marked`` asks for it. The module is on the path.
MARK = Path(tempfile.gettempdir()) / f"damaged-files-mark-{os.getppid()}"
COMMAND = f"open({str(MARK)!r}, 'w').close()"
PATHS = ("planted_code:net", "os:system", "builtins:exec", "subprocess:call", "planted_code:x.y")


class Planted:
    """Leaves the mark when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (COMMAND,)


def plant(folder: Path) -> None:
    """Put a module on the path that leaves the mark when it is imported, or its parts called."""
    (folder / "planted_code.py").write_text(f"{COMMAND}\n\n\ndef net(**_):\n    {COMMAND}\n")
    sys.path.insert(0, str(folder))


def forge_model(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a value of the header, or an array; the archive is right."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(bytes(arrays[HEADER]))
    if rng.random() < 0.3:
        return forge_npz(content, rng, ("coef", "intercept", "classes"))
    change_a_value(header, rng)
    arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def change_a_value(record: dict[str, Any], rng: np.random.Generator) -> None:
    """Put a hostile value somewhere into a JSON record."""
    parts: list[Any] = [record, *(v for v in record.values() if isinstance(v, dict | list))]
    parts += [v for part in parts[1:] if isinstance(part, dict) for v in part.values()]
    part = [p for p in parts if isinstance(p, dict | list) and p]
    at = part[int(rng.integers(len(part)))]
    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
    hostile = (None, [], {}, "x", -1, 2**70, 1e308, True, [[]], {"a": 1}, "planted_code:net", [1])
    at[keys[int(rng.integers(len(keys)))]] = hostile[int(rng.integers(len(hostile)))]


def write_network(folder: Path) -> None:
    from elasticml.data.dataset_stats import merge_summaries
    from elasticml.data.readers.arrays import from_arrays

    source = from_arrays(np.zeros((9, 7)), np.arange(9) % 3)
    facts = merge_summaries([source.read(0, None, 1)[1]])
    arrays = {"weight": np.ones((3, 7)), "bias": np.zeros(3)}
    NetworkModel(arrays, {"name": "local_sgd"}, facts).save(folder / "model.npz")


def forge_network(content: bytes, rng: np.random.Generator) -> bytes:
    """Name code in the header: as network, as loss, as options."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(bytes(arrays[HEADER]))
    section = header["settings"]["algorithm"]
    section[str(rng.choice(["model", "loss"]))] = str(rng.choice(PATHS))
    options: tuple[Any, ...] = ({"command": f"touch {MARK}"}, {"args": ["touch", str(MARK)]}, {})
    section["model_options"] = options[int(rng.integers(3))]
    if rng.random() < 0.2:
        header["rows"]["n_columns"] = int(rng.choice(NUMBERS))
    arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def forge_objects(content: bytes, rng: np.random.Generator) -> bytes:
    """Replace an array by pickled objects."""
    with np.load(io.BytesIO(content)) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    arrays[str(rng.choice(list(arrays)))] = np.array([Planted()] * ROWS, object)
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, **arrays)
    return out.getvalue()


def forge_job(content: bytes, rng: np.random.Generator) -> bytes:
    """Put a hostile value into a section, or a tag of YAML in place of a word."""
    if rng.random() < 0.7:
        record = yaml.safe_load(content)
        change_a_value(record, rng)
        if "planted_code" in str(record):  # a job file may name the user's own code
            return content
        return yaml.safe_dump(record).encode()
    words = content.split(b" ")
    tags = (
        f"!!python/object/apply:os.system ['touch {MARK}']",
        f'!!python/object/apply:builtins.exec ["{COMMAND}"]',
        *("!!python/name:os.system", "!!python/module:planted_code", "1e20", "..:x", "-1", "1e9"),
        *("[]", "{}", "null", "true", "''", ".nan", "0", "9" * 30),
    )
    words[int(rng.integers(1, len(words)))] = str(rng.choice(tags)).encode()
    return b" ".join(words)


def write_checkpoints(folder: Path) -> None:
    from elasticml.data.dataset_stats import merge_summaries
    from elasticml.data.readers.arrays import from_arrays

    source = from_arrays(np.zeros((9, 4)), np.arange(9) % 2)
    facts = merge_summaries([source.read(0, None, 1)[1]])
    place = folder / "place"
    place.mkdir()
    lines = {"story": [{"event": "JobBegun", "t": 0.0}], "row": [{"round": 1}], "progress": []}
    content = checkpoint_format.encode_lines(lines)
    (place / "journal-001-00000001.jsonl").write_bytes(content)
    part = {
        "name": "journal-001-00000001.jsonl",
        "sha256": hashlib.sha256(content).hexdigest(),
        **{"start": [0, 0, 0], "end": [1, 1, 0]},
    }
    values = {
        **{"attempt": 1, "number": 1, "round": 3, "seconds": 1.5, "values": {"step": 2.0}},
        **{"tuned": {}, "machine": {"round": 3, "incarnations": {"0": 1}}, "counts": {}},
        **{"journal": [part], "models": {}, "model_round": 2, "fingerprint": "ab"},
        **{"record": {"algorithm": {"name": "planted_code:net"}, "data": source.spec()}},
        **{"facts": facts.to_json(), "owners": {"0.1": ["s/0/0"]}},
    }
    arrays = {"w": np.ones(4), "model/coef": np.ones(4), "model/intercept": np.zeros(1)}
    name = "checkpoint-001-00000001.bin"
    (place / name).write_bytes(checkpoint_format.encode(values, arrays))


def read_a_checkpoint(folder: Path) -> None:
    notes: list[str] = []
    with named_errors(folder / "place"):
        for path in (folder / "place").glob("*.bin"):
            with contextlib.suppress(ValueError, ConfigError):  # so says read_checkpoint
                returned["values"] += len(checkpoint_format.decode(path.read_bytes(), "it")[0])
        if read_checkpoint(str(folder / "place"), notes) is None:
            raise DataError(f"{folder}: " + ("; ".join(notes) or "no checkpoint"))


def forge_checkpoint(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a plain value, and make size and digest right again."""
    line, _, rest = content.partition(b"\n")
    head, _, arrays = rest.partition(b"\n")
    values = json.loads(head)
    change_a_value(values, rng)
    changed = json.dumps(values).encode() + b"\n"
    rest = changed + bytes(-len(changed) % 64) + arrays[-3 * 64 :]
    seal = json.loads(line)
    seal |= {"nbytes": len(rest), "sha256": hashlib.sha256(rest).hexdigest()}
    return json.dumps(seal).encode() + b"\n" + rest


def write_job(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "name: job\ndata: {format: svmlight, path: a.svm, zero_based: false}\n"
        "algorithm: {name: batch_gradient, loss: logistic, l2: 1.0e-4}\n"
        "cluster: &c {kind: local, workers: 4, memory: 1 GiB}\nstop: {rounds: 100}\nseed: 7\n"
        "faults: [{round: 10, lose: 2}, {round: 20, return: 2}]\npolicies: [rebalance]\n"
        "evaluate: {every: 10}\nmembers: {start: 4, min: 2}\n"
    )


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Name the file in errors of settings, whose place is a key."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", **error.fields) from error


def read_a_job(folder: Path) -> None:
    with named_errors(folder / "job.yaml"):
        text = (folder / "job.yaml").read_bytes().decode(errors="replace")
        with contextlib.suppress(ConfigError):
            returned["mappings"] += len(load_yaml(text, "the file"))
        read_job_file(folder / "job.yaml")


def cases() -> dict[str, Case]:
    """Return all kinds of files."""
    made: dict[str, Case] = {}
    for name, pack in (
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ):
        made[f"svmlight{name}"] = text_case(svmlight_text, f"a.svm{name}", read_svmlight, pack)
    for name, pack in (("a.csv", bytes), ("a.csv.gz", gzip.compress)):
        write = text_case(csv_text, name, read_csv, pack).write
        made[name[2:]] = Case(
            write,
            [name],
            lambda folder, name=name: read_table(folder, name, read_csv),
            forge_cells if pack is bytes else forge_packed_cells,
            pack is bytes,
        )
    for key, options in (
        ("parquet", {}),
        ("parquet-plain", {"compression": "none", "use_dictionary": False}),
        ("parquet-zstd", {"compression": "zstd", "data_page_version": "2.0"}),
    ):
        made[key] = Case(
            lambda folder, options=options: write_parquet(folder, **options),
            ["a.parquet"],
            lambda folder: read_table(folder, "a.parquet", read_parquet),
            forge_parquet,
        )
    npz = source_reader(read_npz, "a.npz")
    made["npz"] = Case(write_npz(False, np.savez), ["a.npz"], npz, forge_npz)
    made["npz-csr"] = Case(write_npz(True, np.savez), ["a.npz"], npz, forge_npz)
    made["npz-packed"] = Case(write_npz(True, np.savez_compressed), ["a.npz"], npz, forge_packed)
    both = ["t-images-idx3-ubyte", "t-labels-idx1-ubyte"]
    made["idx"] = Case(idx_files, both, source_reader(read_images, both[0]))
    made["idx.gz"] = Case(
        lambda folder: idx_files(folder, gzip.compress), both, source_reader(read_images, both[0])
    )
    names = [f"images/{name}" for name, _ in pictures()]
    made["folder"] = Case(write_folder, names, source_reader(read_images, "images"))
    for key, kind in (("chunks", "rows"), ("chunks-letters", "sequences")):
        made[key] = Case(
            lambda folder, kind=kind: write_chunks(folder, kind),
            ["", "out/chunks.json"],
            read_chunks_folder,
            forge_chunks,
        )
    made["model"] = Case(write_model, ["model.npz"], read_a_model, forge_model)
    made["network"] = Case(write_network, ["model.npz"], read_a_model, forge_network)
    made["job"] = Case(write_job, ["job.yaml"], read_a_job, forge_job, is_text=True)
    made["checkpoint"] = Case(
        write_checkpoints,
        ["place/checkpoint-001-00000001.bin", "place/journal-001-00000001.jsonl"],
        read_a_checkpoint,
        forge_checkpoint,
    )
    return made


# --- damage ---------------------------------------------------------------------------------------

WORDS = (
    *(
        b"nan",
        b"-inf",
        b"1e999",
        b"99999999999999999999",
        b"-1",
        b"0x10",
        b"\0",
        b"\xff\xfe",
        b"\r",
    ),
    *(b",", b"\t", b":", b'"', b"#", b"\n", b"> ", b"&c", b"*c", b"[[[[", b"{", b"2024-13-45"),
    *(b"9" * 5000, b"a" * 100_000, b"\n" * 1000, b"qid:3", b"1:1:1", b"4294967296:1", b"1j"),
)


def damage(content: bytes, rng: np.random.Generator, is_text: bool) -> bytes:
    """Damage bytes in one to three ways."""
    data = bytearray(content)
    if data and rng.random() < 0.25:  # the least damage: one bit
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        return bytes(data)
    for _ in range(int(rng.integers(1, 4))):
        n = len(data)
        if n == 0:
            break
        # Heads and tails have the sizes.
        near = min(n, 200)
        at = int(rng.choice([rng.integers(n), rng.integers(near), n - 1 - rng.integers(near)]))
        span = int(rng.integers(1, max(2, min(n, 400))))
        match int(rng.integers(10 if is_text else 8)):
            case 0:
                for _ in range(int(rng.integers(1, 9))):
                    data[int(rng.integers(n))] ^= 1 << int(rng.integers(8))
            case 1:
                del data[at:]
            case 2:
                del data[at : at + span]
            case 3:
                data[at:at] = data[at : at + span]
            case 4:
                data[at : at + span] = bytes(len(data[at : at + span]))
            case 5:
                width = int(rng.choice([1, 2, 4, 8]))
                value = int(rng.choice(NUMBERS)) & (2 ** (8 * width) - 1)
                order: Any = str(rng.choice(["little", "big"]))
                data[at : at + width] = value.to_bytes(width, order)
            case 6:
                other = int(rng.integers(n))
                data[at : at + span], data[other : other + span] = (
                    data[other : other + span],
                    data[at : at + span],
                )
            case 7:
                data[at:at] = rng.bytes(span)
            case _:
                data[at : at + int(rng.integers(3))] = WORDS[int(rng.integers(len(WORDS)))]
    return bytes(data)


# --- the processes --------------------------------------------------------------------------------


class Hang(BaseException):
    """A file took too long; not caught by any reader."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise Hang


def outcome(case: Case, folder: Path, is_shown: bool = False) -> tuple[str, str]:
    """Read the files in a folder; return the outcome, and what is wrong with it."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    try:
        case.read(folder)
    except (DataError, ConfigError) as error:
        if is_shown:
            print(error.message)
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = error.message
        is_named = any(str(path) in text for path in (folder, folder.name)) or any(
            Path(name).name in text for name in case.damaged if name
        )
        if "\n" in text or len(text) > MESSAGE_CHARACTERS_MAX or not is_named:
            return "raw", f"message: {text[:300]!r}"
        return "refused", ""
    except Hang:
        return "hang", ""
    except BaseException as error:
        if is_shown:
            traceback.print_exc()
        return "raw", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read", ""


class Maker:
    """Makes damaged files, from good ones that are written once."""

    def __init__(self, folder: Path, seed: int, kinds: Sequence[str]) -> None:
        self.cases = {name: case for name, case in cases().items() if name in kinds}
        self.names = list(self.cases)
        self._folder = folder
        self._seed = seed
        self.good: dict[str, Path] = {}
        for name, case in self.cases.items():
            place = self.good[name] = folder / "good" / name
            place.mkdir(parents=True)
            case.write(place)

    def make(self, number: int) -> tuple[str, Path]:
        """Return the kind and the folder of a file."""
        name = self.names[number % len(self.names)]
        case, rng = self.cases[name], np.random.default_rng([self._seed, number])
        place = self._folder / f"damaged-{number}"
        shutil.copytree(self.good[name], place)
        if name.startswith("chunks"):  # the manifest names the source by its path: not needed here
            target = place / (block_of(place) if rng.random() < 0.8 else "out/chunks.json")
        else:
            target = place / str(rng.choice(case.damaged))
        content = target.read_bytes()
        is_forged = case.forge is not None and ".json" not in target.suffix and rng.random() < 0.75
        forge: Any = case.forge
        damaged = forge(content, rng) if is_forged else damage(content, rng, case.is_text)
        target.write_bytes(damaged)
        return name, place


def warm_up(maker: Maker) -> None:
    """Read the good files: compiles kernels, imports libraries, and checks the program itself."""
    for name, case in maker.cases.items():
        case.read(maker.good[name])


def serve(seed: int, kinds: Sequence[str], numbers: Sequence[int]) -> None:
    """Read these files in this process; a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="damaged-") as folder:
        maker = Maker(Path(folder), seed, kinds)
        plant(Path(folder))
        warm_up(maker)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in numbers:
            name, place = maker.make(number)
            print(json.dumps({"begins": number, "kind": name}), flush=True)
            returned.clear()
            said, why = outcome(maker.cases[name], place)
            if MARK.exists():
                MARK.unlink()
                said, why = "command", f"{said}: {why}"
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            record = {"number": number, "kind": name, "outcome": said, "why": why}
            record["past"] = bool(returned.total())
            print(json.dumps({**record, "kib": memory, "kib_before": before}), flush=True)
            shutil.rmtree(place, ignore_errors=True)


def run(seed: int, kinds: Sequence[str], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Read files in other processes, a few hundred in each; return a record for each file."""
    records: list[dict[str, Any]] = []
    left = list(numbers)
    while left:
        part = left[:PROCESS_FILES]
        command = [
            sys.executable,
            "-m",
            "tests.bench",
            "damaged_files",
            "--seed",
            str(seed),
            "--only",
            *kinds,
            "--serve",
        ]
        command += [str(number) for number in part]
        limit_s = 300 + SECONDS_MAX * 20
        try:
            ended = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": harness.path()},
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
            said, errors = ended.stdout, ended.stderr
        except subprocess.TimeoutExpired as error:
            said, errors = (error.stdout or b"").decode(), "no end"
        lines = [json.loads(line) for line in said.splitlines()]
        done = [line for line in lines if "outcome" in line]
        records += done
        if lines and "begins" in lines[-1]:
            # Native code ended the process, or waits where no signal interrupts it.
            kind = "hang" if errors == "no end" else "crash"
            last = {"number": lines[-1]["begins"], "kind": lines[-1]["kind"], "outcome": kind}
            records.append({**last, "why": errors[-300:], "kib": 0, "kib_before": 0})
        elif len(done) < len(part):
            raise SystemExit(f"a process ended before its files: {errors[-2000:]}")
        seen = {record["number"] for record in records}
        left = [number for number in left if number not in seen]
    return records


def report(records: Sequence[dict[str, Any]]) -> bool:
    """Print the table; return whether nothing went wrong."""
    outcomes = ("files", "past", "read", "refused", "raw", "hang", "crash", "command")
    print(f"{'kind':<16}" + "".join(f"{name:>9}" for name in outcomes))
    by_kind = {kind: Counter[str]() for kind in sorted({r["kind"] for r in records})}
    for record in records:
        counted = {record["outcome"]: 1, "files": 1, "past": int(record.get("past", False))}
        by_kind[record["kind"]].update(counted)
    for kind, counts in by_kind.items():
        print(f"{kind:<16}" + "".join(f"{counts[name]:>9}" for name in outcomes))
    total = sum(by_kind.values(), Counter[str]())
    print(f"{'all':<16}" + "".join(f"{total[name]:>9}" for name in outcomes))
    memory = max(record["kib"] for record in records) // 1024
    before = max(record["kib_before"] for record in records) // 1024
    print(f"memory of a process: at most {memory} MiB, {before} MiB with the good files alone")
    wrong = [r for r in records if r["outcome"] not in ("read", "refused")]
    for record in wrong[:40]:
        print(f"{record['outcome']} {record['number']} {record['kind']}: {record['why']}")
    return not wrong and memory <= MEMORY_MIB_MAX


def main(
    *,
    files: int = 5000,
    seed: int = 0,
    only: Sequence[str] = tuple(cases()),
    number: int | None = None,
    json: Path | None = None,
    _serve: Sequence[int] = (),
) -> int:
    """Read the files, or show one ``number``; return the exit status."""
    if _serve:
        serve(seed, only, _serve)
    elif number is not None:
        with tempfile.TemporaryDirectory(prefix="damaged-") as folder:
            maker = Maker(Path(folder), seed, only)
            name, place = maker.make(number)
            print(name, *outcome(maker.cases[name], place, is_shown=True))
    else:
        records = run(seed, only, range(files))
        if json:
            harness.report(records, json)
        return 0 if report(records) else 1
    return 0
