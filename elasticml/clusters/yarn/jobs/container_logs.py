"""The logs of an application's containers, while it runs and afterwards."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from elasticml.clusters.yarn.application_spec import SCHEDULER
from elasticml.clusters.yarn.jobs.yarn_status import application_status
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.data.storage.hadoop_http import ask
from elasticml.errors import ConfigError, SubmissionError, one_line

if TYPE_CHECKING:
    from elasticml.clusters.yarn.yarn_client import YarnClient


#: Failed scheduler containers, before the driver has started, after which we give up.
FAILURES_MIN = 2

_LOG = re.compile(
    r"^Container: (?P<container>[^\n]*)\n(?:(?!LogContents:)[^\n]*\n)*?LogType:(?P<name>[^\n]*)\n"
    r"(?:(?!LogContents:)[^\n]*\n)*LogContents:\n(?P<text>.*?)^End of LogType:(?P=name)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLog:
    """The log of one container."""

    #: Describes the container.
    title: str
    text: str


def container_logs(
    client: YarnClient, application_id: str, service: str | None = None
) -> Iterator[ContainerLog]:
    """Yield the logs of an application's containers.

    Parameters
    ----------
    service : str, optional
        Only those of this service.

    Raises
    ------
    SubmissionError
        When there are none, or YARN does not provide them.
    """
    if application_status(client, application_id).is_over:
        yield from _collected(application_id, service)
    else:
        yield from _living(client, application_id, service)


def _collected(application_id: str, service: str | None) -> Iterator[ContainerLog]:
    """Yield the logs that YARN aggregated at the end of the application.

    Uses Hadoop's own command, since skein looks where only older versions of Hadoop keep them.
    """
    command = [
        "yarn",
        "logs",
        "-applicationId",
        application_id,
        "-log_files_pattern",
        rf"{'.*' if service is None else re.escape(service)}\.log",
    ]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(
            f"the command yarn cannot be run: {error.strerror}; put Hadoop's bin on the PATH"
        ) from error
    logs = parse_logs(completed.stdout)
    if not logs:
        raise SubmissionError(
            f"{application_id}: YARN has no such logs; they are available a few seconds after its "
            "end if yarn.log-aggregation-enable is true, else on its nodes"
        )
    yield from logs


def parse_logs(text: str) -> list[ContainerLog]:
    """Parse the output of ``yarn logs``."""
    logs = []
    for match in _LOG.finditer(text):
        title = f"{match['name']} of {match['container']}"
        logs.append(ContainerLog(title=title, text=match["text"].strip("\n")))
    return logs


def _living(client: YarnClient, application_id: str, service: str | None) -> Iterator[ContainerLog]:
    """Yield the logs of all containers so far, from their nodes."""
    try:
        with client.connect(application_id) as application:
            containers = application.containers(
                services=None if service is None else [service],
                states=["running", "succeeded", "failed", "killed"],
            )
    except YarnCallError as error:
        raise SubmissionError(
            f"{application_id} does not answer: {one_line(error)}; try again when elasticml status "
            "says that it is RUNNING"
        ) from error
    for container in containers:
        node, name = container.node_http, container.container
        if not node:
            continue  # it never started
        title = f"{container.name} ({name} on {node}, {container.state})"
        yield ContainerLog(title=title, text=_log_on_node(node, name, container.service))


def why_no_driver(client: YarnClient, application_id: str) -> str | None:
    """Return why the scheduler of an application, and the driver in it, fails repeatedly.

    Returns
    -------
    str or None
        The last line of its log; None if it has not failed that often, or the application does not
        reply.
    """
    try:
        with client.connect(application_id) as application:
            failed = application.containers(services=[SCHEDULER], states=["failed"])
    except YarnCallError:
        return None
    if len(failed) < FAILURES_MIN:
        return None
    last = max(failed, key=lambda container: container.instance)
    text = _log_on_node(last.node_http, last.container, last.service)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("elasticml: ") if lines else one_line(last.message)


def _log_on_node(node: str, container: str, service: str) -> str:
    url = f"http://{node}/ws/v1/node/containerlogs/{quote(container)}/{quote(service)}.log"
    try:
        answer = ask("GET", url, timeout_s=10.0)
    except OSError as error:
        return f"not known: {one_line(error)}"
    if answer.status != 200:
        return f"not known: the node answers {answer.status}"
    return "\n".join(log.text for log in parse_logs(answer.body.decode(errors="replace")))
