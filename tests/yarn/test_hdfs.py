"""Files on a real HDFS: read by byte ranges on members, written atomically, and errors."""

from __future__ import annotations

import os

import pytest

from elasticml.data.readers.files import absolute, file_info, open_binary
from elasticml.data.storage.filesystem import (
    exists,
    join,
    make_directory,
    names,
    remove,
    system_of,
    write_whole,
)
from elasticml.errors import ConfigError
from tests.http_server import closed_url
from tests.unit.data.storage.test_filesystem import (  # noqa: F401
    test_files_and_folders_are_written_listed_and_removed,
)

pytestmark = [pytest.mark.yarn, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(mini_yarn):
    """A directory of HDFS, removed afterwards."""
    place = join(mini_yarn.hdfs_url, "tmp", "places")
    make_directory(place)
    yield place
    remove(place)
    assert exists(place) is False


@pytest.fixture
def place(folder):
    """Where the contract of file systems is tried, too."""
    return join(folder, "a b#%?é")


def test_ranges_across_the_file_systems_own_blocks_are_whole(folder):
    # The smallest block that the name node accepts, so that one read spans two.
    system, inner = system_of(join(folder, "ranges"))
    content = os.urandom(2_500_000)
    system.pipe_file(inner, content, blocksize=2**20)
    with open_binary(join(folder, "ranges")) as file:
        file.seek(2**20 - 10)
        assert file.read(20) == content[2**20 - 10 : 2**20 + 10]
        assert file.read() == content[2**20 + 10 :]
        assert file.read() == b""


def test_errors_are_one_line_with_a_remedy(mini_yarn, folder):
    closed = closed_url().removeprefix("http://")
    home = join(mini_yarn.hdfs_url.replace("hdfs://", "hdfs://stranger@"), "x")
    quota = join(folder, "small")
    make_directory(quota)
    mini_yarn.tool("hdfs.tools.DFSAdmin", "-setSpaceQuota", "1k", "/tmp/places/small")
    cases = [
        (lambda: write_whole(f"webhdfs://{closed}/x", b""), "does not answer", "start the server"),
        (lambda: absolute_facts("hdfs:///tmp/places/no"), "does not exist", "check data.path"),
        (lambda: write_whole(home, b""), "Permission denied: user=stranger", "name a place that"),
        (lambda: write_whole(join(quota, "x"), b"1"), "quota", "remove what is not needed"),
        (lambda: write_whole(join(folder, "file", "x"), b""), "not a directory", "check the host"),
    ]
    write_whole(join(folder, "file"), b"")
    for act, text, remedy in cases:
        with pytest.raises(ConfigError) as raised:
            act()
        message = raised.value.message
        assert (text in message, remedy in message, "\n" in message) == (True, True, False), message
    assert names(quota) == []


def absolute_facts(path):
    return file_info(absolute(path))
