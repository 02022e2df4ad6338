"""dask-yarn's import: names that it misses are patched in and removed again."""

from __future__ import annotations

import subprocess
import sys

import distributed.utils

from elasticml.clusters.yarn.compat import import_dask_yarn


def test_nothing_stays_patched_after_the_import():
    before = {name: id(value) for name, value in vars(distributed.utils).items()}
    core = import_dask_yarn()
    assert core.YarnCluster.__module__ == "dask_yarn.core"
    after = {name: id(value) for name, value in vars(distributed.utils).items()}
    assert after == before


def test_a_first_import_in_a_fresh_process_leaves_nothing_either():
    code = (
        "import distributed.utils as u; before = set(vars(u));"
        "from elasticml.clusters.yarn.compat import import_dask_yarn;"
        "core = import_dask_yarn();"
        "assert set(vars(u)) == before, set(vars(u)) ^ before;"
        "print(core.YarnCluster.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "YarnCluster\n"


def test_defaults_removed_by_a_configuration_context_are_restored():
    code = (
        "import dask; from elasticml.clusters.yarn.compat import import_dask_yarn\n"
        "with dask.config.set({'yarn.queue': 'ml'}):\n"
        "    import_dask_yarn(); print(dask.config.get('yarn.queue'))\n"
        "import_dask_yarn(); print(dask.config.get('yarn.queue'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ml", "default"]


def test_the_package_is_imported_without_dask_yarn():
    code = (
        "import sys; sys.modules['skein'] = sys.modules['dask_yarn'] = None;"
        "import elasticml as em; em.LocalCluster\n"
        "try: em.YarnCluster\n"
        "except em.ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[yarn]'" in done.stdout
