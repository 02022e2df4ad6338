"""Read a folder of chunk files written by ``elasticml convert``: memory-mapped, never parsed."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.chunker import OVERHEAD_BYTES
from elasticml.data.chunks.rows import cut_rows, rows_of_chunk
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.formats import Format, LocalOrUrl, reader
from elasticml.data.source import CHUNKS_MANIFEST, BlockInfo
from elasticml.data.storage.block_file import Block, map_block
from elasticml.data.storage.filesystem import is_url
from elasticml.data.storage.untrusted_files import check_regular, reads_untrusted_files
from elasticml.errors import ConfigError, DataError, one_line

VERSION: Final = 2


def _local(path: str) -> str:
    if is_url(path):
        raise ConfigError(
            f"data.path is {path}, wanted a folder on a disk that all members can access: chunk "
            "files are memory-mapped; copy the folder there",
            key="data.path",
        )
    return path


@reads_untrusted_files
class ConvertedSource(Format):
    """Return a source for a folder of chunk files; nothing is read yet.

    Parameters
    ----------
    path : str
        A folder written by ``elasticml convert``, on a disk that all members can access.

    Raises
    ------
    ConfigError
        When the path is a URL, or a setting is out of range.

    Examples
    --------
    >>> source = em.read_converted("flights.chunks")  # written by elasticml convert
    """

    format = "chunks"
    reader = "read_converted"

    path: Annotated[LocalOrUrl, AfterValidator(_local)] = Field(
        kw_only=False, description="folder written by elasticml convert"
    )

    def check(self) -> None:
        """Check constraints between fields."""
        if self.dtype != "float64":
            raise ValueError(f"dtype: got {self.dtype}, and chunks keep the type that they have")

    def fingerprint(self) -> str:
        """Return 16 hex digits over the original source, its version, and the reading options."""
        return str(self.manifest()["name"])

    def manifest(self) -> Mapping[str, Any]:
        """Return the folder's manifest.

        Raises
        ------
        ConfigError
            When the folder or its manifest is missing.
        DataError
            When it is not a manifest, or one of another version.
        """
        path = Path(self.path) / CHUNKS_MANIFEST
        try:
            status = path.stat()
        except OSError:
            raise ConfigError(
                f"{self.path} holds no chunk files ({CHUNKS_MANIFEST} is missing); check "
                "data.path, or create it with: elasticml convert SOURCE DEST",
                path=self.path,
            ) from None
        return _read_manifest(path, status.st_mtime_ns)

    def blocks(self) -> list[BlockInfo]:
        """Return one block per chunk file; raises as :meth:`manifest` does."""
        return [
            BlockInfo(index=k, nbytes=int(entry["nbytes"]), rows=int(entry["rows"]))
            for k, entry in enumerate(self.manifest()["blocks"])
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Map one block; chunks keep the size of the conversion, ``chunk_bytes`` is ignored.

        Bodies are loaded and verified on access.
        """
        manifest = self.manifest()
        path = Path(self.path) / manifest["blocks"][block]["file"]
        try:
            chunks, summary = map_block(path)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}; copy the folder again, or convert again",
                path=str(path),
            ) from None
        if any(chunk.id[:2] != (manifest["name"], block) for chunk in chunks):
            raise DataError(
                f"{path} is of another conversion than {CHUNKS_MANIFEST} beside it; convert again",
                path=str(path),
            )
        if block == 0:
            described = {key: manifest[key] for key in ("counts", "vocabularies", "index_base")}
            summary = replace(summary, **described, encoder=manifest.get("encoder"))
        return self._narrowed(chunks, summary)

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the columns of the training data.

        Raises
        ------
        DataError
            When columns have another meaning here than in the training data.
        """
        manifest = self.manifest()
        own_words = {name: tuple(words) for name, words in manifest["vocabularies"].items()}
        training_words = {name: tuple(words) for name, words in facts.vocabularies.items()}
        bases = {facts.index_base, manifest["index_base"]} - {None}
        if own_words != training_words or len(bases) > 1:
            what = "categories" if own_words != training_words else "a first column"
            raise DataError(
                f"{self.path} was converted with other {what} than the training data have; convert "
                "the test data with --like TRAIN, the converted training data",
                path=self.path,
            )
        return self.with_columns(facts.n_columns)

    def _narrowed(self, chunks: list[Chunk], summary: BlockSummary) -> Block:
        """Drop values beyond ``n_columns``, if there are any."""
        if self.n_columns is None or summary.n_columns <= self.n_columns:
            return chunks, summary
        if summary.layout.kind == "sequence":
            return chunks, summary  # no columns to drop; the algorithm rejects another width
        cut: list[Chunk] = []
        counts = dict(summary.counts)
        for chunk in chunks:
            size = chunk.nbytes + OVERHEAD_BYTES
            rows, dtype = rows_of_chunk(chunk), chunk.layout.dtype
            parts, part_summary = cut_rows(rows, self.n_columns, "", 0, size, dtype)
            for part in parts:
                part.id = chunk.id
            cut += parts
            for sentence, count in part_summary.counts.items():
                counts[sentence] = counts.get(sentence, 0) + count
        return cut, replace(
            summary,
            n_columns=self.n_columns,
            layout=replace(summary.layout, n_columns=self.n_columns),
            counts=counts,
            nbytes=sum(chunk.nbytes for chunk in cut),
        )


@functools.lru_cache(maxsize=16)
def _read_manifest(path: Path, mtime_ns: int) -> Mapping[str, Any]:
    """Read a manifest, once per version of the file."""
    check_regular(str(path))
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["version"]
        if version == VERSION:
            [manifest[key] for key in ("name", "counts", "vocabularies", "index_base")]
            for block in manifest["blocks"]:
                if min(int(block["nbytes"]), int(block["rows"])) < 0:
                    raise ValueError("a block has a negative size")
                if Path(block["file"]).name != block["file"]:
                    raise ValueError("a file is not in the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a manifest of chunk files ({type(error).__name__}: "
            f"{one_line(error)}); convert again",
            path=str(path),
        ) from None
    if version != VERSION:
        raise DataError(
            f"{path} is of version {version}, wanted {VERSION}; convert again with this version of "
            "elasticml",
            path=str(path),
        )
    checked: Mapping[str, Any] = manifest
    return checked


read_converted = reader(ConvertedSource)
