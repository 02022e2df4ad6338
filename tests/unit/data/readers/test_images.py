"""IDX files and pictures in folders become the written images and labels, in any blocks."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import elasticml as em
from elasticml.data.readers import images
from elasticml.data.readers.images import image_shape
from elasticml.data.source import load_all, merge_summaries, read_block, source_from_spec
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.job_spec import JobSpec
from tests.http_server import serving
from tests.unit.data.rows import labels, matrix

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
#: Three classes of four pictures, of 3 x 4 pixels in three colours.
DRAWN = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 3), np.uint8)
NAMES = [f"{name}/{i}.png" for name in ("bird", "cat", "dog") for i in range(4)]


def write_idx(path: Path, array: np.ndarray) -> str:
    size = struct.pack(f">{array.ndim}I", *array.shape)
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim]) + size
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(head + array.astype(array.dtype.newbyteorder(">")).tobytes())
    return str(path)


def idx_file(folder: Path, *dimensions: int) -> str:
    write_idx(folder / "labels-idx1-ubyte", np.zeros(3, np.uint8))
    return write_idx(folder / "images-idx3-ubyte", np.zeros((3, *dimensions), np.uint8))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


PICTURES = dict(zip(NAMES, map(png, DRAWN), strict=True))
#: The rows of the pictures: channel by channel.
ROWS = DRAWN.transpose(0, 3, 1, 2).reshape(12, -1).tolist()
LARGE = png(np.full((8, 6, 3), 7, np.uint8))


def in_folder(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


@pytest.mark.parametrize("kind", CODES)
def test_every_type_of_value_is_read(tmp_path, kind) -> None:
    X = np.array([[1, 2], [3, 100]], kind)
    path, labels_at = write_idx(tmp_path / "x", X), write_idx(tmp_path / "y", X[:, 0].copy())
    chunks = load_all(em.read_images(path, labels=labels_at, dtype="float32"))
    assert matrix(chunks).tolist() == X.tolist()
    assert {chunk.layout.dtype for chunk in chunks} == {"float32"}
    assert labels(chunks) == [1.0, 3.0]


@pytest.mark.parametrize("n_bytes", [1, 200, 2**23])
def test_every_picture_is_in_exactly_one_block(tmp_path, monkeypatch, n_bytes) -> None:
    monkeypatch.setattr(images, "BLOCK_BYTES", n_bytes)
    path = in_folder(tmp_path, PICTURES | {"cat/notes.txt": b"no"})
    source = source_from_spec(em.read_images(path, dtype="float32").spec())
    chunks = [chunk for block in source.blocks() for chunk in source.read(block.index, 2**20, 1)[0]]
    assert matrix(chunks).tolist() == ROWS
    assert labels(chunks) == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert len({chunk.id for chunk in chunks}) == len(chunks)


@pytest.mark.parametrize("n_bytes", [1, 2**23])
def test_pictures_have_one_size_within_and_between_blocks_or_are_resized(
    tmp_path, monkeypatch, n_bytes
) -> None:
    monkeypatch.setattr(images, "BLOCK_BYTES", n_bytes)
    path = in_folder(tmp_path, {"a/0.png": LARGE, "b/1.png": PICTURES[NAMES[0]]})
    with pytest.raises(DataError, match=r"b/1.png is 3 x 4 pixels, wanted 8 x 6 .*set data.size"):
        load_all(em.read_images(path))
    rows = matrix(load_all(em.read_images(path, size=[2, 2], mode="L")))
    assert (rows.shape, rows[0].tolist()) == ((2, 4), [7.0] * 4)


def test_test_pictures_are_labelled_as_the_training_pictures(tmp_path) -> None:
    training = em.read_images(in_folder(tmp_path / "train", PICTURES))
    facts = merge_summaries([training.read(0, 2**20, 1)[1]])
    dog = PICTURES["dog/0.png"]
    test = em.read_images(in_folder(tmp_path / "test", {"dog/0.png": dog}))
    known = source_from_spec(test.with_stats(facts).spec())
    assert [chunk.labels.tolist() for chunk in load_all(known)] == [[2.0]]
    assert known.fingerprint() != test.fingerprint()
    other = em.read_images(in_folder(tmp_path / "other", {"cow/0.png": dog}))
    with pytest.raises(DataError, match=r"folder cow, wanted one of the 3 classes .*: bird, cat"):
        load_all(other.with_stats(facts))
    for n_columns in (35, 37):
        with pytest.raises(DataError, match=rf"3 x 4 pixels, 36 values, wanted {n_columns} as in"):
            load_all(test.with_columns(n_columns))


def test_a_change_of_a_folder_or_a_picture_changes_what_is_read(tmp_path) -> None:
    files = {"deep/a/0.png": PICTURES[NAMES[0]], "b/0.png": PICTURES[NAMES[1]]}
    source, cache = em.read_images(in_folder(tmp_path / "some", files)), tmp_path / "cache"
    before = source.fingerprint()
    assert labels(read_block(source, 0, 2**20, 1, cache)[0]) == [1.0, 0.0]
    # The folder listing does not show it: neither names nor their number have changed.
    (path := tmp_path / "some" / "deep/a/0.png").write_bytes(PICTURES[NAMES[5]])
    os.utime(path, (1, 1))
    assert matrix(read_block(source, 0, 2**20, 1, cache)[0])[1].tolist() == ROWS[5]
    in_folder(tmp_path / "some", {"b/9.png": files["b/0.png"]})
    assert source.fingerprint() != before


def test_a_folder_on_hdfs_is_read_from_its_host() -> None:
    """The paths that a file system lists lack the host of the URL."""
    files = {f"/data/{name}": content for name, content in PICTURES.items()}

    def status(path: str) -> dict[str, object]:
        kind = "FILE" if path in files else "DIRECTORY"
        return {"length": len(files.get(path, b"")), "type": kind, "modificationTime": 1}

    def answer(method, url, headers, body):
        path, query = urlsplit(url).path.removeprefix("/webhdfs/v1"), urlsplit(url).query
        if "op=GETFILESTATUS" in query:
            return 200, {}, json.dumps({"FileStatus": status(path)}).encode()
        if "op=OPEN" in query:
            start = int(query.partition("offset=")[2].partition("&")[0] or 0)
            return 200, {}, files[path][start:]
        below = {name[len(path) + 1 :].split("/")[0] for name in files if name.startswith(path)}
        results = [{"pathSuffix": name, **status(f"{path}/{name}")} for name in sorted(below)]
        return 200, {}, json.dumps({"FileStatuses": {"FileStatus": results}}).encode()

    with serving(answer) as url:
        chunks = load_all(em.read_images(f"webhdfs://{urlsplit(url).netloc}/data"))
    assert matrix(chunks).tolist() == ROWS


def test_labels_are_beside_the_images_or_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"data\.labels is missing, .*, which is not named"):
        em.read_images("pictures").blocks()
    write_idx(tmp_path / "a-images-idx3-ubyte", DRAWN[..., 0])
    with pytest.raises(ConfigError, match="labels-idx1-ubyte does not exist"):
        load_all(em.read_images(tmp_path / "a-images-idx3-ubyte"))
    for name in ("train", "t10k"):
        write_idx(tmp_path / f"{name}-images", DRAWN[..., 0])
        write_idx(tmp_path / f"{name}-labels", np.arange(12, dtype=np.uint8))
    (tmp_path / "job.yaml").write_text(
        "data: {format: images, path: train-images, labels: train-labels,\n"
        "  dtype: float32, test: {path: t10k-images, labels: t10k-labels}}\n"
        "algorithm: {name: batch_gradient}\n"
    )
    file = JobSpec.from_file(tmp_path / "job.yaml")
    specs = [source.spec() for source in (file.data, file.test)]
    assert [s["labels"] for s in specs] == [f"{tmp_path}/{n}-labels" for n in ("train", "t10k")]
    assert specs[1]["dtype"] == "float32"
    assert len(file.test.blocks()) == 1


def test_a_shape_is_that_in_which_images_are_read(tmp_path) -> None:
    for k, (dimensions, shape) in enumerate(
        {(4, 6): (1, 4, 6), (3, 2, 5): (3, 2, 5), (24,): None}.items()
    ):
        assert image_shape(em.read_images(idx_file(tmp_path / f"{k}", *dimensions))) == shape
    path = in_folder(tmp_path / "some", {"a/1.png": LARGE, "b/1.png": b"never read"})
    assert image_shape(em.read_images(path)) == (3, 8, 6)
    assert image_shape(em.read_images(path, mode="L")) == (1, 8, 6)
    assert image_shape(em.read_images(path, size=(8, 2))) == (3, 8, 2)
    assert image_shape(em.from_arrays(np.zeros((2, 16)), np.zeros(2))) is None
    with pytest.raises(DataError, match="has no pictures in folders"):
        image_shape(em.read_images(in_folder(tmp_path / "none", {"a/notes.txt": b"no"})))


@pytest.mark.torch
def test_a_networks_test_images_of_equal_area_and_another_shape_are_refused(tmp_path) -> None:
    train = em.read_images(idx_file(tmp_path / "train", 4, 6))
    test = em.read_images(idx_file(tmp_path / "test", 3, 8))
    rows = em.from_arrays(np.zeros((2, 24)), np.arange(2))
    report = r"data\.test: .*pictures have shape \[1, 3, 8\], wanted \[1, 4, 6\] as in training"
    # Without training images the configured shape is used, if it is that of an image.
    for data, tested, shape in ((train, test, None), (rows, test, (1, 4, 6))):
        algorithm = em.LocalSGD(model="tests.networks:linear", shape=shape)
        with pytest.raises(DataError, match=report):
            em.Job(algorithm, data, test=tested).check_data()
    for data, tested, shape in ((train, train, None), (rows, test, None), (rows, test, (24,))):
        algorithm = em.LocalSGD(model="tests.networks:linear", shape=shape)
        em.Job(algorithm, data, test=tested).check_data()
