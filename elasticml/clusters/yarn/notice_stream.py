"""Stream notices from a YARN cluster: pre-emption marks, container exits, node changes.

The ResourceManager sends them to the application master only, and skein's master drops them. An
agent in the same JVM (``yarn/agent``) publishes them in skein's key-value store, where any process
of the application can read them within milliseconds. Without the agent everything but the advance
warning works: what remains is SIGTERM, and the loss itself.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elasticml.clusters.yarn.notice_parser import PREFIX, AgentNotice, NoticeParser, PreemptionTimes
from elasticml.errors import RemoteProtocolError

if TYPE_CHECKING:
    import skein

logger = logging.getLogger(__name__)

#: Milliseconds between two heartbeats of the application master to the ResourceManager. A notice is
#: late by up to one heartbeat; skein's own 5 s exceed the whole warning time of some clusters.
HEARTBEAT_MS: Final = 1000

_JAR: Final = "elasticml-agent.jar"
_OPTIONS: Final = "JAVA_TOOL_OPTIONS"
_CLOSE_S_MAX: Final = 5.0


def agent_jar() -> Path | None:
    """Return the path of the agent's jar; None if it was not built (``make agent``)."""
    jar = Path(__file__).parent / _JAR
    return jar if jar.is_file() else None


def with_agent(
    spec: skein.ApplicationSpec, heartbeat_ms: int = HEARTBEAT_MS
) -> skein.ApplicationSpec:
    """Return a copy of a specification whose application master loads the agent.

    Without a jar the copy is unchanged. Other JVM options are kept.

    Parameters
    ----------
    spec : skein.ApplicationSpec
    heartbeat_ms : int
        Milliseconds between two heartbeats to the ResourceManager.
    """
    import skein

    spec = copy.deepcopy(spec)
    jar = agent_jar()
    if jar is None:
        logger.info("no %s: pre-emption will come without notice; build it: make agent", _JAR)
        return spec
    master = spec.master
    # Only the constructor of skein.Master converts paths to files.
    master.files = {**master.files, _JAR: skein.File(source=jar.as_uri())}
    # The launch script expands $PWD. A relative path would break every JVM that the application's
    # own scripts start in another folder, because they inherit the variable.
    option = f"-javaagent:$PWD/{_JAR}={heartbeat_ms}"
    others = [word for word in master.env.get(_OPTIONS, "").split() if _JAR not in word]
    master.env = {**master.env, _OPTIONS: " ".join([*others, option])}
    return spec


class NoticeStream:
    """Call back for every notice of an application, from a thread of its own.

    Notices from before the start that are still valid come first. The stream ends with ``close``,
    or when the application master exits.

    Parameters
    ----------
    application_client : skein.ApplicationClient
    times : PreemptionTimes
        Timing of the cluster's pre-emption.
    """

    def __init__(self, application_client: skein.ApplicationClient, times: PreemptionTimes) -> None:
        self._app = application_client
        self._parser = NoticeParser(times)
        # Documents carry seconds since the epoch. The monotonic clock extends them evenly, even if
        # the machine's clock is set.
        self._epoch_s = time.time() - time.monotonic()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._events: Any = None

    def start(
        self, on_notice: Callable[[AgentNotice], None], on_end: Callable[[], None] | None = None
    ) -> None:
        """Start calling back.

        Parameters
        ----------
        on_notice : callable
            Called in the stream's thread, which waits for it.
        on_end : callable, optional
            Called in that thread when the application master has exited: no more notices follow.
        """
        assert self._thread is None, "a stream starts once"
        # A daemon thread: skein waits for its server without a limit.
        self._thread = threading.Thread(
            target=self._run, args=(on_notice, on_end), name="elasticml-notices", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop calling back; wait for a call in progress."""
        self._is_closed.set()
        if self._events is not None:
            self._events.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S_MAX)

    def _run(
        self, on_notice: Callable[[AgentNotice], None], on_end: Callable[[], None] | None
    ) -> None:
        import skein.exceptions

        try:
            self._read_all(on_notice)
        except skein.exceptions.SkeinError as error:
            if not self._is_closed.is_set():
                logger.info("no more notices: %s", error)
                if on_end is not None:
                    on_end()

    def _read_all(self, on_notice: Callable[[AgentNotice], None]) -> None:
        # Subscribe before reading: the events do not include what is in the store already.
        with self._app.kv.events(prefix=PREFIX, event_type="PUT") as events:
            self._events = events
            for key, value in self._app.kv.get_prefix(PREFIX).items():
                self._read(key, value, on_notice)
            self._parser.follow()
            while not self._is_closed.is_set():
                event = events.get()
                if event is not None:
                    self._read(event.key, event.result.value, on_notice)

    def _read(self, key: str, value: bytes, on_notice: Callable[[AgentNotice], None]) -> None:
        try:
            notices = self._parser.read(key, value, self._now_s())
        except RemoteProtocolError as error:
            logger.warning("%s", error)
            return
        self._deliver(notices, on_notice)

    def _deliver(
        self, notices: list[AgentNotice], on_notice: Callable[[AgentNotice], None]
    ) -> None:
        for notice in notices:
            if self._is_closed.is_set():
                return
            logger.debug("%s", notice)
            on_notice(notice)

    def _now_s(self) -> float:
        return self._epoch_s + time.monotonic()
