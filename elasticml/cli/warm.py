"""The command ``elasticml warm``."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Final

import click

#: Memory of a process that compiles, with room.
_PROCESS_BYTES: Final = 2**30


@click.command(short_help="Compile all kernels ahead.")
def warm() -> None:
    """Compile all kernels of this version ahead, so that no first fit or job waits for it.

    The machine code is kept in the user's cache folder ($ELASTICML_CACHE, else
    ~/.cache/elasticml). What is there already is not compiled again: on two processors the command
    takes a minute once, and then a few seconds. Run it in images and environments that are packed,
    with $ELASTICML_CACHE set to a folder inside, and on the processor type that will use them:
    machine code is specific to it.
    """
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    from elasticml.user_cache import cache_directory

    started_s = time.perf_counter()
    names = list(_steps())
    # Numba compiles under the interpreter's lock, and many processes would share few kernels.
    n_processes = max(1, min(CPU_COUNT, 4, MEMORY_LIMIT // _PROCESS_BYTES))
    with ProcessPoolExecutor(
        n_processes,
        mp_context=multiprocessing.get_context("spawn"),
        # Ctrl-C reaches all processes of a terminal: these end at once.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    ) as processes:
        try:
            for ended in as_completed([processes.submit(_compile, name) for name in names]):
                click.echo(ended.result())
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    place = cache_directory() / "kernels"
    click.echo(f"machine code is in {place}; {time.perf_counter() - started_s:.0f} s")


def _compile(name: str) -> str:
    """Take a step; return its name and the seconds that it took."""
    began_s = time.perf_counter()
    _steps()[name]()
    return f"{name} {time.perf_counter() - began_s:.1f} s"


def _steps() -> dict[str, Callable[[], object]]:
    """Return what is compiled, by name: the kernels of members, then those of each estimator."""
    import numpy as np
    import scipy.sparse

    from elasticml.algorithms.kernel_modules import kernel_modules, warm_up
    from elasticml.estimators.elastic_net import Lasso
    from elasticml.estimators.kmeans import KMeans
    from elasticml.estimators.logistic import LogisticRegression
    from elasticml.estimators.paths import LassoCV
    from elasticml.estimators.poisson import PoissonRegressor
    from elasticml.estimators.ridge import Ridge
    from elasticml.estimators.svm import LinearSVC
    from elasticml.objectives.losses import LOSSES

    dense = np.random.default_rng(0).standard_normal((60, 4))
    margins = dense @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.1
    models = {
        "LinearSVC": LinearSVC(),
        "LinearSVC, hinge": LinearSVC(loss="hinge"),
        "LogisticRegression": LogisticRegression(),
        "LogisticRegression, L1": LogisticRegression(l1_ratio=1.0),
        "Ridge": Ridge(),
        "Lasso": Lasso(0.01),
        "LassoCV": LassoCV(alphas=3),
        "PoissonRegressor": PoissonRegressor(),
        "KMeans": KMeans(3, random_state=0),
    }
    steps: dict[str, Callable[[], object]] = {}
    # The losses take longest.
    steps |= {f"loss {name}": partial(_warm_up_loss, name) for name in LOSSES}
    steps |= {module: partial(warm_up, [module]) for module in kernel_modules()}
    for name, model in models.items():
        if "Regression" in name or "SVC" in name:
            y = (margins > 0.0) + 0.0
        else:
            y = np.exp(0.1 * margins)
        steps[f"{name}, dense"] = partial(model.fit, dense, y)
        steps[f"{name}, sparse"] = partial(model.fit, scipy.sparse.csr_array(dense), y)
    return steps


def _warm_up_loss(name: str) -> None:
    """Compile what members compute with a loss."""
    from elasticml.algorithms.cocoa import dual_blocks, local_pass
    from elasticml.objectives.loss_kernels import loss_named
    from elasticml.specification.algorithms import DUAL_LOSSES

    loss = loss_named(name)
    loss.warm_up(with_dual=False)
    if name in DUAL_LOSSES:
        dual_blocks.warm_up(loss)
        local_pass.warm_up(loss, "float64")
        local_pass.warm_up(loss, "float32")
