"""The stream of notices from a YARN cluster: marks for pre-emption, exits, changes of nodes.

The ResourceManager tells them to the application master alone, and skein's drops them. An agent
beside it (``yarn/agent``) publishes them in skein's key-value store, where any process of the
application reads them within milliseconds. Without the agent everything works but the warning: what
is left is SIGTERM, and the loss itself.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elasticml.clusters.notice_book import (
    PREFIX,
    NoticeBook,
)
from elasticml.clusters.notice_book import AgentSeen as AgentSeen
from elasticml.clusters.notice_book import ContainerExited as ContainerExited
from elasticml.clusters.notice_book import ContainerMarked as ContainerMarked
from elasticml.clusters.notice_book import ExitReason as ExitReason
from elasticml.clusters.notice_book import MarkLapsed as MarkLapsed
from elasticml.clusters.notice_book import NodeChanged as NodeChanged
from elasticml.clusters.notice_book import Notice as Notice
from elasticml.clusters.notice_book import PreemptionTimes as PreemptionTimes
from elasticml.clusters.notice_book import preemption_times as preemption_times
from elasticml.errors import RemoteProtocolError

if TYPE_CHECKING:
    import skein

logger = logging.getLogger(__name__)

#: Milliseconds between two looks of the application master at the ResourceManager. A notice is up
#: to one of these late: skein's own 5 s are longer than some clusters' whole warning.
HEARTBEAT_MS: Final = 1000

_JAR: Final = "elasticml-agent.jar"
_OPTIONS: Final = "JAVA_TOOL_OPTIONS"
_CLOSE_S_MAX: Final = 5.0


def agent_jar() -> Path | None:
    """Find the agent's jar; None where it was not built (``make agent``)."""
    jar = Path(__file__).parent / "on_yarn" / _JAR
    return jar if jar.is_file() else None


def with_agent(
    spec: skein.ApplicationSpec, heartbeat_ms: int = HEARTBEAT_MS
) -> skein.ApplicationSpec:
    """Return a copy of a specification whose application master has the agent.

    Where there is no jar, the copy is the same. Further options for the JVM are kept.

    Parameters
    ----------
    spec : skein.ApplicationSpec
    heartbeat_ms : int
        Milliseconds between two looks at the ResourceManager.
    """
    import skein

    spec = copy.deepcopy(spec)
    jar = agent_jar()
    if jar is None:
        logger.info("no %s: pre-emption comes without notice; build it: make agent", _JAR)
        return spec
    master = spec.master
    # Only the constructor of a skein.Master makes files out of paths.
    master.files = {**master.files, _JAR: skein.File(source=jar.as_uri())}
    # The launch script fills in $PWD. A relative path would end every JVM that the application's
    # own scripts start in another folder, because they inherit the variable.
    option = f"-javaagent:$PWD/{_JAR}={heartbeat_ms}"
    others = [word for word in master.env.get(_OPTIONS, "").split() if _JAR not in word]
    master.env = {**master.env, _OPTIONS: " ".join([*others, option])}
    return spec


class NoticeStream:
    """Calls back for every notice that an application gets, from a thread of its own.

    What was told before it started is told first, as far as it still holds. It ends with
    ``close``, or when the application master goes.

    Parameters
    ----------
    application_client : skein.ApplicationClient
    times : PreemptionTimes
        How the cluster takes containers back.
    """

    def __init__(self, application_client: skein.ApplicationClient, times: PreemptionTimes) -> None:
        self._app = application_client
        self._book = NoticeBook(times)
        # The application master's clock says seconds since the epoch; from now on this one counts
        # on evenly, whatever is done to the machine's.
        self._epoch_s = time.time() - time.monotonic()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._events: Any = None

    def start(
        self, on_notice: Callable[[Notice], None], on_end: Callable[[], None] | None = None
    ) -> None:
        """Begin to call back.

        Parameters
        ----------
        on_notice : callable
            Called in the stream's thread, which waits for it.
        on_end : callable, optional
            Called there when the application master is gone, and no notice will come any more.
        """
        assert self._thread is None, "a stream starts once"
        # Not waited for at the end of the process: skein waits for its server without a limit.
        self._thread = threading.Thread(
            target=self._run, args=(on_notice, on_end), name="elasticml-notices", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Call back no more; waits for a call that is under way."""
        self._is_closed.set()
        if self._events is not None:
            self._events.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S_MAX)

    def _run(self, on_notice: Callable[[Notice], None], on_end: Callable[[], None] | None) -> None:
        import skein.exceptions

        try:
            self._read_all(on_notice)
        except skein.exceptions.SkeinError as error:
            if not self._is_closed.is_set():
                logger.info("no more notices: %s", error)
                if on_end is not None:
                    on_end()

    def _read_all(self, on_notice: Callable[[Notice], None]) -> None:
        # Subscribed first, then read: the events do not begin with what is there already.
        with self._app.kv.events(prefix=PREFIX, event_type="PUT") as events:
            self._events = events
            for key, value in self._app.kv.get_prefix(PREFIX).items():
                self._read(key, value, on_notice)
            self._book.follow()
            while not self._is_closed.is_set():
                try:
                    event = events.get(timeout=self._wait_s())
                except queue.Empty:
                    self._tell(self._book.lapse(self._now_s()), on_notice)
                    continue
                if event is not None:
                    self._read(event.key, event.result.value, on_notice)

    def _read(self, key: str, value: bytes, on_notice: Callable[[Notice], None]) -> None:
        try:
            notices = self._book.read(key, value, self._now_s())
        except RemoteProtocolError as error:
            logger.warning("%s", error)
            return
        self._tell(notices, on_notice)

    def _tell(self, notices: list[Notice], on_notice: Callable[[Notice], None]) -> None:
        for notice in notices:
            if self._is_closed.is_set():
                return
            logger.debug("%s", notice)
            on_notice(notice)

    def _wait_s(self) -> float | None:
        """Seconds until a mark lapses; None where none does."""
        at_s = self._book.next_lapse_s()
        return None if at_s is None else max(0.0, at_s - self._now_s())

    def _now_s(self) -> float:
        return self._epoch_s + time.monotonic()
