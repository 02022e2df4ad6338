"""skein beside an application master of our own: what submission, notices and ends cost.

    python tests/bench/yarn_master.py --rounds 3

On one mini YARN, by turns: start a client, submit, wait for the containers, let another queue
pre-empt half of them, end. skein runs with the agent, as elasticml does; ours is
``yarn/master/Master.java``, submitted through the ResourceManager's REST interface.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skein
import urllib3

from elasticml.clusters import polling
from elasticml.clusters.minihadoop.daemons import environment_of
from elasticml.clusters.minihadoop.java import find_java, jars_directory
from elasticml.clusters.minihadoop.mini_settings import Preemption
from elasticml.clusters.minihadoop.mini_yarn import MiniYarn
from elasticml.clusters.minihadoop.test_tenant import Tenant
from elasticml.clusters.yarn.application_spec import plain_specification, with_agent
from elasticml.clusters.yarn.notice_parser import PreemptionTimes
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.clusters.yarn.skein_client import SkeinClient, start_client
from elasticml.protocol.notices import ContainerMarked

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = 10
TAKEN = 6
HEARTBEAT_MS = 500
WAIT_S = 120.0
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Records when the container starts, and when SIGTERM comes.
SCRIPT = (
    "trap 'date +%s.%N > \"$STAMPS/$CONTAINER_ID.term\"; exit 0' TERM; "
    'date +%s.%N > "$STAMPS/$CONTAINER_ID.start"; sleep 1000 & wait'
)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Poll a condition every 10 ms."""
    if not polling.until(is_so, wait_s=WAIT_S, every_s=0.01):
        raise TimeoutError(what)


class Rest:
    """The ResourceManager's REST interface, as this user."""

    def __init__(self, yarn: MiniYarn) -> None:
        self._pool = urllib3.PoolManager()
        self._url = f"{yarn.rm_url}/ws/v1/cluster/apps"
        self._user = {"user.name": getpass.getuser()}

    def ask(self, method: str, path: str = "", body: Any = None) -> Any:
        url = f"{self._url}{path}?user.name={self._user['user.name']}"
        answer = self._pool.request(method, url, json=body, headers={"Accept": "application/json"})
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:300]!r}")
        return answer.json() if answer.data else None

    def submit(self, jar: Path, environment: dict[str, str], arguments: list[str]) -> str:
        app_id = str(self.ask("POST", "/new-application")["application-id"])
        command = " ".join(["$JAVA_HOME/bin/java", *JAVA, "Master", *arguments])
        shipped = {
            "resource": jar.as_uri(),
            "type": "FILE",
            "visibility": "APPLICATION",
            "size": jar.stat().st_size,
            "timestamp": int(jar.stat().st_mtime * 1000),
        }
        self.ask(
            "POST",
            body={
                "application-id": app_id,
                "application-name": "own-master",
                "queue": "ml",
                "application-type": "elasticml",
                "max-app-attempts": 1,
                "resource": {"memory": 1024, "vCores": 1},
                "am-container-spec": {
                    "local-resources": {"entry": [{"key": "master.jar", "value": shipped}]},
                    "environment": {
                        "entry": [{"key": k, "value": v} for k, v in environment.items()]
                    },
                    "commands": {"command": f"{command} 1><LOG_DIR>/out 2><LOG_DIR>/err"},
                },
            },
        )
        return app_id

    def report(self, app_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/{app_id}")["app"])


def build(folder: Path) -> Path:
    """Compile the master against Hadoop's jars."""
    java = Path(find_java().home) / "bin"
    classpath = f"{jars_directory(print)}/*"
    source = ROOT / "yarn" / "master" / "Master.java"
    subprocess.run(
        [java / "javac", "-nowarn", "-cp", classpath, "-d", folder, str(source)], check=True
    )
    jar = folder / "master.jar"
    subprocess.run([java / "jar", "cf", jar, "-C", folder, "."], check=True)
    return jar


def stamps(folder: Path, kind: str) -> dict[str, float]:
    """When containers started or were asked to end, by YARN's id."""
    found = {}
    for path in folder.glob(f"*.{kind}"):
        text = path.read_text()
        if text:
            found[path.stem] = float(text)
    return found


def master_mib(yarn: MiniYarn, app_id: str) -> float:
    """Resident memory of the JVM of an application's master, MiB."""
    container = f"container_{app_id.partition('_')[2]}_01_000001"
    sizes = [0.0]
    for pid in yarn.processes():
        if environment_of(pid).get("CONTAINER_ID") == container:
            status = Path(f"/proc/{pid}/status").read_text()
            (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
            sizes.append(int(line.split()[1]) / 1024)
    return max(sizes)


@contextmanager
def with_skein(folder: Path, row: dict[str, float]) -> Iterator[tuple[str, dict[str, float], Any]]:
    """Run an application by skein with the agent."""
    begin_s = time.monotonic()
    marks: dict[str, float] = {}
    with start_client() as client:
        row["client_s"] = time.monotonic() - begin_s
        process = {"resources": {"memory": "1 GiB", "vcores": 1}, "script": "exec sleep 1000"}
        work = {**process, "script": SCRIPT, "instances": CONTAINERS, "max_restarts": -1}
        work["env"] = {"STAMPS": str(folder)}
        spec = plain_specification(
            {"name": "skein-master", "queue": "ml", "master": process, "services": {"work": work}}
        )
        begin_s = time.monotonic()
        app_id = client.submit(with_agent(spec, HEARTBEAT_MS))
        row["submit_s"] = time.monotonic() - begin_s
        app = client.connect(app_id, wait=True)
        row["registered_s"] = time.monotonic() - begin_s
        until(lambda: len(stamps(folder, "start")) >= CONTAINERS, "containers")
        row["containers_s"] = time.monotonic() - begin_s
        stream = NoticeStream(app, PreemptionTimes())

        def note(notice: Any) -> None:
            if isinstance(notice, ContainerMarked):
                marks.setdefault(notice.container, time.time())

        stream.start(note)
        yield app_id, marks, client
        begin_s = time.monotonic()
        app.shutdown("SUCCEEDED", "")
        until(lambda: client.status(app_id).is_over, "the end")
        row["end_s"] = time.monotonic() - begin_s
        stream.close()


@contextmanager
def with_own(
    folder: Path, row: dict[str, float], yarn: MiniYarn, jar: Path
) -> Iterator[tuple[str, dict[str, float], Any]]:
    """Run an application by the master of our own."""
    import threading

    marks: dict[str, float] = {}
    begin_s = time.monotonic()
    rest = Rest(yarn)
    row["client_s"] = time.monotonic() - begin_s
    environment = {
        "CLASSPATH": f"master.jar:{yarn.conf_dir}:{jars_directory(print)}/*",
        "JAVA_HOME": find_java().home or "",
        "STAMPS": str(folder),
    }
    begin_s = time.monotonic()
    script = folder / "run.sh"
    script.write_text(SCRIPT)
    app_id = rest.submit(jar, environment, [str(HEARTBEAT_MS), "1024", "1", f"'bash {script}'"])
    row["submit_s"] = time.monotonic() - begin_s
    until(lambda: rest.report(app_id)["state"] == "RUNNING", "the master")
    row["registered_s"] = time.monotonic() - begin_s
    report = rest.report(app_id)
    pool = urllib3.PoolManager()
    url = f"http://{report['amRPCAddress']}" if report.get("amRPCAddress") else ""
    pool.request("PUT", f"{url}/scale", body=str(CONTAINERS))
    until(lambda: len(stamps(folder, "start")) >= CONTAINERS, "containers")
    row["containers_s"] = time.monotonic() - begin_s
    is_over = threading.Event()

    def follow() -> None:
        since = 0
        while not is_over.is_set():
            try:
                text = pool.request("GET", f"{url}/events?{since}", retries=False).data.decode()
            except urllib3.exceptions.HTTPError:
                return
            for line in text.splitlines():
                since += 1
                _, what, container, *_ = line.split(" ")
                if what == "marked":
                    marks.setdefault(container, time.time())

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    yield app_id, marks, None
    begin_s = time.monotonic()
    is_over.set()
    pool.request("PUT", f"{url}/end", body="SUCCEEDED ")
    until(lambda: rest.report(app_id)["state"] == "FINISHED", "the end")
    row["end_s"] = time.monotonic() - begin_s


def measure(kind: str, yarn: MiniYarn, tenant: Tenant, jar: Path) -> dict[str, float]:
    """One application from its submission through a pre-emption to its end."""
    row: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="elasticml-master-") as name:
        folder = Path(name)
        context = with_skein(folder, row) if kind == "skein" else with_own(folder, row, yarn, jar)
        with context as (app_id, marks, _):
            row["master_mib"] = master_mib(yarn, app_id)
            tenant.take(TAKEN)
            tenant.wait(TAKEN, WAIT_S)
            terminated = stamps(folder, "term")
            leads = [at_s - marks[one] for one, at_s in terminated.items() if one in marks]
            row["taken"] = len(terminated)
            row["noticed"] = len(leads)
            row["lead_s"] = statistics.median(leads) if leads else 0.0
            row["lead_min_s"] = min(leads, default=0.0)
            tenant.give_back()
            until(lambda: not tenant.held(), "the containers of the other queue")
    return row


def main() -> None:
    """Measure by turns, and print one line per application and the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {"skein": [], "own": []}
    with tempfile.TemporaryDirectory(prefix="elasticml-master-") as name:
        jar = build(Path(name))
        with MiniYarn(preemption=Preemption(max_wait_s=4.0, interval_s=0.5)) as yarn:
            os.environ.update(yarn.environment())
            with skein.Client(log=False) as client, Tenant(SkeinClient(client)) as tenant:
                for _ in range(options.rounds):
                    for kind, measured in rows.items():
                        measured.append(measure(kind, yarn, tenant, jar))
                        print(kind, json.dumps({k: round(v, 3) for k, v in measured[-1].items()}))
        print("master.jar", jar.stat().st_size, "bytes")
    for kind, measured in rows.items():
        medians = {k: round(statistics.median(row[k] for row in measured), 3) for k in measured[0]}
        print("median", kind, json.dumps(medians))


if __name__ == "__main__":
    main()
