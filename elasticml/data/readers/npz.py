"""Read ``.npz`` files of a dense or a CSR matrix with labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import scipy.sparse

from elasticml.data.chunks.rows import Rows, rows_of_arrays
from elasticml.data.formats import FileFormat, reader
from elasticml.data.readers.files import DataFile, FileBlock, open_binary, whole_file
from elasticml.data.storage.untrusted_files import read_npz_arrays, reading
from elasticml.errors import DataError


class NpzSource(FileFormat):
    """Return a source for ``.npz`` files; nothing is read yet.

    Each contains ``y`` (n,), optionally ``sample_weight`` (n,), and either ``X`` (n, d), or the
    ``data``, ``indices``, ``indptr`` and ``shape`` of a SciPy CSR matrix. One member reads a whole
    file.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """

    format = "npz"
    suffixes = (".npz",)
    reader = "read_npz"

    def list_blocks(self, files: Sequence[DataFile]) -> Sequence[FileBlock]:
        """Return a block for each file."""
        return [block for file in files for block in whole_file(file)]

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Read a file."""
        path = block.file.path
        with open_binary(path) as file:
            arrays = read_npz_arrays(path, file)
        sparse = ("data", "indices", "indptr", "shape")
        if "y" not in arrays or not ("X" in arrays or all(key in arrays for key in sparse)):
            raise DataError(
                f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; wanted y, and X or "
                f"{', '.join(sparse)}"
            )
        X: Any = arrays.get("X")
        if X is None:
            data, *whole = (arrays[key] for key in sparse)
            # SciPy would cut numbers that are not whole.
            if data.dtype.kind not in "biuf" or any(one.dtype.kind not in "iu" for one in whole):
                raise DataError(
                    f"{path} holds {', '.join(sparse)} that are no numbers, or no whole ones"
                )
            with reading(path):
                X = scipy.sparse.csr_array((data, *whole[:2]), shape=tuple(whole[2].tolist()))
        yield rows_of_arrays(X, arrays["y"], arrays.get("sample_weight"), name=path)


read_npz = reader(NpzSource)
