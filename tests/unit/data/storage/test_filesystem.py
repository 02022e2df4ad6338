"""Files that are complete or absent, on local disks and through fsspec."""

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
        fsspec.filesystem("memory").rm(url, recursive=True) if exists(url) else None
    else:
        yield f"file://{tmp_path}" if request.param == "file" else str(tmp_path)


def test_names_are_joined_by_slashes_on_every_file_system():
    assert join("/a/b/", "c", "d.json") == "/a/b/c/d.json"
    assert join("/", "tmp") == "/tmp"
    assert join("runs", "x") == "runs/x"
    assert join("hdfs://nn:8020/runs", "a") == "hdfs://nn:8020/runs/a"
    assert join("hdfs:///", "runs") == "hdfs:///runs"
    assert join("memory://", "runs") == "memory:///runs"


def test_a_written_file_is_read_back_and_nothing_else_remains(place):
    file = join(place, "deep", "below", "file")
    assert (exists(file), names(join(place, "deep"))) == (False, [])
    write_whole(file, b"one")
    write_whole(file, b"two")
    assert (read_bytes(file), names(join(place, "deep", "below"))) == (b"two", ["file"])
    assert names(join(place, "deep")) == ["below"]


def test_absent_files_are_an_error_only_when_read(place):
    absent = join(place, "absent")
    remove(absent)
    assert (exists(absent), names(absent)) == (False, [])
    with pytest.raises(FileNotFoundError):
        read_bytes(absent)


def test_making_a_directory_twice_is_fine_and_removing_takes_all_in_it(place):
    make_directory(join(place, "a", "b"))
    make_directory(join(place, "a", "b"))
    write_whole(join(place, "a", "b", "c"), b"1")
    assert names(join(place, "a")) == ["b"]
    remove(join(place, "a"))
    assert exists(join(place, "a")) is False


def test_remove_empty_removes_only_empty_directories(place):
    folder = join(place, "a", "b")
    write_whole(join(folder, "c"), b"1")
    remove_empty(folder)
    assert read_bytes(join(folder, "c")) == b"1"
    remove(join(folder, "c"))
    remove_empty(folder)
    remove_empty(folder)
    assert (exists(folder), exists(join(place, "a"))) == (False, True)


def test_a_failed_write_leaves_the_old_file_and_no_remains(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(str(path), b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        ConfigError, match=r"file cannot be written: No space left on device; .*room"
    ):
        write_whole(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_remote_write_leaves_the_old_file_and_no_remains(tmp_path, monkeypatch):
    place = f"memory://places-{tmp_path.name}"
    write_whole(join(place, "file"), b"old")

    def fail(self, path1, path2, **options):
        raise OSError("the store is full")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "mv", fail)
    with pytest.raises(ConfigError, match="cannot be written: the store is full; check the host"):
        write_whole(join(place, "file"), b"new")
    assert (names(place), read_bytes(join(place, "file"))) == (["file"], b"old")
    remove(place)


def test_of_concurrent_writes_one_whole_content_remains(tmp_path):
    file = str(tmp_path / "file")
    contents = [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=write_whole, args=(file, c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_bytes(file) in contents
    assert os.listdir(tmp_path) == ["file"]


def test_errors_are_one_line_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; check the path, and that"):
        write_whole(str(tmp_path / "file" / "below"), b"")
    with pytest.raises(ConfigError, match=r"cannot be read: .*; name a local path, or a URL such"):
        read_bytes("nosuch://host/file")


def test_a_name_node_in_safe_mode_has_its_own_remedy():
    error = OSError(errno.EROFS, "Name node is in safe mode.")
    assert "hdfs dfsadmin -safemode leave" in remedy_of("hdfs://nn:8020/runs", error)
    assert "safemode" not in remedy_of("/mnt/cdrom", error)


def test_local_paths_are_told_from_others(tmp_path):
    assert local_path(str(tmp_path)) == local_path(f"file://{tmp_path}") == tmp_path
    assert local_path("hdfs:///tmp") is None
