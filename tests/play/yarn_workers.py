"""Workers in containers of a mini YARN, and the faults that only YARN has."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import psutil
from distributed import Client

from elasticml.clusters.local.cluster import LocalWorker
from elasticml.clusters.polling import until
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.errors import JobFailedError
from elasticml.jobs.handle import workers_of
from tests.play.faults import Begin, Undo
from tests.play.plan import Fault
from yarn.mini.daemons import marked
from yarn.mini.mini_yarn import MiniYarn
from yarn.mini.tenant import Tenant

if TYPE_CHECKING:
    from elasticml.clusters.yarn.cluster import YarnCluster

_START_S_MAX: Final = 180.0
#: Containers that the other queue demands: YARN has 12 GiB in all, so it takes two of ours for 7.
_DEMANDED: Final = 7
#: Longest wait until it has them. It takes about 7 s: marks, 2 s of notice, the end, the start.
_PREEMPTION_S_MAX: Final = 20.0
#: The node whose NodeManager ends with all its containers.
_NODE: Final = 1


@contextlib.contextmanager
def yarn_environment() -> Generator[MiniYarn]:
    """Start a mini YARN; this process's environment names it meanwhile."""
    former = dict(os.environ)
    with MiniYarn() as yarn:
        os.environ.update(yarn.environment())
        try:
            yield yarn
        finally:
            for name in yarn.environment():
                os.environ.pop(name, None)
            os.environ.update({n: v for n, v in former.items() if n in yarn.environment()})


class YarnWorkers:
    """A cluster in containers of 1 GiB, and another queue's application; a context manager.

    Parameters
    ----------
    yarn : MiniYarn
    members : int
        Workers at the start.
    """

    client: Client

    def __init__(self, yarn: MiniYarn, members: int) -> None:
        self._yarn, self._members = yarn, members
        self._exits = contextlib.ExitStack()
        #: Held while daemons end or start.
        self._daemons = threading.Lock()
        self._cluster: YarnCluster
        self._tenant: Tenant

    def __enter__(self) -> Self:
        from elasticml.clusters.yarn.cluster import YarnCluster
        from elasticml.clusters.yarn.skein_client import start_client

        with contextlib.ExitStack() as exits:
            yarn_client = exits.enter_context(start_client())
            self._tenant = exits.enter_context(Tenant(yarn_client))
            self._cluster = exits.enter_context(
                YarnCluster(
                    environment=f"python://{sys.executable}",
                    n_workers=self._members,
                    worker_memory="1 GiB",
                    scheduler_memory="1 GiB",
                    worker_restarts=-1,
                    queue="ml",
                    skein_client=yarn_client.client,
                )
            )
            client = self.client = Client(self._cluster, set_as_default=False)
            # A client that closes itself, 30 s after its scheduler ended, keeps the loop's thread.
            exits.callback(lambda: client._loop_runner.stop())
            exits.enter_context(client)
            self._await(self._members)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._repair()
        self._exits.close()

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler."""
        return self._listeners()[_port(self._cluster.scheduler_address)]

    @property
    def faults(self) -> dict[str, Begin]:
        """Pre-emption by another queue, a machine that dies, a ResourceManager that restarts."""
        return {
            "preemption": self._preempt,
            "node": self._kill_node,
            "resource_manager": self._kill_resource_manager,
        }

    def workers(self) -> list[LocalWorker]:
        """List the workers that have registered and not ended."""
        listeners = self._listeners()
        return [
            LocalWorker(name=known["name"], address=address, pid=pid, state="running")
            for address, known in workers_of(self.client).items()
            if (pid := listeners.get(_port(address))) is not None
        ]

    def bring_back(self, n: int) -> None:
        """Request containers for ``n`` more workers; return when they have registered."""
        wanted = len(self.workers()) + n
        with _refused_as_failure():
            self._cluster.scale(wanted)
        self._await(wanted)

    def _await(self, n: int) -> None:
        if not until(lambda: len(self.workers()) >= n, wait_s=_START_S_MAX, every_s=0.2):
            raise JobFailedError(f"{n} workers did not come; the logs are in {self._yarn.root}")

    def _listeners(self) -> dict[int, int]:
        """Return the processes of the containers by the ports at which they listen."""
        pids = {process.pid for process in marked(self._yarn.root)}
        ports: dict[int, int] = {}
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid in pids:
                address: Any = connection.laddr
                ports[address.port] = connection.pid
        return ports

    def _preempt(self, _: Any, __: Fault, ___: Sequence[LocalWorker]) -> Undo:
        """Demand containers until the other queue has them."""
        with _refused_as_failure():
            self._tenant.take(_DEMANDED)
            until(
                lambda: len(self._tenant.held()) >= _DEMANDED,
                wait_s=_PREEMPTION_S_MAX,
                every_s=0.2,
            )
        return self._give_back

    def _give_back(self) -> None:
        # The other queue's application may have ended with its node.
        with contextlib.suppress(YarnCallError):
            self._tenant.give_back()

    def _kill_node(self, _: Any, __: Fault, ___: Sequence[LocalWorker]) -> Undo:
        with self._daemons:
            self._yarn.kill_node(_NODE, containers=True)
        return self._repair

    def _kill_resource_manager(self, _: Any, __: Fault, ___: Sequence[LocalWorker]) -> Undo:
        with self._daemons:
            self._yarn.kill_resource_manager()
        return self._repair

    def _repair(self) -> None:
        with self._daemons:
            self._yarn.repair()


@contextlib.contextmanager
def _refused_as_failure() -> Generator[None]:
    """Raise what YARN or an application refuses, perhaps because it has ended, as a failure."""
    try:
        yield
    except YarnCallError as error:
        raise JobFailedError(f"YARN: {error}") from error


def _port(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port
