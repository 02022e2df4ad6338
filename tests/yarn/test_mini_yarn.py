"""The mini YARN is a real Hadoop: it starts, grants, pre-empts, survives, and leaves nothing."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import psutil
import pytest

from elasticml.errors import ConfigError
from tests.waiting import until
from yarn.mini.daemons import is_ours, marked
from yarn.mini.mini_settings import node_host
from yarn.mini.mini_yarn import MiniYarn

skein = pytest.importorskip("skein", reason="elasticml[yarn] is not installed")

pytestmark = pytest.mark.yarn

WAIT_S = 90.0
#: Containers of the application in ml, of 1 GiB each: with two masters they fill the 12 GiB.
WORKERS = 10


def wait_for(read, wanted):
    """Wait until ``read()`` has the expected value, or fail with its value."""
    seen = []

    def is_so():
        seen[:] = [read()]
        return seen[0] == wanted

    until(is_so, lambda: f"{wanted}, got {seen}")


@pytest.fixture(scope="module")
def application(skein_client):
    """Ten containers of 1 GiB in ``ml``, requested again whenever one ends."""
    spec = skein.ApplicationSpec(
        name="ten",
        queue="ml",
        max_attempts=2,
        master=skein.Master(resources=skein.Resources(memory="1 GiB", vcores=1)),
        services={
            "work": skein.Service(
                instances=WORKERS,
                max_restarts=-1,
                resources=skein.Resources(memory="1 GiB", vcores=1),
                script="exec sleep 1000000",
            )
        },
    )
    app = skein_client.submit_and_connect(spec)
    wait_for(lambda: len(running(app)), WORKERS)
    yield app
    app.shutdown()


def running(app):
    """YARN's ids of the running containers."""
    return {c.yarn_container_id for c in app.get_containers(states=["RUNNING"])}


def report(yarn, app):
    """The ResourceManager's report of an application."""
    with urllib.request.urlopen(f"{yarn.rm_url}/ws/v1/cluster/apps/{app.id}") as answer:
        return json.loads(answer.read())["app"]


def containers_on(yarn, node):
    """Number of containers on a node, by the ResourceManager."""
    with urllib.request.urlopen(f"{yarn.rm_url}/ws/v1/cluster/nodes?states=RUNNING") as answer:
        nodes = (json.loads(answer.read())["nodes"] or {}).get("node", [])
    return sum(n["numContainers"] for n in nodes if n["nodeHostName"] == node_host(node))


def node_without_master(yarn, app):
    """Number of a node that may be stopped because the application's master is elsewhere."""
    host = report(yarn, app)["amHostHttpAddress"].partition(":")[0]
    return next(i for i in range(yarn.settings.nodes) if node_host(i) != host)


def messages(app):
    """Skein's messages about ended containers."""
    return [c.exit_message for c in app.get_containers(states=["FAILED"])]


@pytest.mark.slow
def test_daemons_run_and_listen_on_loopback_only(mini_yarn):
    pids = mini_yarn.pids()
    assert sorted(pids) == ["data", "name", "node-0", "node-1", "resource"]
    listening = {
        connection.laddr.ip
        for pid in pids.values()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address.rpartition(":")[2].partition(".")[0] for address in listening} == {"127"}
    assert sorted(mini_yarn.nodes().values()) == ["RUNNING", "RUNNING"]


@pytest.mark.slow
def test_files_are_written_and_read_over_http(mini_yarn):
    place = f"{mini_yarn.webhdfs_url}/webhdfs/v1/tmp/file"
    query = f"op=CREATE&noredirect=true&user.name={getpass.getuser()}"
    put = urllib.request.Request(f"{place}?{query}", method="PUT")
    with urllib.request.urlopen(put) as answer:
        where = json.loads(answer.read())["Location"]
    urllib.request.urlopen(urllib.request.Request(where, data=b"content", method="PUT")).close()
    with urllib.request.urlopen(f"{place}?op=OPEN&offset=3&length=2") as answer:
        assert answer.read() == b"te"


@pytest.mark.slow
def test_preemption_takes_containers_for_prod_and_gives_them_back(application, prod):
    before = running(application)
    prod.take(5)
    prod.wait(5, WAIT_S)
    wait_for(lambda: len(running(application)), WORKERS - 5)
    assert running(application) < before
    assert "Container preempted by scheduler" in set(messages(application))
    prod.give_back()
    wait_for(lambda: len(running(application)), WORKERS)


@pytest.mark.slow
def test_applications_continue_when_the_resource_manager_is_killed(mini_yarn, application):
    before = running(application)
    mini_yarn.kill_resource_manager()
    mini_yarn.start_resource_manager()

    def state():
        app = report(mini_yarn, application)
        return app["state"], app["runningContainers"]

    wait_for(state, ("RUNNING", WORKERS + 1))
    assert running(application) == before


@pytest.mark.slow
def test_killed_node_is_lost_and_its_containers_are_requested_again(mini_yarn, application):
    node = node_without_master(mini_yarn, application)
    mini_yarn.kill_node(node, containers=True)
    wait_for(lambda: sorted(mini_yarn.nodes().values()), ["LOST", "RUNNING"])
    mini_yarn.start_node(node)
    # The other node has no room for all. Skein rarely loses a request, so that not all come back.
    until(lambda: containers_on(mini_yarn, node) > 0, "a container on the node that came back")


@pytest.mark.slow
def test_a_node_leaves_and_returns(mini_yarn, application):
    mini_yarn.decommission(node_without_master(mini_yarn, application), 1)
    wait_for(lambda: sorted(mini_yarn.nodes().values()), ["DECOMMISSIONED", "RUNNING"])
    mini_yarn.repair()
    assert sorted(mini_yarn.nodes().values()) == ["RUNNING", "RUNNING"]


@pytest.mark.slow
def test_at_finds_a_running_one_and_refuses_a_folder_without(mini_yarn, tmp_path):
    result = MiniYarn.at(mini_yarn.root)
    assert result.pids() == mini_yarn.pids()
    assert result.environment()["HADOOP_CONF_DIR"] == os.environ["HADOOP_CONF_DIR"]
    with pytest.raises(ConfigError, match="make yarn-up"):
        MiniYarn.at(tmp_path)
    with pytest.raises(ConfigError, match="already running"):
        MiniYarn(mini_yarn.root).up()


def cli_output(*arguments):
    """Return what the command line prints."""
    command = [sys.executable, "-m", "yarn.mini", *arguments]
    return subprocess.check_output(command, text=True)


@pytest.mark.slow
def test_command_line_shows_shells_and_people_where_it_is(mini_yarn):
    root = str(mini_yarn.root)
    status = json.loads(cli_output("status", "--json", "--root", root))
    assert (status["daemons"], status["missing"]) == (mini_yarn.pids(), [])
    assert status["hdfs"] == mini_yarn.hdfs_url
    assert mini_yarn.rm_url in cli_output("status", "--root", root)
    shell = f"{cli_output('env', '--root', root)}\nyarn classpath --glob"
    printed = subprocess.check_output(["bash", "-c", shell], text=True)
    assert printed.startswith(f"{mini_yarn.conf_dir}:")


@pytest.mark.slow
def test_yarn_prints_the_class_path(mini_yarn):
    printed = subprocess.check_output(["yarn", "classpath", "--glob"], text=True).strip()
    entries = printed.split(":")
    assert entries[0] == str(mini_yarn.conf_dir)
    assert sum("hadoop-yarn-api-3" in entry for entry in entries) == 1


@pytest.mark.slow
def test_a_second_one_runs_beside_and_ends_with_its_starter(tmp_path):
    """The process that started it is killed; the watchdog ends the daemons nevertheless."""
    program = (
        "import sys; from yarn.mini.mini_yarn import MiniYarn\n"
        f"with MiniYarn({str(tmp_path / 'second')!r}, nodes=1) as yarn:\n"
        "    print(*yarn.pids().values(), flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    root = tmp_path / "second"
    try:
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 4
        assert all(is_ours(pid, root) for pid in pids)
        owner.kill()
        owner.communicate()
        wait_for(lambda: marked(root), [])
    finally:
        owner.kill()
        MiniYarn.end_at(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(tmp_path, number):
    root = tmp_path / "third"
    command = [sys.executable, "-m", "yarn.mini", "up", "--root", str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as up:
        try:
            wait_for(lambda: len(marked(root)) >= 3, True)
            up.send_signal(number)
            _, output = up.communicate(timeout=WAIT_S)
            left = marked(root)
        finally:
            up.kill()
            MiniYarn.end_at(root)
    assert up.returncode == 130
    assert "Traceback" not in output
    assert left == []


@pytest.mark.slow
def test_a_taken_port_leads_to_another_attempt(tmp_path, monkeypatch):
    """The first choice of ports includes a taken one."""
    from yarn.mini import mini_yarn as module

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        choose, tries = module.choose_ports, []

        def first_taken(names, rng):
            ports = choose(names, rng)
            tries.append(ports)
            return {**ports, "resource-http": taken.getsockname()[1]} if len(tries) == 1 else ports

        monkeypatch.setattr(module, "choose_ports", first_taken)
        yarn = MiniYarn(tmp_path / "fourth", nodes=1).up()
        try:
            assert (len(tries), list(yarn.nodes().values())) == (2, ["RUNNING"])
        finally:
            ended = cli_output("down", "--root", str(yarn.root))
    assert ended == "ended 4 processes\n"
    assert marked(tmp_path / "fourth") == []
    assert cli_output("down", "--root", str(tmp_path / "fourth")) == "nothing was running\n"
