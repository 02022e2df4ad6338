"""The command ``elasticml warm``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click


@click.command(short_help="Compile all kernels ahead.")
def warm() -> None:
    """Compile all kernels of this version ahead, so that no first fit or job waits for it.

    The machine code is kept in the user's cache folder ($ELASTICML_CACHE, else
    ~/.cache/elasticml). What is there already is not compiled again: the command takes a minute
    once, and then about four seconds. Several processes share the work. Run it in images and
    environments that are packed, with $ELASTICML_CACHE set to a folder inside, and on the processor
    type that will use them: machine code is specific to it.
    """
    from elasticml.user_cache import cache_directory

    started_s = time.perf_counter()
    for name, compile_kernels in _steps():
        click.echo(f"{name} ", nl=False)
        began_s = time.perf_counter()
        compile_kernels()
        click.echo(f"{time.perf_counter() - began_s:.1f} s")
    place = cache_directory() / "kernels"
    click.echo(f"machine code is in {place}; {time.perf_counter() - started_s:.0f} s")


def _steps() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is compiled: the kernels of members, then those of each estimator."""
    from elasticml.algorithms.kernel_modules import kernel_modules, warm_up
    from elasticml.objectives.losses import LOSSES

    for module in kernel_modules():
        yield module, lambda module=module: warm_up([module])  # type: ignore[misc]
    for name in LOSSES:
        yield f"loss {name}", lambda name=name: _warm_up_loss(name)  # type: ignore[misc]
    import numpy as np
    import scipy.sparse

    from elasticml.estimators.elastic_net import Lasso
    from elasticml.estimators.kmeans import KMeans
    from elasticml.estimators.logistic import LogisticRegression
    from elasticml.estimators.paths import LassoCV
    from elasticml.estimators.poisson import PoissonRegressor
    from elasticml.estimators.ridge import Ridge
    from elasticml.estimators.svm import LinearSVC

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
    for name, model in models.items():
        if "Regression" in name or "SVC" in name:
            y = (margins > 0.0) + 0.0
        else:
            y = np.exp(0.1 * margins)
        for X in (dense, scipy.sparse.csr_array(dense)):
            place = "dense" if X is dense else "sparse"
            yield f"{name}, {place}", lambda model=model, X=X, y=y: model.fit(X, y)  # type: ignore[misc]


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
