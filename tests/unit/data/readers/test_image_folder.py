"""Images in folders become rows channel by channel, labelled by their folder."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from elasticml.data.readers import images
from elasticml.data.readers.images import read_images
from elasticml.data.source import load_all, merge_summaries, read_block, source_from_spec
from elasticml.errors import DataError
from tests.http_server import serving

HEIGHT, WIDTH = 3, 4
CLASSES = ("bird", "cat", "dog")


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        f"{name}/{i}.png": rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        for name in CLASSES
        for i in range(4)
    }


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def in_folder(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = folder / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder / "pictures")


@pytest.mark.parametrize("n_bytes", [1, 200, 2**23])
def test_every_image_is_in_exactly_one_block(tmp_path, monkeypatch, n_bytes):
    monkeypatch.setattr(images, "BLOCK_BYTES", n_bytes)
    expected = drawn()
    files = {name: png(pixels) for name, pixels in expected.items()} | {"cat/notes.txt": b"no"}
    source = source_from_spec(read_images(in_folder(tmp_path, files), dtype="float32").spec())
    chunks = [chunk for block in source.blocks() for chunk in source.read(block.index, 2**20, 1)[0]]
    values = np.concatenate([chunk.values for chunk in chunks])
    planes = [pixels.transpose(2, 0, 1).reshape(-1).tolist() for pixels in expected.values()]
    assert values.tolist() == planes
    assert np.concatenate([c.labels for c in chunks]).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert len({chunk.id for chunk in chunks}) == len(chunks)


def test_images_of_several_sizes_are_resized_on_request(tmp_path):
    files = {"a/0.png": png(np.full((8, 6, 3), 7, np.uint8)), "b/1.png": png(drawn()["cat/0.png"])}
    path = in_folder(tmp_path, files)
    with pytest.raises(DataError, match=r"b/1.png is 3 x 4 pixels, wanted 8 x 6 .*set data.size"):
        load_all(read_images(path))
    (chunk,) = load_all(read_images(path, size=[2, 2], mode="L"))
    assert (chunk.values.shape, chunk.values[0].tolist()) == ((2, 4), [7.0] * 4)


def test_a_file_that_is_no_image_is_named(tmp_path):
    path = in_folder(tmp_path, {"a/0.png": png(drawn()["cat/0.png"]), "b/1.png": b"nonsense"})
    with pytest.raises(
        DataError, match=r"1.png cannot be decoded .*Pillow does not know its format"
    ):
        load_all(read_images(path))


def test_images_have_one_size_in_all_blocks(tmp_path, monkeypatch):
    """Images may agree within each block, but not between blocks."""
    monkeypatch.setattr(images, "BLOCK_BYTES", 1)
    small, large = png(drawn()["cat/0.png"]), png(np.zeros((8, 6, 3), np.uint8))
    source = read_images(in_folder(tmp_path, {"a/0.png": small, "b/1.png": large}))
    source.read(0, 2**20, 1)
    with pytest.raises(DataError, match=r"b/1.png is 8 x 6 pixels, wanted 3 x 4 as the first"):
        source.read(1, 2**20, 1)


def test_test_images_are_labelled_as_the_training_images(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "BLOCK_BYTES", 1)
    files = {name: png(pixels) for name, pixels in drawn().items()}
    training = read_images(in_folder(tmp_path, files))
    facts = merge_summaries([training.read(b.index, 2**20, 1)[1] for b in training.blocks()])
    (tmp_path / "test").mkdir()
    test = read_images(in_folder(tmp_path / "test", {"dog/0.png": files["dog/0.png"]}))
    known = source_from_spec(test.with_stats(facts).spec())
    assert [chunk.labels.tolist() for chunk in load_all(known)] == [[2.0]]
    assert known.fingerprint() != test.fingerprint()
    (tmp_path / "other").mkdir()
    other = read_images(in_folder(tmp_path / "other", {"cow/0.png": files["dog/0.png"]}))
    with pytest.raises(DataError, match=r"folder cow, wanted one of the 3 classes .*: bird, cat"):
        load_all(other.with_stats(facts))


def test_test_images_of_another_size_are_refused(tmp_path):
    source = read_images(in_folder(tmp_path, {"a/0.png": png(drawn()["cat/0.png"])}))
    for n_columns in (35, 37):
        with pytest.raises(DataError, match=rf"3 x 4 pixels, 36 values, wanted {n_columns} as in"):
            load_all(source.with_columns(n_columns))


def test_a_change_of_a_file_changes_the_fingerprint(tmp_path):
    files = {name: png(pixels) for name, pixels in drawn().items()}
    source = read_images(in_folder(tmp_path, files))
    before = source.fingerprint()
    in_folder(tmp_path, {"cat/9.png": files["cat/0.png"]})
    assert source.fingerprint() != before


def test_an_overwritten_image_is_not_taken_from_the_cache(tmp_path):
    """The folder listing does not show it: neither names nor their number have changed."""
    files = {name: png(np.full((3, 4, 3), 7, np.uint8)) for name in ("deep/a/0.png", "b/0.png")}
    source, cache = read_images(in_folder(tmp_path, files)), tmp_path / "cache"
    before = read_block(source, 0, 2**20, 1, cache)[0][0].values[1].tolist()
    path = tmp_path / "pictures" / "deep/a/0.png"
    path.write_bytes(png(np.full((3, 4, 3), 8, np.uint8)))
    os.utime(path, (1, 1))
    after = read_block(source, 0, 2**20, 1, cache)[0][0].values[1].tolist()
    assert (before, after) == ([7.0] * 36, [8.0] * 36)


def test_a_folder_on_hdfs_is_read_from_its_host(tmp_path):
    """The paths that a file system lists lack the host of the URL."""
    files = {f"/data/{name}": png(pixels) for name, pixels in drawn().items()}

    def status(path: str) -> dict[str, object]:
        if path in files:
            return {"length": len(files[path]), "type": "FILE", "modificationTime": 1}
        return {"length": 0, "type": "DIRECTORY", "modificationTime": 1}

    def answer(method, url, headers, body):
        path, query = urlsplit(url).path.removeprefix("/webhdfs/v1"), urlsplit(url).query
        if "op=GETFILESTATUS" in query:
            return 200, {}, json.dumps({"FileStatus": status(path)}).encode()
        if "op=OPEN" in query:
            start = int(query.partition("offset=")[2].partition("&")[0] or 0)
            return 200, {}, files[path][start:]
        below = sorted({name[len(path) + 1 :].split("/")[0] for name in files})
        results = [{"pathSuffix": name, **status(f"{path}/{name}")} for name in below]
        if path.count("/") == 2:
            below = sorted(name for name in files if name.startswith(path + "/"))
            results = [{"pathSuffix": Path(name).name, **status(name)} for name in below]
        return 200, {}, json.dumps({"FileStatuses": {"FileStatus": results}}).encode()

    with serving(answer) as url:
        chunks = load_all(read_images(f"webhdfs://{urlsplit(url).netloc}/data"))
    expected = [pixels.transpose(2, 0, 1).reshape(-1).tolist() for pixels in drawn().values()]
    assert np.concatenate([chunk.values for chunk in chunks]).tolist() == expected
