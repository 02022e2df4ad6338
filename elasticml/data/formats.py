"""What all formats of data have in common; each is one class, a user's own ones too.

A class has the options of its format as fields, documented under "Parameters" in its docstring:
they are the keys of a job's ``data`` section, and the arguments of its ``em.read_...``. It splits
files into blocks, and reads the rows of a block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, ParamSpec, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.rows import Rows, block_layout, cut, fit_columns, joined
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, merge_layout_kinds, summarise
from elasticml.data.readers.files import (
    DataFile,
    FileBlock,
    Listing,
    absolute,
    files_of,
    fingerprint,
    text_blocks,
)
from elasticml.data.source import FILES, BlockInfo, HeldOut, resolve_chunk_bytes, unlisted
from elasticml.data.storage.untrusted_files import reads_untrusted_files
from elasticml.errors import ConfigError, one_line
from elasticml.ids import ChunkId
from elasticml.specification.settings_model import (
    Dtype,
    SettingsModel,
    documentation,
    read_settings,
    signature_of,
)
from elasticml.specification.user_objects import path_of

P = ParamSpec("P")
S = TypeVar("S", bound="Format")

#: An absolute local path, which names the same file on every member, or a URL that fsspec opens.
LocalOrUrl = Annotated[
    str,
    BeforeValidator(lambda path: os.fspath(path) if isinstance(path, os.PathLike) else path),
    AfterValidator(absolute),
]
Width = Annotated[int, Field(ge=1)] | None
#: A number of generated rows: the driver lists their blocks.
DrawnRows = Annotated[int, Field(ge=1, le=10**10)]


class Format(SettingsModel):
    """Data of one format, in blocks that any member can read.

    Parameters
    ----------
    dtype : "float64" or "float32"
        Type of the stored values.
    n_columns : int, optional
        Number of columns; values beyond them are dropped and counted in a note.
    """

    #: Its name in job files; of a user's class the import path.
    format: ClassVar[str] = ""
    #: Suffixes of files that imply it.
    suffixes: ClassVar[tuple[str, ...]] = ()
    #: The function that makes a source, for messages and documentation.
    reader: ClassVar[str] = ""
    #: The call that gives data again that only the client has; "" for files.
    given_again: ClassVar[str] = ""

    dtype: Dtype = "float64"
    n_columns: Width = None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def path_in_messages(cls) -> str:
        """Return the section of the job file."""
        return "data"

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], path: str = "data") -> Self:
        """Build a source from its spec; messages name settings after ``path``."""
        given = {key: value for key, value in spec.items() if value is not None}
        return read_settings(cls, {k: v for k, v in given.items() if k != "format"}, path)

    @property
    def needs_survey(self) -> bool:
        """Whether all blocks must be surveyed before reading."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether a block is so slow to read again that its chunks are worth caching."""
        return False

    def options(self) -> dict[str, Any]:
        """Return the options as plain values, on which the chunks depend."""
        return {"format": type(self).format or path_of(type(self)), **self.model_dump(mode="json")}

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return self.options()

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the data or the reading options."""
        return fingerprint(self.options())

    def blocks(self) -> Sequence[BlockInfo]:
        """Return the blocks, without reading them."""
        raise NotImplementedError

    def rows_of(self, block: int) -> Iterable[Rows]:
        """Return the rows of a block, in parts of any size."""
        raise NotImplementedError

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        return self.chunks_of_rows(block, self.rows_of(block), size)

    def chunks_of_rows(
        self, block: int, parts: Iterable[Rows], chunk_bytes: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Partition the rows of a block into chunks, and summarise them."""
        name, layouts = self.fingerprint(), list[Layout]()
        chunks, counts = list[Chunk](), dict[str, int]()
        for rows in parts:
            for sentence, count in rows.notes.items():
                counts[sentence] = counts.get(sentence, 0) + count
            if self.n_columns is not None:
                rows = fit_columns(rows, self.n_columns, counts)
            if len(rows.labels) or not layouts:
                layouts.append(self.layout_of(rows))
            chunks += self.cut(rows, ChunkId(name, block, len(chunks)), chunk_bytes)
        layouts = layouts or [Layout(kind="binary_csr", dtype=self.dtype, n_columns=0)]
        kinds = [chunk.layout.kind for chunk in chunks]
        layout = replace(
            layouts[-1],
            kind=merge_layout_kinds(kinds) if kinds else layouts[-1].kind,
            n_columns=max(layout.n_columns for layout in layouts),
        )
        facts = self.facts_of(block)
        counts |= facts.pop("counts", {})
        return chunks, summarise(block, chunks, layout, counts=counts, **facts)

    def layout_of(self, rows: Rows) -> Layout:
        """Return the layout of the chunks that :meth:`cut` makes of rows."""
        return block_layout(rows, self.dtype)

    def cut(self, rows: Rows, first: ChunkId, chunk_bytes: int) -> list[Chunk]:
        """Partition rows into chunks, of which ``first`` is the id of the first one."""
        return cut(
            rows,
            first.source,
            first.block,
            chunk_bytes,
            dtype=self.dtype,
            first_ordinal=first.ordinal,
        )

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return what is to be said of a block that was read; see :func:`.summarise`."""
        return {}

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Read and summarise a block; only some formats need it."""
        return self.read(block, None, 1)[1]

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the columns of the training data."""
        return self.with_columns(facts.n_columns)

    def with_columns(self, n_columns: int) -> Self:
        """Return a source with ``n_columns`` columns; values beyond them are dropped."""
        return self.model_copy(update={"n_columns": n_columns})


@reads_untrusted_files
class FileFormat(Format):
    """Files of one format: a path, a folder of files, or a pattern.

    A subclass defines :meth:`read_rows`, and :meth:`list_blocks` if its blocks are not ranges of
    lines of text.

    Parameters
    ----------
    path : str
        Local path or fsspec URL of a file, of a folder of files, or a pattern such as
        ``"2026/*.csv"``. In one file gzip, bzip2 and xz are recognised by the first bytes, in
        several by the suffix.
    """

    path: LocalOrUrl = Field(kw_only=False, description="local path, or URL that fsspec opens")
    _listing: Listing | None = PrivateAttr(default=None)

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], path: str = "data") -> Self:
        """Build a source from its spec, with the files that the spec may list."""
        made = super().of_spec(unlisted(spec), path)
        return made if spec.get(FILES) is None else made._listed(spec[FILES], path)

    def _listed(self, table: str, path: str) -> Self:
        made = self.model_copy()
        try:
            made._listing = _listing_of(self.path, table)
        except Exception as error:  # of every kind, for a damaged table
            raise ConfigError(f"{path}.{FILES}: no table of files: {one_line(error)}") from None
        return made

    def list_files(self) -> Sequence[DataFile]:
        """Return the files."""
        return files_of(self.path, self.suffixes)

    def list_blocks(self, files: Sequence[DataFile]) -> Sequence[FileBlock]:
        """Return the parts of files, each read at once; by default 8 MiB of lines of text."""
        return [block for file in files for block in text_blocks(file)]

    def read_rows(self, block: FileBlock) -> Iterable[Rows]:
        """Read the rows of a part of a file, in pieces of any size."""
        raise NotImplementedError

    def read_parts(self, block: int, parts: Sequence[FileBlock]) -> Iterable[Rows]:
        """Read the rows of a block, which has one part, or many small ones."""
        return (rows for part in parts for rows in self.read_rows(part))

    def files_in(self, block: FileBlock) -> Sequence[DataFile]:
        """Return the files of which a part is read."""
        return (block.file,)

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: text is worth it, if a change of the file can be detected."""
        return self.files.are_versioned

    @property
    def files(self) -> Listing:
        """The files and blocks: as they are now, or as they were listed once."""
        return self._listing or Listing(self.path, self.list_files, self.list_blocks)

    def listed_once(self) -> Self:
        """Return a source that lists its files once."""
        made = self.model_copy()
        made._listing = self.files
        return made

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt, with what was listed."""
        listing = self._listing
        listed = {} if listing is None or not listing.is_complete else {FILES: listing.table}
        return {**super().spec(), **listed}

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, sizes, modification times and options."""
        return self.files.fingerprint(self.options())

    def blocks(self) -> Sequence[BlockInfo]:
        """Return the blocks; raises ConfigError or DataError for a missing or empty file."""
        return self.files.blocks

    def rows_of(self, block: int) -> Iterable[Rows]:
        """Yield the rows of a block; its files must be those that were listed."""
        parts = self.files.parts(block)
        read = self.read_parts(block, parts)
        yield from read if len(parts) == 1 else joined(read)
        self.check_files(parts)

    def check_files(self, parts: Sequence[FileBlock]) -> None:
        """Check that the files of parts that were read are those that were listed."""
        for part in parts:
            for file in self.files_in(part):
                self.files.check(file)


@lru_cache(maxsize=8)
def _listing_of(path: str, table: str) -> Listing:
    """Return the listing of a table, which each order to read blocks names again."""
    return Listing.of_table(path, table)


def reader(kind: Callable[P, S]) -> Callable[P, S]:
    """Return the function that makes a source of a format, with its options as arguments."""
    format: Any = kind
    names = [name for name, field in format.model_fields.items() if field.kw_only is False]

    def read(*args: Any, **options: Any) -> Any:
        if len(args) > len(names):
            raise TypeError(f"{read.__name__}: wanted options by their names after {names[-1]}")
        return format(**dict(zip(names, args, strict=False)), **options)

    read.__name__ = read.__qualname__ = format.reader
    read.__module__ = format.__module__
    read.__doc__ = documentation(format)
    read.__signature__ = signature_of(format)  # type: ignore[attr-defined]
    return read
