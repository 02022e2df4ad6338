"""Container processes start quickly, and without the libraries for arrays."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from elasticml.algorithms.kernel_modules import kernel_modules
from elasticml.clusters.process_setup import SCHEDULER_MODULES, WORKER_MODULES

MODULES = [
    "elasticml",
    "elasticml.clusters.local.scheduler_process",
    "elasticml.clusters.local.worker_process",
    "elasticml.clusters.yarn.scheduler_service",
    "elasticml.clusters.yarn.service",
    "elasticml.clusters.yarn.worker_service",
]
HEAVY = {"numba", "llvmlite", "pandas", "pyarrow", "scipy", "sklearn", "torch"}


def loaded_by(module: str) -> set[str]:
    """Return the packages that a process has loaded after importing a module."""
    text = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# The files of chunks had come to import the kernel of their checksums, and so did every module that
# holds chunks: workers of a packed environment without numba ended at their start.
@pytest.mark.parametrize("module", MODULES)
def test_container_entry_points_load_no_compiled_code(module):
    assert sorted(HEAVY & loaded_by(module)) == []


def test_a_job_loads_no_library_for_plots_tables_or_estimators():
    assert sorted({"matplotlib", "pandas", "pyarrow", "sklearn"} & loaded_by("elasticml.job")) == []


def test_a_worker_loads_the_kernels_of_the_algorithms_that_it_will_run():
    every, one, none = kernel_modules(None), kernel_modules(["cocoa"]), kernel_modules(["toy"])
    # A missing module is silently skipped, so a moved one would go unnoticed.
    names = (*every, *WORKER_MODULES, *SCHEDULER_MODULES)
    assert [name for name in names if importlib.util.find_spec(name) is None] == []
    assert set(none) < set(one) < set(every)
    assert [name for name in one if name not in none and "cocoa" not in name] == [
        "elasticml.objectives.conjugates"
    ]


def test_a_worker_loads_no_algorithm_but_its_own():
    text = (
        "import importlib, sys\n"
        "from elasticml.algorithms.registry import import_algorithms\n"
        "from elasticml.clusters.process_setup import WORKER_MODULES\n"
        "for name in WORKER_MODULES:\n"
        "    importlib.import_module(name)\n"
        "import_algorithms(['cocoa'])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "elasticml.algorithms.cocoa.solver" in loaded
    others = ("async_sgd", "batch_gradient", "local_sgd", "primal_cocoa")
    assert loaded.isdisjoint(f"elasticml.algorithms.{name}.trainer" for name in others)


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


HELPED = """
import os, sys
from elasticml.algorithms import kernel_modules
from elasticml.clusters import process_setup

sys.path.insert(0, sys.argv[1])
process_setup._are_cold = lambda modules: True
kernel_modules._ALWAYS = ("first",)
kernel_modules._OF_ALGORITHM["cocoa"] = ("second",)
process_setup.load_for_worker(["cocoa"], ("csr", "float32"), with_helper=True)
print(os.getpid(), kernel_modules.is_warm("cocoa"), kernel_modules.is_warm("local_sgd"))
"""
MODULE = """
import os

def warm_kernels(kind, dtype):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{os.getpid()} {__name__} {kind} {dtype}\\n")
"""


def test_a_helper_compiles_the_kernels_of_one_layout_from_the_other_end(tmp_path):
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    env = {**os.environ, "CALLS": str(tmp_path / "calls")}
    command = [sys.executable, "-c", HELPED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    own, *warm = done.stdout.split()
    assert warm == ["True", "False"]
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert {tuple(call[2:]) for call in calls} == {("csr", "float32")}
    by_own = [call[1] for call in calls if call[0] == own]
    by_helper = [call[1] for call in calls if call[0] != own]
    assert (by_own, by_helper) == (["first", "second"], ["second", "first"])


# The first rows of a job's data came to wait for numba, or for the compilation of a parser.
def test_the_first_rows_of_a_job_are_checked_without_compiled_code(tmp_path):
    (tmp_path / "data.svm").write_text("1 1:0.5 2:1\n-1 2:3\n" * 20)
    text = (
        "import sys\n"
        "import elasticml.cli.run\n"
        "from elasticml.job import Job\n"
        "from elasticml.jobs.job_file import read_job_file\n"
        f"job = Job.from_file(read_job_file({str(tmp_path / 'job.yaml')!r}, ()))\n"
        "print(job.check_data()[0], *{name.partition('.')[0] for name in sys.modules})\n"
    )
    (tmp_path / "job.yaml").write_text(
        "{data: {format: svmlight, path: data.svm}, algorithm: {name: cocoa, loss: logistic}}"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    kind, *loaded = done.stdout.split()
    assert kind == "csr"
    assert sorted(HEAVY & set(loaded)) == []
