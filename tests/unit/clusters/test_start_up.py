"""Container processes start quickly, and without the libraries for arrays."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from elasticml.algorithms.kernel_modules import kernel_modules
from elasticml.clusters.process_setup import SCHEDULER_MODULES, WORKER_MODULES

HEAVY = {"numba", "llvmlite", "pandas", "pyarrow", "scipy", "sklearn", "torch"}


def test_a_worker_loads_the_kernels_of_the_algorithms_that_it_will_run():
    every, one, none = kernel_modules(None), kernel_modules(["cocoa"]), kernel_modules(["toy"])
    # A missing module is silently skipped, so a moved one would go unnoticed.
    names = (*every, *WORKER_MODULES, *SCHEDULER_MODULES)
    assert [name for name in names if importlib.util.find_spec(name) is None] == []
    assert set(none) < set(one) < set(every)
    assert all("cocoa" in name for name in set(one) - set(none))


def packages_after(code, folder=None) -> set[str]:
    """Return the packages that a process has loaded after some code."""
    text = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=folder
    )
    names = set(done.stdout.split())
    return names | {name.partition(".")[0] for name in names}


PLOTS = {"matplotlib", "pandas", "pyarrow", "sklearn"}
OTHERS = {
    f"elasticml.algorithms.{name}.trainer"
    for name in ("async_sgd", "batch_gradient", "local_sgd", "primal_cocoa")
}
LOADED = """
import importlib
from elasticml.algorithms.registry import import_algorithms
from elasticml.clusters.process_setup import WORKER_MODULES
for name in WORKER_MODULES:
    importlib.import_module(name)
import_algorithms(['cocoa'])
"""
STARTED = """
import elasticml, elasticml.clusters.local.worker_process
import elasticml.clusters.local.scheduler_process, elasticml.clusters.yarn.scheduler_service
import elasticml.clusters.yarn.service, elasticml.clusters.yarn.worker_service
"""
#: The first rows of svmlight are parsed by a kernel; nothing else is loaded for them.
CHECKED = """
import elasticml.cli.run
from elasticml.job import Job
assert Job.from_file('job.yaml', ()).check_data()[0] == 'csr'
"""


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        # The files of chunks had come to import the kernel of their checksums: workers of a packed
        # environment without numba ended at their start.
        (STARTED, HEAVY),
        ("import elasticml.job", PLOTS),
        (LOADED, OTHERS),
        (CHECKED, PLOTS),
    ],
)
def test_a_process_loads_only_what_it_needs(tmp_path, code, left_out):
    (tmp_path / "data.svm").write_text("1 1:0.5 2:1\n-1 2:3\n" * 20)
    (tmp_path / "job.yaml").write_text(
        "{data: {format: svmlight, path: data.svm}, algorithm: {name: cocoa, loss: logistic}}"
    )
    assert packages_after(code, tmp_path) & left_out == set()


def test_a_worker_without_compiled_libraries_starts():
    """Environments are packed without them, for jobs that need none."""
    text = (
        "import sys\n"
        "from elasticml.clusters.process_setup import configure_dask, load_for_worker\n"
        f"for name in {sorted(HEAVY)}:\n"
        "    sys.modules[name] = None\n"
        "configure_dask(dashboard=False)\n"
        "load_for_worker(None)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot preload numba" in done.stderr
