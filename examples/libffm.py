"""LIBFFM text, ``label field:column:value ...``, as a data format of your own.

    elasticml init clicks.ffm --format libffm:LibFFM
    elasticml run job.yaml

A job file names it as ``data: {format: "libffm:LibFFM", path: clicks.ffm}``. This file must be
importable in all processes of the job: from the folder in which the command runs, or another one in
``PYTHONPATH``.
"""

from collections.abc import Iterator

import numpy as np

from elasticml.data.chunks.rows import Rows
from elasticml.data.formats import FileFormat, reader
from elasticml.data.readers.files import FileBlock, block_pieces


class LibFFM(FileFormat):
    """Return a source for LIBFFM text, whose fields are left out; nothing is read yet.

    Parameters
    ----------
    zero_based : bool
        Whether columns are numbered from 0.
    """

    suffixes = (".ffm",)
    reader = "read_libffm"

    zero_based: bool = True

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Yield the rows that begin in a block, piece by piece."""
        for piece in block_pieces(block):
            lines = [line.split() for line in piece.text.splitlines() if line.strip()]
            cells = [cell.split(b":") for line in lines for cell in line[1:]]
            columns = np.array([int(cell[1]) for cell in cells], np.int32) - (not self.zero_based)
            yield Rows(
                labels=np.array([float(line[0]) for line in lines]),
                n_columns=int(columns.max(initial=-1)) + 1,
                indptr=np.cumsum([0, *(len(line) - 1 for line in lines)]),
                indices=columns,
                values=np.array([float(cell[2]) for cell in cells]),
            )


read_libffm = reader(LibFFM)
