"""Dataset statistics merge, chunk sizes follow the rule, chunks are read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Layout
from elasticml.data.chunks.chunker import row_bounds
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, merge_summaries
from elasticml.data.readers import files
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.readers.svmlight import read_svmlight
from elasticml.data.source import chunk_size, read_again, source_from_spec
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId

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


def test_chunk_size_is_a_share_between_16_kib_and_1_mib() -> None:
    assert chunk_size(10**12, 4) == 2**20
    assert chunk_size(64 * 4 * 50_000, 4) == 50_000
    assert chunk_size(1000, 4) == 16 * 2**10


def test_rows_go_to_chunks_that_fit_and_a_large_row_has_its_own() -> None:
    sizes = np.array([400, 400, 5000, 300, 300, 300, 300])
    assert row_bounds(sizes, 576 + 1000).tolist() == [0, 2, 3, 6, 7]
    assert row_bounds(sizes[:0], 1000).tolist() == [0]


def test_statistics_are_the_same_in_any_order_of_summaries() -> None:
    parts = [
        summary(0, counts={"{} rows were odd": 2}, vocabularies={"c": ["b", "a"]}),
        summary(1, n_columns=5, labels={1.0: 2}, counts={"{} rows were odd": 3}),
        summary(2, layout=replace(CSR, kind="binary_csr"), vocabularies={"c": ["c"]}),
    ]
    facts = merge_summaries(parts)
    assert facts == merge_summaries(parts[::-1])
    assert facts == DatasetStats(
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
    assert merge_summaries(parts).layout == binary


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
    # A survey does not read weights.
    surveyed = summary(0, weight_sum=0.0, n_chunks=0, vocabularies={"c": ["a"]})
    assert merge_summaries([surveyed]).n_rows == 2


def test_an_empty_block_does_not_affect_the_layout() -> None:
    empty = summary(0, rows=0, n_columns=0, layout=Layout(kind="dense", n_columns=0), labels={})
    assert merge_summaries([empty, summary(1)]).layout == CSR


def test_summaries_and_statistics_survive_json() -> None:
    one = summary(3, vocabularies={"c": ["a"]}, counts={"{} x": 1}, index_base=1)
    assert BlockSummary.from_json(json.loads(json.dumps(one.to_json()))) == one
    facts = merge_summaries([one])
    again = DatasetStats.from_json(json.loads(json.dumps(facts.to_json())))
    assert again.to_json() == facts.to_json()
    assert again.classes == facts.classes


def test_single_chunks_are_read_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    (tmp_path / "a").write_text("".join(f"{i} 1:{i} 2:2\n" for i in range(500)))
    data = read_svmlight(str(tmp_path / "a"))
    all_chunks = [c for b in data.blocks() for c in data.read(b.index, 1200, 4)[0]]
    expected = [all_chunks[i] for i in (7, 0, 3, len(all_chunks) - 1)]
    again = read_again(data, [chunk.id for chunk in expected], 1200, 4, tmp_path / "cache")
    assert [bytes(c.body) for c in again] == [bytes(c.body) for c in expected]
    with pytest.raises(DataError, match="has no chunk"):
        read_again(data, [ChunkId(data.fingerprint(), 0, 999)], 1200, 4)


def test_a_spec_without_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is missing: local path, or URL"):
        source_from_spec({"format": "svmlight"})
