"""Images in folders and archives become rows channel by channel, labelled by their folder."""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from elasticml.data.readers import image_files, image_folder
from elasticml.data.readers.image_files import Folders
from elasticml.data.readers.images import read_images
from elasticml.data.source import load_all, merge_summaries, read_block, source_from_spec
from elasticml.errors import ConfigError, DataError
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
def test_every_image_is_in_exactly_one_block(tmp_path, monkeypatch, put, n_bytes):
    monkeypatch.setattr(image_folder, "BLOCK_BYTES", n_bytes)
    expected = drawn()
    files = {name: png(pixels) for name, pixels in expected.items()} | {"cat/notes.txt": b"no"}
    source = source_from_spec(read_images(put(tmp_path, files), dtype="float32").spec())
    chunks = [chunk for block in source.blocks() for chunk in source.read(block.index, 2**20, 1)[0]]
    values = np.concatenate([chunk.values for chunk in chunks])
    planes = [pixels.transpose(2, 0, 1).reshape(-1).tolist() for pixels in expected.values()]
    assert values.tolist() == planes
    assert np.concatenate([c.labels for c in chunks]).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert len({chunk.id for chunk in chunks}) == len(chunks)


@every_place
def test_images_of_several_sizes_are_resized_on_request(tmp_path, put):
    files = {"a/0.png": png(np.full((8, 6, 3), 7, np.uint8)), "b/1.png": png(drawn()["cat/0.png"])}
    path = put(tmp_path, files)
    with pytest.raises(DataError, match=r"b/1.png is 3 x 4 pixels, wanted 8 x 6 .*set data.size"):
        load_all(read_images(path))
    (chunk,) = load_all(read_images(path, size=[2, 2], mode="L"))
    assert (chunk.values.shape, chunk.values[0].tolist()) == ((2, 4), [7.0] * 4)


@pytest.mark.parametrize("put", [in_zip, in_tar])
def test_a_truncated_archive_is_named(tmp_path, put):
    path = Path(put(tmp_path, {name: png(pixels) for name, pixels in drawn().items()}))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="is damaged"):
        load_all(read_images(str(path)))


@every_place
def test_a_file_that_is_no_image_is_named(tmp_path, put):
    path = put(tmp_path, {"a/0.png": png(drawn()["cat/0.png"]), "b/1.png": b"nonsense"})
    with pytest.raises(
        DataError, match=r"1.png of .* cannot be decoded .*Pillow does not know its format"
    ):
        load_all(read_images(path))


@every_place
def test_a_folder_without_images_says_what_is_expected(tmp_path, put):
    with pytest.raises(DataError, match="wanted one folder for each class"):
        load_all(read_images(put(tmp_path, {"a/notes.txt": b"no"})))


@pytest.mark.parametrize("put", [in_folder, in_zip])
def test_images_have_one_size_in_all_blocks(tmp_path, monkeypatch, put):
    """Images may agree within each block, but not between blocks."""
    monkeypatch.setattr(image_folder, "BLOCK_BYTES", 1)
    small, large = png(drawn()["cat/0.png"]), png(np.zeros((8, 6, 3), np.uint8))
    source = read_images(put(tmp_path, {"a/0.png": small, "b/1.png": large}))
    source.read(0, 2**20, 1)
    with pytest.raises(DataError, match=r"b/1.png is 8 x 6 pixels, wanted 3 x 4 as the first"):
        source.read(1, 2**20, 1)


@every_place
def test_test_images_are_labelled_as_the_training_images(tmp_path, monkeypatch, put):
    monkeypatch.setattr(image_folder, "BLOCK_BYTES", 1)
    files = {name: png(pixels) for name, pixels in drawn().items()}
    training = read_images(put(tmp_path, files))
    facts = merge_summaries([training.read(b.index, 2**20, 1)[1] for b in training.blocks()])
    (tmp_path / "test").mkdir()
    test = read_images(put(tmp_path / "test", {"dog/0.png": files["dog/0.png"]}))
    known = source_from_spec(test.with_stats(facts).spec())
    assert [chunk.labels.tolist() for chunk in load_all(known)] == [[2.0]]
    assert known.fingerprint() != test.fingerprint()
    (tmp_path / "other").mkdir()
    other = read_images(put(tmp_path / "other", {"cow/0.png": files["dog/0.png"]}))
    with pytest.raises(DataError, match=r"folder cow, wanted one of the 3 classes .*: bird, cat"):
        load_all(other.with_stats(facts))


@every_place
def test_test_images_of_another_size_are_refused(tmp_path, put):
    source = read_images(put(tmp_path, {"a/0.png": png(drawn()["cat/0.png"])}))
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


def test_images_whose_changes_cannot_be_detected_are_not_cached(tmp_path, monkeypatch):
    source = read_images(in_folder(tmp_path, {"a/0.png": png(drawn()["cat/0.png"])}))
    assert source.is_costly
    monkeypatch.setattr(image_files, "version_of", lambda inner, info: "")
    assert not source.is_costly
    assert len(load_all(source)) == 1


def test_a_large_folder_is_listed_again_when_that_is_cheap_compared_to_the_wait(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(image_files, "LISTED_ANEW_MAX", 1)
    path = in_folder(tmp_path, {name: b"x" for name in ("a/0.png", "a/1.png")})
    # Listing takes from 10 to 12: it is valid until 18.
    times = iter([10.0, 12.0, 17.9, 18.0, 18.5])
    folders = Folders(clock=lambda: next(times))
    assert len(folders.listing(path).names) == 2
    in_folder(tmp_path, {"a/2.png": b"x"})
    assert len(folders.listing(path).names) == 2
    assert len(folders.listing(path).names) == 3


def test_an_image_that_changes_after_it_was_listed_is_an_error(tmp_path):
    path = in_folder(tmp_path, {"a/0.png": png(drawn()["cat/0.png"])})
    listing = image_files.listing_of(path)
    os.utime(Path(path) / "a" / "0.png", (1, 1))
    with pytest.raises(DataError, match=r"a/0.png changed while the job was reading"):
        list(image_files.contents(path, ["a/0.png"], listing))


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


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_a_tar_archive_are_images_too(tmp_path, kind):
    """If one file has two names, tar stores the second as a link to the first."""
    first, path = drawn()["cat/0.png"], tmp_path / "pictures.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, to in (("a/1.png", "b/0.png"), ("b/0.png", None), ("b/2.png", "b/0.png")):
            entry = tarfile.TarInfo(f"train/{name}")
            content = b"" if to else png(first)
            entry.size = len(content)
            if to:
                entry.type = kind
                entry.linkname = f"train/{to}" if kind == tarfile.LNKTYPE else f"../{to}"
            archive.addfile(entry, io.BytesIO(content))
    (chunk,) = load_all(read_images(str(path)))
    assert chunk.labels.tolist() == [1.0, 0.0, 1.0]
    assert chunk.values.tolist() == [first.transpose(2, 0, 1).reshape(-1).tolist()] * 3


def link_to_nothing(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("train/a/0.png")
        entry.type, entry.linkname = tarfile.LNKTYPE, "train/b/0.png"
        archive.addfile(entry)


def names_twice(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            entry = tarfile.TarInfo("train/a/0.png")
            content = png(drawn()["cat/0.png"])
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def damaged_xz(path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for i in range(40):
            entry = tarfile.TarInfo(f"train/a/{i}.png")
            content = png(np.random.default_rng(i).integers(0, 256, (60, 60, 3), np.uint8))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    packed = bytearray(lzma.compress(raw.getvalue()))
    packed[300_000:300_050] = bytes(50)
    path.write_bytes(packed)


def damaged_lzma(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("train/a/0.png", np.random.default_rng(0).bytes(10_000))
    packed = bytearray(path.read_bytes())
    packed[5000:5050] = bytes(50)
    path.write_bytes(packed)


def twice_in_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for value in (1, 2):
            archive.writestr("train/a/0.png", png(np.full((3, 4, 3), value, np.uint8)))


def zip_with_flags(path: Path, at: int, value: int) -> None:
    """Write a zip archive whose entry has other flags, in both of its headers."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train/a/0.png", png(drawn()["cat/0.png"]))
    packed = bytearray(path.read_bytes())
    packed[packed.index(b"PK\3\4") + at] = value
    packed[packed.index(b"PK\1\2") + at + 2] = value
    path.write_bytes(packed)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "write", "text"),
    [
        ("p.tar", link_to_nothing, r"a/0.png is a link to train/b/0.png, which is not a file"),
        ("p.tar", names_twice, r"contains train/a/0.png twice, wanted every name once"),
        ("p.zip", twice_in_zip, r"contains train/a/0.png twice, wanted every name once"),
        ("p.tar.xz", damaged_xz, r"ends early or is damaged"),
        ("p.zip", damaged_lzma, r"ends early or is damaged"),
        (
            "p.zip",
            lambda path: zip_with_flags(path, 6, 1),
            r"train/a/0.png is encrypted, wanted it",
        ),
        (
            "p.zip",
            lambda path: zip_with_flags(path, 8, 97),
            r"compressed in a way that Python cannot read",
        ),
    ],
)
def test_an_unreadable_archive_is_named_in_one_line(tmp_path, name, write, text):
    write(tmp_path / name)
    with pytest.raises(DataError, match=text) as caught:
        load_all(read_images(str(tmp_path / name), size=[3, 4]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "CMYK"}, "data.mode: got 'CMYK' \\(there is RGB, L\\)"),
        ({"size": [32]}, r"data.size\[1\] is missing"),
        ({"size": [0, 32]}, r"data.size\[0\]: got 0, wanted at least 1"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        read_images(str(tmp_path), **settings)


def test_idx_files_have_no_size_to_be_set(tmp_path):
    with pytest.raises(
        ConfigError, match=r"data.size is only for folders and archives of pictures"
    ):
        read_images(str(tmp_path / "a-images-idx3-ubyte"), size=[32, 32])


@pytest.mark.slow
def test_the_cifar_archive_has_the_documented_content(data_dir):
    source = read_images(str(data_dir / "cifar10_jpeg" / "cifar10_test.tar.xz"), dtype="float32")
    chunks, summary = source.read(0, 200 * 2**10, 1)
    assert (summary.rows, summary.n_columns) == (10_000, 3072)
    assert dict(summary.labels) == {float(k): 1000 for k in range(10)}
    assert max(chunk.nbytes for chunk in chunks) <= 200 * 2**10
