"""Stream notices from a YARN cluster: pre-emption marks, container exits, node changes.

The ResourceManager sends them to the application master only, and skein's master drops them. An
agent in the same JVM (``yarn/agent``) publishes them in skein's key-value store, where any process
of the application can read them within milliseconds. Without the agent everything but the advance
warning works: what remains is SIGTERM, and the loss itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from elasticml.clusters.yarn.notice_parser import PREFIX, AgentNotice, NoticeParser, PreemptionTimes
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.errors import RemoteProtocolError

if TYPE_CHECKING:
    from elasticml.clusters.yarn.yarn_client import KeyWatch, YarnApplication

logger = logging.getLogger(__name__)

_CLOSE_S_MAX: Final = 5.0


class NoticeStream:
    """Call back for every notice of an application, from a thread of its own.

    Notices from before the start that are still valid come first. The stream ends with ``close``,
    or when the application master exits.

    Parameters
    ----------
    application : YarnApplication
    times : PreemptionTimes
        Timing of the cluster's pre-emption.
    """

    def __init__(self, application: YarnApplication, times: PreemptionTimes) -> None:
        self._store = application.store
        self._parser = NoticeParser(times)
        # Documents carry seconds since the epoch. The monotonic clock extends them evenly, even if
        # the machine's clock is set.
        self._epoch_s = time.time() - time.monotonic()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._watch: KeyWatch | None = None

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
        if self._watch is not None:
            self._watch.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S_MAX)

    def _run(
        self, on_notice: Callable[[AgentNotice], None], on_end: Callable[[], None] | None
    ) -> None:
        try:
            self._read_all(on_notice)
        except YarnCallError as error:
            if not self._is_closed.is_set():
                logger.info("no more notices: %s", error)
                if on_end is not None:
                    on_end()

    def _read_all(self, on_notice: Callable[[AgentNotice], None]) -> None:
        # Watch before reading: the changes do not include what is in the store already.
        with self._store.watch(PREFIX) as changes:
            self._watch = changes
            for key, value in self._store.with_prefix(PREFIX).items():
                self._read(key, value, on_notice)
            self._parser.follow()
            while not self._is_closed.is_set():
                changed = changes.get()
                if changed is not None and changed[1] is not None:
                    self._read(changed[0], changed[1], on_notice)

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
