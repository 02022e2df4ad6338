"""Stock clusters without elasticml, with another version or without the data: it is said."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import elasticml as em
from elasticml.errors import ConfigError
from elasticml.ids import VERSION
from tests.stock_cluster import UNSHARE, stock_cluster

pytestmark = pytest.mark.cluster


def job() -> em.Job:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    rows = em.from_arrays(X, np.sign(X[:, 0] + rng.normal(size=200)))
    return em.Job(em.CoCoA(loss="hinge", tolerance=0), rows, stop=em.Stop(rounds=3))


def test_a_worker_with_another_version_is_named_with_its_host(tmp_path: Path) -> None:
    other = tmp_path / "other"
    package = Path(em.__file__).parent
    shutil.copytree(package, other / "elasticml", ignore=shutil.ignore_patterns("__pycache__"))
    ids = other / "elasticml" / "ids.py"
    ids.write_text(ids.read_text().replace(f'"{VERSION}"', '"0.0.9"'))
    with stock_cluster(tmp_path) as cluster:
        cluster.worker("a", environment={"PYTHONPATH": str(other), "PYTHONSAFEPATH": "1"})
        with cluster.client() as client:
            cluster.await_workers(client, 1)
            with pytest.raises(ConfigError) as caught:
                job().run(client)
    assert re.fullmatch(
        r"cluster: elasticml 0\.0\.9 on worker tcp://\S+ \(host \S+\); "
        rf"wanted elasticml {VERSION}, as here; em\.install\(client\) installs it there",
        caught.value.message,
    )


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """Return a Python with pip and all that elasticml requires, but without elasticml."""
    folder = tmp_path / "bare"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
def test_elasticml_is_installed_on_a_stock_cluster(tmp_path: Path, bare_python: Path) -> None:
    with stock_cluster(tmp_path, python=bare_python) as cluster:
        cluster.worker("a")
        with cluster.client() as client:
            cluster.await_workers(client, 1)
            with pytest.raises(ConfigError, match=r"no elasticml on the scheduler \(host "):
                job().run(client)
            assert len(em.install(client)) == 2
            assert job().run(client).summary["rounds"] == 3
            shutil.rmtree(next(bare_python.parents[1].glob("lib/*/site-packages/elasticml")))
            cluster.worker("b")  # as on a host of its own: it installs before it joins
            cluster.await_workers(client, 2)
            assert em.install(client) == []


@pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], check=False).returncode != 0, reason="unshare not permitted"
)
def test_the_host_that_lacks_a_file_is_named(tmp_path: Path) -> None:
    """The only worker does not have the folder that scheduler and client have."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("x,late\n" + "1,no\n2,yes\n" * 30)
    with stock_cluster(tmp_path) as cluster:
        cluster.worker("elsewhere", hidden=tmp_path / "rows")
        with cluster.client() as client:
            cluster.await_workers(client, 1)
            source = em.read_csv(str(tmp_path / "rows" / "a.csv"), "late")
            with pytest.raises(ConfigError) as caught:
                em.Job(em.CoCoA(), source).run(client)
    message = str(caught.value)
    assert f"a.csv does not exist on host {socket.gethostname()}, where a worker runs" in message
    assert "or give a URL that they can open, or a Dask frame (em.from_dask)" in message
