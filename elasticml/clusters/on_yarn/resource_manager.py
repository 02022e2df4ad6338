"""The resource manager over its web service: queues, nodes, applications, what it can grant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from elasticml.clusters.on_yarn.grants import Container, check_containers, find_queue
from elasticml.clusters.on_yarn.hadoop_conf import counts_vcores, rm_web_urls
from elasticml.clusters.on_yarn.rm_answers import (
    Application,
    Node,
    Queue,
    SchedulerKind,
    read_application,
    read_applications,
    read_nodes,
    read_queues,
    scheduler_kind,
)
from elasticml.data.hadoop_sites import HadoopConf, parse_site
from elasticml.data.places import reason_of
from elasticml.data.web import Answer, ask
from elasticml.errors import ConfigError, SubmissionError

TIMEOUT_S: Final = 10.0
_API: Final = "/ws/v1/cluster"
#: What a resource manager on standby answers with: go to the active one.
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class ResourceManager:
    """Asks the active resource manager; every method is one request, nothing is kept.

    Parameters
    ----------
    urls : sequence of str
        Its pages, of each where there are several: ``http://rm.example:8088``.
    conf : HadoopConf
        The client's configuration.
    """

    def __init__(
        self, urls: Sequence[str], conf: HadoopConf | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.conf_here = conf or HadoopConf()
        self.timeout_s = timeout_s
        #: The one that answered last.
        self.url = self.urls[0]

    @classmethod
    def from_conf(cls, conf: HadoopConf, timeout_s: float = TIMEOUT_S) -> ResourceManager:
        """Name the resource manager of a configuration; nothing is asked yet."""
        return cls(rm_web_urls(conf), conf, timeout_s)

    def info(self) -> dict[str, Any]:
        """Return what it says of itself: ``state``, ``haState``, ``resourceManagerVersion``."""
        return dict(self._json("/info")["clusterInfo"])

    def scheduler(self) -> SchedulerKind:
        """Tell which scheduler it runs."""
        return scheduler_kind(self._json("/scheduler"))

    def queues(self) -> list[Queue]:
        """List all queues, parents before children."""
        return read_queues(self._json("/scheduler"))

    def queue(self, name: str) -> Queue | None:
        """Return the queue that takes applications under a name or path.

        None stands for one that is made when an application is submitted to it.

        Raises
        ------
        SubmissionError
            When there is none, or it takes no applications.
        """
        return find_queue(self.queues(), name, self.url)

    def nodes(self) -> list[Node]:
        """List all nodes that it knows of, running or not."""
        return read_nodes(self._json("/nodes"))

    def applications(
        self, *, queue: str = "", states: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> list[Application]:
        """List applications, the latest first."""
        wanted = {"queue": queue, "states": ",".join(states), "applicationTags": ",".join(tags)}
        query = urlencode({name: value for name, value in wanted.items() if value})
        return read_applications(self._json(f"/apps{'?' if query else ''}{query}"))

    def application(self, id: str) -> Application:
        """Return one application.

        Raises
        ------
        SubmissionError
            When it is not known.
        """
        answer = self._ask(f"{_API}/apps/{quote(id, safe='')}")
        body = answer.json()
        if answer.status in (400, 404) or not body or "app" not in body:
            raise SubmissionError(
                f"application {id} is unknown to the resource manager at {self.url}; see "
                "elasticml status for those there are",
                application=id,
            )
        return read_application(body["app"])

    def conf(self) -> HadoopConf:
        """Return the resource manager's own settings; the client's where it does not tell."""
        return self._settings(f"{self._active()}/conf", self.conf_here)

    def node_conf(self, node: Node) -> HadoopConf:
        """Return a node manager's settings; the client's where it does not tell."""
        scheme = self.url.partition("://")[0]
        return self._settings(f"{scheme}://{node.web_address}/conf", self.conf_here)

    def _active(self) -> str:
        self.info()
        return self.url

    def _settings(self, url: str, fallback: HadoopConf) -> HadoopConf:
        try:
            answer = ask("GET", url, timeout_s=self.timeout_s)
            found = parse_site(answer.body, url) if answer.status == 200 else []
        except (OSError, ConfigError):
            return fallback
        # A client may know of the scheduler's own file, which is not among what it shows.
        values = {**fallback.values, **{key: value for key, value, _ in found}}
        return HadoopConf(values=values, folders=fallback.folders)

    def _json(self, path: str) -> Any:
        answer = self._ask(f"{_API}{path}")
        body = answer.json()
        if answer.status != 200 or not isinstance(body, dict):
            raise self._refused(answer)
        return body

    def _ask(self, path: str) -> Answer:
        """Ask the active one; those on standby send elsewhere, those that are down do not answer.

        Raises
        ------
        SubmissionError
            When none of them answers, or all are on standby.
        """
        first = [self.url, *(url for url in self.urls if url != self.url)]
        failures: list[str] = []
        for url in first:
            try:
                answer = ask("GET", f"{url}{path}", timeout_s=self.timeout_s)
            except PermissionError as error:
                raise SubmissionError(reason_of(error), url=url) from None
            except OSError as error:
                failures.append(reason_of(error))
                continue
            # Of itself it also tells while it is on standby.
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

    def _refused(self, answer: Answer) -> SubmissionError:
        body = answer.json()
        said = body.get("RemoteException", {}).get("message") if isinstance(body, dict) else None
        if answer.status in (401, 403):
            text = f"refuses this user ({said or answer.status}); kinit, or ask for the permission"
        else:
            text = (
                f"answers {answer.status}{f' ({said})' if said else ''}, wanted its web service; "
                f"correct yarn.resourcemanager.webapp.address in {self.conf_here.where()}"
            )
        return SubmissionError(f"{self.url} {' '.join(text.split())}", url=self.url)


def check_grantable(rm: ResourceManager, queue: str, containers: Sequence[Container]) -> None:
    """Raise unless a queue could ever grant all of these containers at once.

    Parameters
    ----------
    queue : str
        By name or path; empty stands for YARN's default.
    containers : sequence of (memory_mib, vcores, label)
        What a job cannot do without; label "" for none.

    Raises
    ------
    SubmissionError
        For a resource manager that does not answer, an unknown queue, and containers that are too
        large for any node, for the queue, or for all of it together.
    """
    found = rm.queue(queue or "default")
    conf = rm.conf()
    check_containers(
        found,
        rm.nodes(),
        containers,
        smallest_mib=int(conf.number("yarn.scheduler.minimum-allocation-mb", 1)),
        counts_vcores=counts_vcores(conf),
    )
