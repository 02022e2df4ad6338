"""Another tenant of a YARN, who takes containers from others and gives them back."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from elasticml.clusters.polling import until
from elasticml.errors import SubmissionError

#: Seconds between two looks at which containers run.
LOOK_S = 0.1

_SERVICE = "hold"

#: What containers do. exec, so that SIGTERM ends it: memory that is given back is free at once.
_SLEEP = "exec sleep 1000000"


class Tenant:
    """An application that holds containers and does nothing with them.

    It starts without any, so that :meth:`take` and :meth:`give_back` cost no start of an
    application: what its queue is guaranteed and others use is taken from them by pre-emption.

    Parameters
    ----------
    client : skein.Client
        Who submits.
    queue : str
        Where.
    memory : str
        Of each container, its master's too: with containers of several sizes the scheduler counts
        memory as free that is too scattered for one more, and takes nothing back for it.
    vcores : int
        Of each container.
    name : str
        Of the application.
    """

    def __init__(
        self,
        client: Any,
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
        """The application's id."""
        return str(self._application.id)

    def start(self) -> Self:
        """Submit the application and wait until its master runs."""
        import skein

        resources = skein.Resources(memory=self._memory, vcores=self._vcores)
        hold = skein.Service(instances=0, max_restarts=-1, resources=resources, script=_SLEEP)
        specification = skein.ApplicationSpec(
            name=self._name,
            queue=self._queue,
            # Without this the application would end with the last container given back.
            master=skein.Master(resources=resources, script=_SLEEP),
            services={_SERVICE: hold},
        )
        self._application = self._client.submit_and_connect(specification)
        return self

    def take(self, containers: int) -> None:
        """Ask for containers until it holds or awaits so many; does not wait for them."""
        self._application.scale(_SERVICE, containers)

    def held(self) -> list[str]:
        """Return the YARN ids of the containers that it holds."""
        running = self._application.get_containers(states=["RUNNING"])
        return [container.yarn_container_id for container in running]

    def wait(self, containers: int, wait_s: float) -> list[str]:
        """Wait until it holds so many containers; return their YARN ids.

        Raises
        ------
        SubmissionError
            When it does not within ``wait_s`` seconds.
        """
        held: list[str] = []

        def has_them() -> bool:
            held[:] = self.held()
            return len(held) == containers

        if not until(has_them, wait_s=wait_s, every_s=LOOK_S):
            raise SubmissionError(
                f"queue {self._queue}: got {len(held)} containers of {self._memory} within "
                f"{wait_s:g} s, wanted {containers}; see what the queue is guaranteed, and "
                "whether pre-emption is on"
            )
        return held

    def give_back(self) -> None:
        """Give all containers back; does not wait until others have them."""
        self._application.scale(_SERVICE, 0)

    def close(self) -> None:
        """End the application; nothing happens where it has ended."""
        from skein.exceptions import ConnectionError as Unreachable

        if self._application is None:
            return
        try:
            self._application.shutdown()
        except Unreachable:
            self._client.kill_application(self.id)
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
