"""Files on a real HDFS: read by byte ranges on members, written atomically, and errors."""

from __future__ import annotations

import csv
import gzip
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from distributed import Client
from sklearn.datasets import dump_svmlight_file

import elasticml as em
from elasticml.data.readers.files import absolute, file_info, open_binary
from elasticml.data.source import load_all, source_from_spec
from elasticml.data.storage.filesystem import (
    exists,
    join,
    make_directory,
    names,
    read_bytes,
    remove,
    remove_empty,
    system_of,
    write_whole,
)
from elasticml.errors import ConfigError
from tests.http_server import closed_url

pytestmark = [pytest.mark.yarn, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(mini_yarn):
    """A directory of HDFS, removed afterwards."""
    place = join(mini_yarn.hdfs_url, "tmp", "places")
    make_directory(place)
    yield place
    remove(place)
    assert exists(place) is False


def copied(folder, path, name=None):
    place = join(folder, name or path.name)
    write_whole(place, path.read_bytes())
    return place


def same(one, other):
    """Whether two sources give the same chunks, except for ids, which depend on the path."""
    names = ("labels", "values", "indptr", "indices", "codes")
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(load_all(one), load_all(other), strict=True)
        for name in names
    )


def test_a_written_file_is_read_back_and_nothing_else_remains(folder):
    file = join(folder, "a b#%?é", "file")
    content = os.urandom(3_000_000)
    write_whole(file, b"old")
    write_whole(file, content)
    assert read_bytes(file) == content
    assert names(join(folder, "a b#%?é")) == ["file"]
    assert (exists(join(folder, "no")), names(join(folder, "no"))) == (False, [])
    with pytest.raises(FileNotFoundError):
        read_bytes(join(folder, "no"))


def test_remove_empty_removes_only_empty_directories(folder):
    inner = join(folder, "claimed", "driver")
    write_whole(join(inner, "claim"), b"1")
    remove_empty(inner)
    assert read_bytes(join(inner, "claim")) == b"1"
    remove(join(inner, "claim"))
    remove_empty(inner)
    remove_empty(inner)
    assert (exists(inner), exists(join(folder, "claimed"))) == (False, True)


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


@pytest.mark.slow
def test_every_reader_gives_the_same_as_for_a_local_file(folder, tmp_path):
    chance = np.random.default_rng(0)
    X, y = chance.normal(size=(200, 3)), chance.integers(0, 2, 200)
    dump_svmlight_file(X, y, str(tmp_path / "x.svm"))
    with gzip.open(tmp_path / "x.svm.gz", "wb") as file:
        file.write((tmp_path / "x.svm").read_bytes())
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["label", "a", "b", "c"], *np.column_stack([y, X]).tolist()])
    table = pyarrow.table({"label": y, "a": X[:, 0], "b": X[:, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=50)
    (tmp_path / "x.tsv").write_text(
        "".join(f"{i % 2}\tACGTACGT{'ACGT'[i % 4]}\n" for i in range(99))
    )
    specs = [
        {"format": "svmlight", "path": "x.svm"},
        {"format": "svmlight", "path": "x.svm.gz"},
        {"format": "csv", "path": "x.csv", "label": "label"},
        {"format": "parquet", "path": "x.parquet", "label": "label"},
        {"format": "sequences", "path": "x.tsv", "ngrams": [1, 2]},
    ]
    for spec in specs:
        here = tmp_path / spec["path"]
        there = copied(folder, here)
        assert same(
            source_from_spec({**spec, "path": str(here)}), source_from_spec({**spec, "path": there})
        ), spec


def test_a_change_of_a_file_changes_the_fingerprint(folder):
    place = join(folder, "changing.svm")
    spec = {"format": "svmlight", "path": place}
    write_whole(place, b"1 1:1\n0 2:1\n")
    before = source_from_spec(spec).fingerprint()
    assert source_from_spec(spec).fingerprint() == before
    write_whole(place, b"1 1:1\n0 2:2\n")
    assert source_from_spec(spec).fingerprint() != before


@pytest.mark.slow
def test_members_of_a_cluster_read_it_and_train(folder, tmp_path):
    chance = np.random.default_rng(0)
    X, y = chance.normal(size=(500, 4)), chance.integers(0, 2, 500)
    dump_svmlight_file(X, y, str(tmp_path / "train.svm"))
    copied(folder, tmp_path / "train.svm")
    with em.LocalCluster(2) as cluster, Client(cluster) as client:
        objectives = [
            em.Job(
                em.BatchGradient(intercept=False, tolerance=0.0, scale="none"),
                em.read_svmlight(path),
                stop=em.Stop(rounds=3),
            )
            .run(client)
            .history[-1]["objective"]
            for path in ("hdfs:///tmp/places/train.svm", str(tmp_path / "train.svm"))
        ]
    assert objectives[0] == objectives[1]


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
