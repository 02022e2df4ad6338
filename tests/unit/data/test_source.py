"""Facts merge, chunk sizes follow the rule, chunks are read again, costly blocks are cached."""

from __future__ import annotations

import gzip
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticml.data import cache, files
from elasticml.data.arrays import from_arrays
from elasticml.data.chunk import Layout
from elasticml.data.cut import row_bounds
from elasticml.data.facts import BlockSummary, DataFacts, merge_summaries
from elasticml.data.source import chunk_size, read_block, read_chunks, source_from_spec
from elasticml.data.svmlight import SvmlightSource, read_svmlight
from elasticml.errors import ConfigError, DataError
from elasticml.terms import ChunkId

CSR = Layout(kind="csr", n_columns=3)


def summary(block: int, **changed: object) -> BlockSummary:
    return replace(
        BlockSummary(
            block=block,
            rows=2,
            n_columns=3,
            layout=CSR,
            labels={-1.0: 1, 1.0: 1},
            weight_sum=2.0,
            n_chunks=1,
            nbytes=100,
        ),
        **changed,
    )


def packed(folder: Path, n: int = 400) -> SvmlightSource:
    text = "".join(f"{i} 1:{i} 2:0.5 7:3\n" for i in range(n))
    (folder / "data.svm.gz").write_bytes(gzip.compress(text.encode()))
    return read_svmlight(str(folder / "data.svm.gz"))


def test_chunk_size_is_a_share_between_16_kib_and_1_mib() -> None:
    assert chunk_size(10**12, 4) == 2**20
    assert chunk_size(64 * 4 * 50_000, 4) == 50_000
    assert chunk_size(1000, 4) == 16 * 2**10


def test_rows_go_to_chunks_that_fit_and_a_large_row_has_its_own() -> None:
    sizes = np.array([400, 400, 5000, 300, 300, 300, 300])
    assert row_bounds(sizes, 576 + 1000).tolist() == [0, 2, 3, 6, 7]
    assert row_bounds(sizes[:0], 1000).tolist() == [0]


def test_facts_are_the_same_in_any_order_of_summaries() -> None:
    parts = [
        summary(0, counts={"{} rows were odd": 2}, vocabularies={"c": ["b", "a"]}),
        summary(1, n_columns=5, labels={1.0: 2}, counts={"{} rows were odd": 3}),
        summary(2, layout=replace(CSR, kind="binary_csr"), vocabularies={"c": ["c"]}),
    ]
    facts = merge_summaries(parts)
    assert facts == merge_summaries(parts[::-1])
    assert facts == DataFacts(
        n_rows=6,
        n_columns=5,
        classes=(-1.0, 1.0),
        label_counts={-1.0: 2, 1.0: 4},
        layout=Layout(kind="csr", n_columns=5),
        weight_sum=6.0,
        n_blocks=3,
        n_chunks=3,
        nbytes=300,
        notes=("5 rows were odd",),
        vocabularies={"c": ("a", "b", "c")},
    )


def test_all_binary_blocks_stay_binary() -> None:
    binary = replace(CSR, kind="binary_csr")
    parts = [summary(i, layout=binary) for i in range(2)]
    assert merge_summaries(parts, n_columns=9).layout == replace(binary, n_columns=9)


def test_many_labels_are_continuous() -> None:
    few = [summary(i, labels={float(i * 600 + j): 1 for j in range(600)}) for i in range(2)]
    assert merge_summaries(few[:1]).classes is not None
    assert merge_summaries(few).classes is None
    data = from_arrays(np.ones((2000, 1)), np.arange(2000.0))
    assert data.read(0, None, 1)[1].continuous


def test_blocks_that_do_not_fit_together_are_named() -> None:
    dense = Layout(kind="dense", n_columns=3)
    with pytest.raises(DataError, match="block 1 of d is dense with 3 columns, wanted csr with 3"):
        merge_summaries([summary(0), summary(1, layout=dense)], name="d")
    wide = summary(1, layout=replace(dense, n_columns=4), n_columns=4)
    with pytest.raises(
        DataError, match="block 1 of d is dense with 4 columns, wanted dense with 3"
    ):
        merge_summaries([summary(0, layout=dense), wide], name="d")
    with pytest.raises(DataError, match="the data holds no examples"):
        merge_summaries([])
    with pytest.raises(DataError, match="d: the weights of all examples are 0"):
        merge_summaries([summary(0, weight_sum=0.0)], name="d")
    # A survey has looked at no weights.
    surveyed = summary(0, weight_sum=0.0, n_chunks=0, vocabularies={"c": ["a"]})
    assert merge_summaries([surveyed]).n_rows == 2


def test_an_empty_block_has_no_say_in_the_layout() -> None:
    empty = summary(0, rows=0, n_columns=0, layout=Layout(kind="dense", n_columns=0), labels={})
    assert merge_summaries([empty, summary(1)]).layout == CSR


def test_summaries_and_facts_survive_json() -> None:
    one = summary(3, vocabularies={"c": ["a"]}, counts={"{} x": 1}, index_base=1)
    assert BlockSummary.from_json(json.loads(json.dumps(one.to_json()))) == one
    facts = merge_summaries([one])
    again = DataFacts.from_json(json.loads(json.dumps(facts.to_json())))
    assert again.to_json() == facts.to_json()
    assert again.classes == facts.classes


def test_single_chunks_are_read_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    (tmp_path / "a").write_text("".join(f"{i} 1:{i} 2:2\n" for i in range(500)))
    data = read_svmlight(str(tmp_path / "a"))
    all_chunks = [c for b in data.blocks() for c in data.read(b.index, 1200, 4)[0]]
    wanted = [all_chunks[i] for i in (7, 0, 3, len(all_chunks) - 1)]
    again = read_chunks(data, [chunk.id for chunk in wanted], 1200, 4, tmp_path / "cache")
    assert [bytes(c.body) for c in again] == [bytes(c.body) for c in wanted]
    assert not (tmp_path / "cache").exists()
    with pytest.raises(DataError, match="has no chunk"):
        read_chunks(data, [ChunkId(data.fingerprint(), 0, 999)], 1200, 4)


def test_a_compressed_block_is_parsed_once_and_mapped_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = packed(tmp_path), tmp_path / "cache"
    chunks, first = read_block(data, 0, 2000, 4, folder)
    calls: list[int] = []
    monkeypatch.setattr(SvmlightSource, "read", lambda self, *rest: calls.append(1))
    again, second = read_block(data, 0, 2000, 4, folder)
    assert calls == []
    assert second == first
    assert [(c.id, bytes(c.body)) for c in again] == [(c.id, bytes(c.body)) for c in chunks]
    assert all(chunk.labels.ctypes.data % 64 == 0 for chunk in again)


def test_a_damaged_cache_is_parsed_again(tmp_path: Path) -> None:
    data, folder = packed(tmp_path), tmp_path / "cache"
    chunks, _ = read_block(data, 0, 2000, 4, folder)
    (path,) = folder.glob("*.chunks")
    whole = path.read_bytes()
    for raw in (b"", whole[:100], whole[:-64], whole[:-200] + b"x" + whole[-199:]):
        path.write_bytes(raw)
        again, _ = read_block(data, 0, 2000, 4, folder)
        assert [bytes(c.body) for c in again] == [bytes(c.body) for c in chunks]
        assert path.read_bytes() == whole


def test_members_that_want_the_same_block_parse_it_once(tmp_path: Path) -> None:
    data = packed(tmp_path)
    reached, release, parses = threading.Event(), threading.Event(), []

    def parse() -> cache.Block:
        parses.append(1)
        reached.set()
        release.wait()
        return data.read(0, 2000, 1)

    found: list[cache.Block] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.cached("k", parse, tmp_path / "cache")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    reached.wait()
    release.set()
    for thread in threads:
        thread.join()
    assert len(parses) == 1
    assert len({tuple(bytes(c.body) for c in chunks) for chunks, _ in found}) == 1


def test_without_a_usable_directory_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    chunks, _ = read_block(packed(tmp_path), 0, 2000, 4, tmp_path / "file" / "cache")
    assert sum(chunk.n_rows for chunk in chunks) == 400


def test_a_failed_parse_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"1 1:2\n1 1:x\n"))
    with pytest.raises(DataError, match="line 2"):
        read_block(read_svmlight(str(tmp_path / "a.gz")), 0, None, 1, tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*.chunks")) == []


def test_the_oldest_blocks_go_when_the_cache_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = packed(tmp_path)
    for i, size in enumerate((2000, 2001, 2002)):
        read_block(data, 0, size, 4, tmp_path / "cache")
        (path,) = (tmp_path / "cache").glob(f"*-{size}.chunks")
        os.utime(path, (i, i))
    monkeypatch.setattr(cache, "CACHE_BYTES_MAX", 2 * path.stat().st_size)
    read_block(data, 0, 2003, 4, tmp_path / "cache")
    left = sorted(path.stem.rpartition("-")[2] for path in (tmp_path / "cache").glob("*.chunks"))
    assert left == ["2002", "2003"]


def test_the_cache_directory_can_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICML_CACHE", str(tmp_path / "here"))
    assert cache.cache_directory() == tmp_path / "here"
    assert cache.cache_directory(tmp_path) == tmp_path


def test_a_spec_without_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is missing; format svmlight needs it"):
        source_from_spec({"format": "svmlight"})
