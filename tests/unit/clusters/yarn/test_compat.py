"""dask-yarn's import: names that it misses are patched in and removed again."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (
            # Defaults that a configuration context has removed are restored.
            "import dask, distributed.utils as u; before = {n: id(v) for n, v in vars(u).items()}\n"
            "from elasticml.clusters.yarn.compat import import_dask_yarn\n"
            "with dask.config.set({'yarn.queue': 'ml'}):\n"
            "    import_dask_yarn(); print(dask.config.get('yarn.queue'))\n"
            "print(import_dask_yarn().YarnCluster.__module__, dask.config.get('yarn.queue'))\n"
            "print({n: id(v) for n, v in vars(u).items()} == before)\n",
            "ml\ndask_yarn.core default\nTrue\n",
        ),
        (
            "import sys; sys.modules['skein'] = sys.modules['dask_yarn'] = None\n"
            "import elasticml as em, elasticml.cli.submit; em.LocalCluster\n"
            "try: em.YarnCluster\n"
            "except em.errors.ConfigError as error:\n"
            "    print(\"pip install '.[yarn]'\" in str(error))\n",
            "True\n",
        ),
    ],
)
def test_dask_yarn_is_imported_without_traces_or_missed_in_one_line(code, printed):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == printed
