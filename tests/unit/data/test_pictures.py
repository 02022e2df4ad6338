"""Pictures in folders and archives become rows channel by channel, labelled by their folder."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from elasticml.data import pictures
from elasticml.data.images import read_images
from elasticml.data.source import load_all, source_from_spec
from elasticml.errors import ConfigError, DataError

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


def in_zip(folder: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(f"train/{name}", content)
    return str(folder / "pictures.zip")


def in_tar(folder: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(folder / "pictures.tar.xz", "w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"train/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(folder / "pictures.tar.xz")


every_place = pytest.mark.parametrize("put", [in_folder, in_zip, in_tar])


@every_place
@pytest.mark.parametrize("n_bytes", [1, 200, 2**23])
def test_every_picture_is_in_exactly_one_block(tmp_path, monkeypatch, put, n_bytes):
    monkeypatch.setattr(pictures, "BLOCK_BYTES", n_bytes)
    wanted = drawn()
    files = {name: png(pixels) for name, pixels in wanted.items()} | {"cat/notes.txt": b"no"}
    source = source_from_spec(read_images(put(tmp_path, files), dtype="float32").spec())
    chunks = [chunk for block in source.blocks() for chunk in source.read(block.index, 2**20, 1)[0]]
    values = np.concatenate([chunk.values for chunk in chunks])
    planes = [pixels.transpose(2, 0, 1).reshape(-1).tolist() for pixels in wanted.values()]
    assert values.tolist() == planes
    assert np.concatenate([c.labels for c in chunks]).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert len({chunk.id for chunk in chunks}) == len(chunks)


@every_place
def test_pictures_of_several_sizes_are_resized_where_the_job_says_so(tmp_path, put):
    files = {"a/0.png": png(np.full((8, 6, 3), 7, np.uint8)), "b/1.png": png(drawn()["cat/0.png"])}
    path = put(tmp_path, files)
    with pytest.raises(DataError, match=r"1.png is 3 x 4 pixels, wanted 8 x 6 .*set data.size"):
        load_all(read_images(path))
    (chunk,) = load_all(read_images(path, size=[2, 2], mode="L"))
    assert (chunk.values.shape, chunk.values[0].tolist()) == ((2, 4), [7.0] * 4)


@pytest.mark.parametrize("put", [in_zip, in_tar])
def test_a_cut_archive_is_named(tmp_path, put):
    path = Path(put(tmp_path, {name: png(pixels) for name, pixels in drawn().items()}))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="is damaged"):
        load_all(read_images(str(path)))


@every_place
def test_a_file_that_is_no_picture_is_named(tmp_path, put):
    path = put(tmp_path, {"a/0.png": png(drawn()["cat/0.png"]), "b/1.png": b"nonsense"})
    with pytest.raises(DataError, match=r"1.png cannot be decoded as a picture"):
        load_all(read_images(path))


@every_place
def test_a_place_without_pictures_says_what_is_wanted(tmp_path, put):
    with pytest.raises(DataError, match="wanted one folder for each class"):
        load_all(read_images(put(tmp_path, {"a/notes.txt": b"no"})))


def test_a_change_of_a_file_changes_the_fingerprint(tmp_path):
    files = {name: png(pixels) for name, pixels in drawn().items()}
    source = read_images(in_folder(tmp_path, files))
    before = source.fingerprint()
    in_folder(tmp_path, {"cat/9.png": files["cat/0.png"]})
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "CMYK"}, "data.mode is 'CMYK', wanted 'RGB' or 'L'"),
        ({"size": [32]}, "data.size is .*, wanted height and width"),
        ({"size": [0, 32]}, "data.size is .*, wanted height and width"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        read_images(str(tmp_path), **settings)


def test_idx_files_have_no_size_to_be_set(tmp_path):
    with pytest.raises(ConfigError, match=r"data.size is for folders and archives of pictures"):
        read_images(str(tmp_path / "a-images-idx3-ubyte"), size=[32, 32])


def test_the_cifar_archive_is_what_it_says(data_dir):
    source = read_images(str(data_dir / "cifar10_jpeg" / "cifar10_test.tar.xz"), dtype="float32")
    chunks, summary = source.read(0, 200 * 2**10, 1)
    assert (summary.rows, summary.n_columns) == (10_000, 3072)
    assert dict(summary.labels) == {float(k): 1000 for k in range(10)}
    assert max(chunk.nbytes for chunk in chunks) <= 200 * 2**10
