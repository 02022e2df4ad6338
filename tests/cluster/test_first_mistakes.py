"""Mistakes with raw tables on a stock cluster: one line says what is wrong and what to do."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.dataframe
import pandas as pd
import pytest
from distributed import Client

import elasticml as em
from tests.stock_cluster import UNSHARE, stock_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    rows = "".join(f"{i % 7},{'no' if i % 2 else 'yes'}\n" for i in range(60))
    (folder / "rows.csv").write_text(f"x,late\n{rows}1,yess\n")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster whose only worker does not have the folder that scheduler and client have."""
    if subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("unshare is not permitted")
    with stock_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.worker("elsewhere", hidden=folder)
        with cluster.client() as client:
            cluster.await_workers(client, 1)
            yield client


def test_the_host_that_lacks_a_file_is_named(client: Client, folder: Path) -> None:
    job = em.Job(em.CoCoA(), em.read_csv(str(folder / "rows.csv"), "late"))
    with pytest.raises(em.ConfigError) as caught:
        job.run(client)
    message = str(caught.value)
    assert f"rows.csv does not exist on host {socket.gethostname()}, where a worker runs" in message
    assert "or give a URL that they can open, or a Dask frame (em.from_dask)" in message


def test_a_class_of_one_row_is_a_warning(client: Client, folder: Path) -> None:
    with dask.config.set(scheduler="threads"):
        frame = dask.dataframe.from_pandas(pd.read_csv(folder / "rows.csv"), npartitions=2)
        data = em.from_dask(frame, label="late")
    job = em.Job(em.BatchGradient(), data, stop=em.Stop(rounds=2))
    notes = " ".join(job.run(client).summary["notes"])
    assert "label 'yess' of column 'late' occurs in one row of 61: correct the data" in notes
