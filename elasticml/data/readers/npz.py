"""Read ``.npz`` files of a dense or a CSR matrix with labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scipy.sparse

from elasticml.data.chunks.chunk import Chunk, Dtype
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import cut_rows, rows_of_arrays
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.files import (
    absolute,
    file_info,
    fingerprint,
    is_versioned,
    open_binary,
)
from elasticml.data.readers.single_pass_source import SinglePassSource
from elasticml.data.source import BlockInfo, resolve_chunk_bytes
from elasticml.data.storage.untrusted_files import (
    check_csr,
    read_npz_arrays,
    reads_untrusted_files,
)
from elasticml.errors import DataError, one_line
from elasticml.specification.data import NpzSpec


def read_npz(path: str, *, dtype: Dtype = "float64", n_columns: int | None = None) -> NpzSource:
    """Return a source for an ``.npz`` file; nothing is read yet.

    Parameters
    ----------
    path : str
        Contains ``y`` (n,), optionally ``sample_weight`` (n,), and either ``X`` (n, d), or the
        ``data``, ``indices``, ``indptr`` and ``shape`` of a SciPy CSR matrix. One member reads the
        whole file.
    dtype, n_columns
        As for :func:`elasticml.data.readers.svmlight.read_svmlight`.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    return source_of(NpzSpec(path=str(path), dtype=dtype, n_columns=n_columns))


def source_of(spec: NpzSpec) -> NpzSource:
    """Build the source from the options of ``format: npz``."""
    return NpzSource(path=absolute(spec.path), dtype=spec.dtype, n_columns=spec.n_columns)


@reads_untrusted_files
@dataclass(frozen=True, slots=True, kw_only=True)
class NpzSource(SinglePassSource):
    """An ``.npz`` file, as one block."""

    path: str
    dtype: Dtype
    n_columns: int | None = None

    @property
    def is_costly(self) -> bool:
        """Whether to cache the block: yes, if a change of the file can be detected."""
        return is_versioned(self.path)

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return {
            "format": "npz",
            "path": self.path,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, size, modification time and options."""
        return fingerprint(self.spec(), file_info(self.path))

    def blocks(self) -> list[BlockInfo]:
        """Return the only block; raises ConfigError or DataError for a missing or empty file."""
        return [BlockInfo(index=0, nbytes=file_info(self.path).size)]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read the file into chunks; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        rows = self._load()
        return cut_rows(rows, self.n_columns, self.fingerprint(), block, size, self.dtype)

    def _load(self) -> Rows:
        try:
            with open_binary(self.path) as file:
                arrays = read_npz_arrays(self.path, file)
        except DataError as error:
            if error.__cause__ is None:
                raise
            why = one_line(error.__cause__)
            raise DataError(
                f"{self.path} is not a readable .npz file ({why}); write it with numpy.savez",
                path=self.path,
            ) from None
        sparse = ("data", "indices", "indptr", "shape")
        if "y" not in arrays or not ("X" in arrays or all(key in arrays for key in sparse)):
            raise DataError(
                f"{self.path} holds {', '.join(sorted(arrays)) or 'nothing'}; wanted y, and X or "
                f"{', '.join(sparse)}",
                path=self.path,
            )
        X: Any = arrays.get("X")
        if X is None:
            parts = (arrays["data"], arrays["indices"], arrays["indptr"])
            shape = check_csr(self.path, *parts, arrays["shape"])
            X = scipy.sparse.csr_array(parts, shape=shape)
        return rows_of_arrays(X, arrays["y"], arrays.get("sample_weight"), name=self.path)
