"""Client of the resource manager's web service: queues, nodes, capacity check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from elasticml.clusters.yarn.capacity_check import Container, check_containers, find_queue
from elasticml.clusters.yarn.hadoop_conf import counts_vcores, rm_web_urls
from elasticml.clusters.yarn.rm_responses import (
    Node,
    Queue,
    SchedulerKind,
    read_nodes,
    read_queues,
    scheduler_kind,
)
from elasticml.data.storage.filesystem import reason_of
from elasticml.data.storage.hadoop_http import HttpResponse, ask
from elasticml.data.storage.hadoop_sites import HadoopConf, parse_site
from elasticml.errors import ConfigError, SubmissionError

TIMEOUT_S: Final = 10.0
_API: Final = "/ws/v1/cluster"
#: Statuses with which a standby resource manager redirects to the active one.
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class ResourceManager:
    """Query the active resource manager; every method is one request, nothing is cached.

    Parameters
    ----------
    urls : sequence of str
        URL of each resource manager, such as ``http://rm.example:8088``.
    conf : HadoopConf
        The client's configuration.
    """

    def __init__(
        self, urls: Sequence[str], conf: HadoopConf | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.conf_here = conf or HadoopConf()
        self.timeout_s = timeout_s
        #: URL of the one that responded last.
        self.url = self.urls[0]

    @classmethod
    def from_conf(cls, conf: HadoopConf, timeout_s: float = TIMEOUT_S) -> ResourceManager:
        """Return the client for a configuration; no request is made yet."""
        return cls(rm_web_urls(conf), conf, timeout_s)

    def info(self) -> dict[str, Any]:
        """Return its own state: ``state``, ``haState``, ``resourceManagerVersion`` and others."""
        return dict(self._json("/info")["clusterInfo"])

    def scheduler(self) -> SchedulerKind:
        """Return the kind of scheduler that it runs."""
        return scheduler_kind(self._json("/scheduler"))

    def queues(self) -> list[Queue]:
        """List all queues, parents before children."""
        return read_queues(self._json("/scheduler"))

    def queue(self, name: str) -> Queue | None:
        """Return the leaf queue with a name or path; None if it is created on submission.

        Raises
        ------
        SubmissionError
            When there is no such queue, or it accepts no applications.
        """
        return find_queue(self.queues(), name, self.url)

    def nodes(self) -> list[Node]:
        """List all nodes that it knows, running or not."""
        return read_nodes(self._json("/nodes"))

    def conf(self) -> HadoopConf:
        """Return the resource manager's own settings; the client's if they cannot be read."""
        return self._settings(f"{self._active()}/conf", self.conf_here)

    def node_conf(self, node: Node) -> HadoopConf:
        """Return a node manager's settings; the client's if they cannot be read."""
        scheme = self.url.partition("://")[0]
        return self._settings(f"{scheme}://{node.web_address}/conf", self.conf_here)

    def _active(self) -> str:
        self.info()
        return self.url

    def _settings(self, url: str, fallback: HadoopConf) -> HadoopConf:
        try:
            answer = ask("GET", url, timeout_s=self.timeout_s)
            entries = parse_site(answer.body, url) if answer.status == 200 else []
        except (OSError, ConfigError):
            return fallback
        # The client's values stay: the response lacks the scheduler's own configuration file.
        values = {**fallback.values, **{key: value for key, value, _ in entries}}
        return HadoopConf(values=values, folders=fallback.folders)

    def _json(self, path: str) -> Any:
        answer = self._ask(f"{_API}{path}")
        body = answer.json()
        if answer.status != 200 or not isinstance(body, dict):
            raise self._refused(answer)
        return body

    def _ask(self, path: str) -> HttpResponse:
        """Send a request to each resource manager in turn until the active one responds.

        Raises
        ------
        SubmissionError
            When none responds, or all are on standby.
        """
        urls = [self.url, *(url for url in self.urls if url != self.url)]
        failures: list[str] = []
        for url in urls:
            try:
                answer = ask("GET", f"{url}{path}", timeout_s=self.timeout_s)
            except PermissionError as error:
                raise SubmissionError(reason_of(error), url=url) from None
            except OSError as error:
                failures.append(reason_of(error))
                continue
            # A standby resource manager does respond to /info.
            if answer.status in _REDIRECTS or b'"haState":"STANDBY"' in answer.body:
                failures.append(f"{url} is on standby")
                continue
            self.url = url
            return answer
        raise SubmissionError(
            f"the resource manager does not answer: {'; '.join(failures)}; start it, or correct "
            f"yarn.resourcemanager.webapp.address in {self.conf_here.where()}",
            url=self.url,
        )

    def _refused(self, answer: HttpResponse) -> SubmissionError:
        body = answer.json()
        reason = body.get("RemoteException", {}).get("message") if isinstance(body, dict) else None
        if answer.status in (401, 403):
            text = f"refuses this user ({reason or answer.status}); kinit, or ask for permission"
        else:
            text = (
                f"answers {answer.status}{f' ({reason})' if reason else ''}, wanted its web "
                f"service; correct yarn.resourcemanager.webapp.address in {self.conf_here.where()}"
            )
        return SubmissionError(f"{self.url} {' '.join(text.split())}", url=self.url)


def check_grantable(rm: ResourceManager, queue: str, containers: Sequence[Container]) -> None:
    """Raise unless a queue could ever grant all of these containers at the same time.

    Parameters
    ----------
    queue : str
        Name or path; empty is YARN's default queue.
    containers : sequence of (memory_mib, vcores, label)
        The containers that a job needs to start; label "" for none.

    Raises
    ------
    SubmissionError
        When the resource manager does not respond, the queue is unknown, or the containers exceed
        the limits of every node, of a container in the queue, or of the queue in total.
    """
    leaf = rm.queue(queue or "default")
    conf = rm.conf()
    check_containers(
        leaf,
        rm.nodes(),
        containers,
        smallest_mib=int(conf.number("yarn.scheduler.minimum-allocation-mb", 1)),
        counts_vcores=counts_vcores(conf),
    )
