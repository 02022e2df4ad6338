"""One real YARN for all tests here, reset after each."""

from __future__ import annotations

import pytest

from elasticml.clusters.yarn.skein_client import SkeinClient
from elasticml.errors import ConfigError
from yarn.mini.java import find_java, jars_directory
from yarn.mini.mini_yarn import MiniYarn
from yarn.mini.tenant import Tenant


@pytest.fixture(scope="session")
def mini_yarn():
    """A ResourceManager, two NodeManagers of 6 GiB each, and HDFS; the environment names them."""
    pytest.importorskip("skein", reason="elasticml[yarn] is not installed")
    try:
        find_java()
        jars_directory(print)
    except ConfigError as error:
        pytest.skip(f"no Hadoop here: {error.message}")
    with MiniYarn() as yarn, pytest.MonkeyPatch.context() as patch:
        for name, value in yarn.environment().items():
            patch.setenv(name, value)
        yield yarn


@pytest.fixture(scope="session")
def skein_client(mini_yarn):
    """A client of the cluster: a Java process that all tests share."""
    import skein

    with skein.Client(log=False) as client:
        yield client


@pytest.fixture(scope="module")
def prod(skein_client):
    """Another application in the queue ``prod``, without containers at first."""
    with Tenant(SkeinClient(skein_client), queue="prod") as tenant:
        yield tenant


@pytest.fixture(autouse=True)
def _reset(request):
    """End what a test submitted, restart what it stopped, release the containers of its
    applications.
    """
    if "mini_yarn" not in request.fixturenames:
        yield
        return
    client = request.getfixturevalue("skein_client")
    before = {application.id for application in client.get_applications()}
    yield
    request.getfixturevalue("mini_yarn").repair()
    for application in client.get_applications():
        if application.id not in before:
            client.kill_application(application.id)
    if "prod" in request.fixturenames:
        request.getfixturevalue("prod").give_back()
