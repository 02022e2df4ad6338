"""A second YARN application for demos and tests, which takes containers from a job for a while."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from elasticml.clusters.polling import until
from elasticml.clusters.yarn.application_spec import plain_specification
from elasticml.clusters.yarn.yarn_client import ApplicationLostError, YarnClient
from elasticml.errors import SubmissionError

#: Seconds between two polls of the running containers.
LOOK_S = 0.1

_SERVICE = "hold"

#: Script of the containers. With exec, SIGTERM ends it and its memory is free at once.
_SLEEP = "exec sleep 1000000"


class Tenant:
    """An application that holds containers and does nothing with them.

    It starts with none, so that :meth:`take` and :meth:`give_back` do not wait for an application
    to start. Containers within its queue's guaranteed share are pre-empted from other queues.

    Parameters
    ----------
    client : YarnClient
        Submits the application.
    queue : str
        Queue to submit to.
    memory : str
        Memory of each container, including the master's. With containers of several sizes the
        scheduler counts fragmented memory as free, and pre-empts nothing for it.
    vcores : int
        Virtual cores of each container.
    name : str
        Name of the application.
    """

    def __init__(
        self,
        client: YarnClient,
        *,
        queue: str = "prod",
        memory: str = "1 GiB",
        vcores: int = 1,
        name: str = "tenant",
    ) -> None:
        self._client = client
        self._queue = queue
        self._memory = memory
        self._vcores = vcores
        self._name = name
        self._application: Any = None

    @property
    def id(self) -> str:
        """Id of the application."""
        return str(self._application.id)

    def start(self) -> Self:
        """Submit the application and wait until its master runs."""
        process = {
            "resources": {"memory": self._memory, "vcores": self._vcores},
            "script": _SLEEP,
        }
        specification = plain_specification(
            {
                "name": self._name,
                "queue": self._queue,
                # Without a master script the application would end with its last container.
                "master": process,
                "services": {_SERVICE: {**process, "instances": 0, "max_restarts": -1}},
            }
        )
        self._application = self._client.connect(self._client.submit(specification), wait=True)
        return self

    def take(self, containers: int) -> None:
        """Request containers until it holds or awaits ``containers``; do not wait for them."""
        self._application.scale(_SERVICE, containers)

    def held(self) -> list[str]:
        """Return the YARN ids of the running containers."""
        return [one.container for one in self._application.containers(states=["running"])]

    def wait(self, containers: int, wait_s: float) -> list[str]:
        """Wait until it holds ``containers`` containers; return their YARN ids.

        Raises
        ------
        SubmissionError
            When they are not granted within ``wait_s`` seconds.
        """
        held: list[str] = []

        def has_them() -> bool:
            held[:] = self.held()
            return len(held) == containers

        if not until(has_them, wait_s=wait_s, every_s=LOOK_S):
            raise SubmissionError(
                f"queue {self._queue}: got {len(held)} containers of {self._memory} within "
                f"{wait_s:g} s, wanted {containers}; check the queue's guaranteed capacity and "
                "whether pre-emption is enabled"
            )
        return held

    def give_back(self) -> None:
        """Release all containers; do not wait until others have them."""
        self._application.scale(_SERVICE, 0)

    def close(self) -> None:
        """End the application; do nothing if it has ended."""
        if self._application is None:
            return
        try:
            self._application.shutdown("SUCCEEDED")
        except ApplicationLostError:
            self._client.kill(self.id)
        self._application = None

    def __enter__(self) -> Self:
        """Start the application."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the application."""
        self.close()
