"""Files that are complete or absent, on local disks and through fsspec."""

from __future__ import annotations

import errno
import os
import threading

import fsspec
import pytest

from elasticml.data.storage.filesystem import (
    exists,
    join,
    local_path,
    make_directory,
    names,
    read_bytes,
    remedy_of,
    remove,
    remove_empty,
    write_whole,
)
from elasticml.errors import ConfigError


@pytest.fixture(params=["local", "file", "memory"])
def place(request, tmp_path):
    if request.param == "memory":
        url = f"memory://places-{tmp_path.name}"
        yield url
        remove(url)
    else:
        yield f"file://{tmp_path}" if request.param == "file" else str(tmp_path)


def test_names_are_joined_by_slashes_and_local_paths_told_from_others(tmp_path) -> None:
    for parts, wanted in (
        (("/a/b/", "c", "d.json"), "/a/b/c/d.json"),
        (("/", "tmp"), "/tmp"),
        (("runs", "x"), "runs/x"),
        (("hdfs://nn:8020/runs", "a"), "hdfs://nn:8020/runs/a"),
        (("hdfs:///", "runs"), "hdfs:///runs"),
        (("memory://", "runs"), "memory:///runs"),
    ):
        assert join(*parts) == wanted
    assert local_path(str(tmp_path)) == local_path(f"file://{tmp_path}") == tmp_path
    assert local_path("memory://x") is None


def test_files_and_folders_are_written_listed_and_removed(place) -> None:
    deep, absent = join(place, "deep"), join(place, "absent")
    file = join(deep, "below", "file")
    remove(absent)
    for path in (absent, file):
        assert (exists(path), names(path)) == (False, [])
    with pytest.raises(FileNotFoundError):
        read_bytes(absent)
    for content in (b"one", b"two"):
        write_whole(file, content)
        make_directory(join(deep, "below"))
    assert (read_bytes(file), names(join(deep, "below")), names(deep)) == (
        b"two",
        ["file"],
        ["below"],
    )
    remove_empty(join(deep, "below"))
    assert exists(file)
    remove(file)
    for _ in range(2):
        remove_empty(join(deep, "below"))
        assert (exists(join(deep, "below")), exists(deep)) == (False, True)
    write_whole(file, b"1")
    remove(deep)
    assert not exists(deep)


@pytest.mark.parametrize(("owner", "function"), [(os, "fsync"), (None, "mv")])
def test_a_failed_write_leaves_the_old_file_and_no_remains(
    tmp_path, monkeypatch, owner, function
) -> None:
    folder = str(tmp_path) if owner else f"memory://places-{tmp_path.name}"
    write_whole(join(folder, "file"), b"old")

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner or type(fsspec.filesystem("memory")), function, fail)
    with pytest.raises(ConfigError, match=r"file cannot be written: No space left on .*; .*room"):
        write_whole(join(folder, "file"), b"new")
    assert (names(folder), read_bytes(join(folder, "file"))) == (["file"], b"old")


def test_of_concurrent_writes_one_whole_content_remains(tmp_path) -> None:
    file = str(tmp_path / "file")
    contents = [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=write_whole, args=(file, c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_bytes(file) in contents
    assert os.listdir(tmp_path) == ["file"]


def test_errors_are_one_line_with_the_remedy(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; check the path, and that"):
        write_whole(str(tmp_path / "file" / "below"), b"")
    with pytest.raises(ConfigError, match=r"cannot be read: .*; name a local path, or a URL such"):
        read_bytes("nosuch://host/file")
    error = OSError(errno.EROFS, "Name node is in safe mode.")
    assert "hdfs dfsadmin -safemode leave" in remedy_of("hdfs://nn:8020/runs", error)
    assert "safemode" not in remedy_of("/mnt/cdrom", error)
