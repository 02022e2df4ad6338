"""Links between Dask servers, opened as Dask comms with the servers' ports and TLS.

Both sides then bypass the comm and use the byte stream below it: the socket of ``tcp://``
(``SocketLink``) or the stream of ``tls://`` (``StreamChannel``). If there is neither
(``inproc://``, ``ws://``, ``ucx``), or ``hello["transport"]`` is ``"comm"``, frames are Dask
messages (``MessageChannel``). If each side can open the other's memory, vectors are passed in
shared memory (``SharedLink``). This holds under TLS, too: each side has verified that the other is
a process of the same user on the same host.

Two undocumented properties of Dask are relied on, and tested: the comms of ``tcp://`` and
``tls://`` have their tornado stream in the attribute ``stream``, and a handler whose first
parameter is called ``comm`` owns the comm.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from distributed.comm import connect, get_address_host
from distributed.core import Status
from numpy.typing import NDArray
from tornado.iostream import IOStream, SSLIOStream

from elasticml.collective.comm_link import CommLink, MessageChannel, StreamChannel
from elasticml.collective.frames import VERSION, Frame, Header, Kind, reading_prefix
from elasticml.collective.segmentation import PIECE_BYTES
from elasticml.collective.shared_memory import NoSharedMemoryError, SlotPool, check_offer
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import (
    CONNECT_S_MAX,
    Link,
    LinkClosedError,
    OnLink,
)
from elasticml.errors import ConfigError, RemoteProtocolError

logger = logging.getLogger(__name__)

#: Names of our handler and our extension on a Dask server.
HANDLER: Final = "em_link"
EXTENSION: Final = "elasticml-links"
#: Seconds in which the opener of a link sends its first frame, after the answer to its greeting.
FIRST_FRAME_S_MAX: Final = 2 * CONNECT_S_MAX
#: Links of one host that have not sent their first frame; further ones of that host are refused.
UNPROVEN_MAX: Final = 128
#: The answer to a peer whose memory this process does not share; the log has the reason.
APART: Final = "the peer shares no memory, its log says why"
#: Longest greeting, in characters.
GREETING_BYTES_MAX: Final = 4096
#: Registered links up to this number are not searched for closed ones.
LINKS_MIN: Final = 16
#: Reasons for not sharing memory that are logged.
REASONS_MAX: Final = 100
#: Values of ``hello["transport"]``.
CHOICES: Final = ("auto", "stream", "comm", "shm")


PlainLink = SocketLink | CommLink
AnyLink = PlainLink | SharedLink


@dataclass(frozen=True, slots=True)
class Agreed:
    """The result of the handshake of a new link."""

    kind: str
    #: The peer's offer of shared memory; None if vectors travel through the link.
    offer: Mapping[str, Any] | None


class Server(Protocol):
    """The part of ``distributed.Scheduler`` and ``Worker`` that a transport uses."""

    address: str
    handlers: dict[str, Any]
    extensions: dict[str, Any]
    connection_args: dict[str, Any]


class DaskTransport:
    """The links of one Dask server, shared by all of its jobs; see ``transport.Transport``.

    Use ``transport_of`` to obtain it. One listener serves all jobs and distinguishes them by
    ``link.hello``.
    """

    def __init__(self, server: Server) -> None:
        self.is_closed = False
        self._server = server
        self._on_link: OnLink | None = None
        self._links: set[AnyLink] = set()
        #: Number of links at which closed ones are dropped.
        self._links_max = LINKS_MIN
        #: Number of links by host that have not sent their first frame.
        self._unproven: Counter[str] = Counter()
        self.pool = SlotPool()
        #: Reasons for not sharing memory that have been logged; each is logged once.
        self._logged_reasons: set[str] = set()

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._server.address

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link to the server at ``address``.

        Parameters
        ----------
        address : str
            A Dask address, such as ``tls://10.0.0.7:40001``.
        hello : mapping
            Sent to the other side, of JSON types. ``hello["transport"]`` may be ``"auto"`` (the
            default: shared memory on one host, else a stream if there is one), ``"shm"``,
            ``"stream"`` or ``"comm"``.

        Raises
        ------
        LinkClosedError
            When the peer does not answer within ``CONNECT_S_MAX``, or does not listen.
        RemoteProtocolError
            When the peer runs another version of elasticml.
        ConfigError
            When ``"stream"`` or ``"shm"`` is requested but not available, or the choice is unknown.
        """
        if self.is_closed:
            raise LinkClosedError(f"the links of {self.address} are closed")
        choice = hello.get("transport", "auto")
        if choice not in CHOICES:
            raise ConfigError(f"transport {choice!r} is unknown, wanted one of {CHOICES}")
        comm = None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                arguments = self._server.connection_args
                comm = await connect(address, timeout=CONNECT_S_MAX, deserialize=False, **arguments)
                agreed = await self._handshake(comm, choice, hello)
        except OSError as fault:
            _abort(comm)
            raise LinkClosedError(f"no link to {address}: {fault or 'no answer'}") from fault
        except BaseException:
            _abort(comm)
            raise
        link, is_shared = _link_over(comm, agreed.kind, hello), agreed.offer is not None
        opened = self._register(SharedLink(link, self.pool, agreed.offer) if is_shared else link)
        # The acceptor sends nothing until it has this frame, so that nothing is lost between the
        # comm's last message and the link's first frame.
        try:
            await link.send(Frame(kind=Kind.CONTROL, prefix={"shared": is_shared}))
        except BaseException:
            opened.close()
            raise
        return opened

    def listen(self, on_link: OnLink) -> None:
        """Pass every link that a peer opens to ``on_link``, which replaces the former listener."""
        self._on_link = on_link

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return an array in shared memory that peers can read; see ``Transport``."""
        return self.pool.take(nbytes)

    def close(self) -> None:
        """Stop listening and close all links; called by a closing Worker, too."""
        self.is_closed = True
        self._on_link = None
        for link in list(self._links):
            link.close()
        self._links.clear()
        self.pool.close()

    def teardown(self) -> None:
        """Close; called by a closing Scheduler."""
        self.close()

    async def accept(self, comm: Any, /, **message: Any) -> Any:
        """Take over a comm that a peer opened; the handler of the operation ``em_link``.

        The first parameter must be called ``comm``: only then does the server leave the comm to
        the handler until it returns. No exception leaves it: Dask would send the traceback.
        """
        try:
            return await self._accept(comm, message)
        except Exception:
            logger.exception("a link from %s could not be opened", comm.peer_address)
            comm.abort()
            return Status.dont_reply

    async def _accept(self, comm: Any, message: Mapping[str, Any]) -> Any:
        """Check the opening message, answer it, and serve the link until it closes."""
        theirs = message.get("protocol")
        if theirs != VERSION:
            number = theirs if isinstance(theirs, int) and 0 <= theirs < 1000 else "yours"
            return {"refused": f"the peer speaks version {VERSION} of the protocol, not {number}"}
        on_link, host = self._on_link, _host_of(comm)
        if on_link is None:
            return {"deaf": f"no listener at {self.address}"}
        try:
            greeting = read_greeting(message.get("hello"))
        except RemoteProtocolError as error:
            logger.warning("a link from %s was refused: %s", comm.peer_address, error)
            return {"refused": "the greeting is not one of elasticml"}
        if self._unproven[host] >= UNPROVEN_MAX:
            logger.warning("a link from %s was refused: too many without a frame", host)
            return {"deaf": "too many links without a first frame"}
        shared = message.get("shared")
        offer = None if shared is None else self._answer_offer(comm.peer_address, shared)
        kind = "stream" if message.get("transport") == "stream" and has_stream(comm) else "comm"
        apart = APART if shared is not None and offer is None else ""
        comm.allow_offload = False
        comm.deserialize = False
        self._unproven[host] += 1
        try:
            await comm.write({"transport": kind, "shared": offer, "apart": apart})
            # No await between the last message and the link: nothing else may read the stream.
            link: AnyLink = self._register(_link_over(comm, kind, greeting))
            first = await _first_frame(link)
        except OSError:
            return Status.dont_reply
        finally:
            self._unproven[host] -= 1
            self._unproven += Counter()  # drops the hosts without such links
        if first is None:
            return Status.dont_reply
        if first.get("shared") and offer is not None:
            self._links.discard(link)
            link = self._register(SharedLink(link, self.pool, shared))
        await self._serve(link, on_link)
        return Status.dont_reply

    async def _serve(self, link: AnyLink, on_link: OnLink) -> None:
        """Pass a link to the listener, and wait until it closes."""
        try:
            await on_link(link)
            await link.closed.wait()
        except LinkClosedError:
            logger.debug("the link from %s is closed", link.peer)
        except RemoteProtocolError as error:
            logger.warning("the link from %s was closed: %s", link.peer, error)
        except Exception:
            logger.exception("the listener for the link from %s failed", link.peer)
        finally:
            link.close()

    async def _handshake(self, comm: Any, choice: str, hello: Mapping[str, Any]) -> Agreed:
        """Send the opening message and read the answer."""
        comm.allow_offload = False
        request = "stream" if choice != "comm" and has_stream(comm) else "comm"
        offer, obstacle = None, "there is no byte stream below its comm"
        if choice in ("auto", "shm") and request == "stream":
            offer, obstacle = self._own_offer()
        await comm.write(
            {
                "op": HANDLER,
                "hello": json.dumps(dict(hello)),
                "transport": request,
                "protocol": VERSION,
                "shared": offer,
            }
        )
        kind, theirs, refusal = _read_answer(comm, await comm.read())
        if choice in ("stream", "shm") and kind != "stream":
            raise ConfigError(
                f"transport {choice!r} needs a byte stream and {comm.peer_address} has none; "
                "use transport: auto"
            )
        if offer is not None and theirs is not None:
            obstacle = _sharing_obstacle(theirs)
        is_shared = theirs is not None and not obstacle
        if not is_shared and choice in ("auto", "shm"):
            self._explain_unshared(comm.peer_address, choice, refusal or obstacle)
        return Agreed(kind, theirs if is_shared else None)

    def _own_offer(self) -> tuple[dict[str, Any] | None, str]:
        """Return the offer of this process's memory, or None and the reason."""
        try:
            return self.pool.offer(), ""
        except NoSharedMemoryError as fault:
            return None, str(fault)

    def _answer_offer(self, peer: str, theirs: object) -> dict[str, Any] | None:
        """Answer an offer with our own, or with None; the reason is logged and not sent."""
        obstacle, offer = _sharing_obstacle(theirs), None
        if not obstacle:
            offer, obstacle = self._own_offer()
        if offer is None:
            self._log_unshared(peer, obstacle)
        return offer

    def _explain_unshared(self, peer: str, choice: str, reason: str) -> None:
        """Log, once per reason, why a link shares no memory; raise if "shm" was requested."""
        if choice == "shm":
            raise ConfigError(
                f"transport 'shm' needs memory that this process and {peer} share: {reason}; "
                "use transport: auto"
            )
        self._log_unshared(peer, reason)

    def _log_unshared(self, peer: str, reason: str) -> None:
        kind = re.sub(r"\d+", "N", reason)
        if kind not in self._logged_reasons and len(self._logged_reasons) < REASONS_MAX:
            self._logged_reasons.add(kind)
            logger.info("no shared memory with %s, vectors go over the stream: %s", peer, reason)

    def _register(self, link: AnyLink) -> AnyLink:
        """Register a link, so that closing the transport closes it."""
        if len(self._links) >= self._links_max:
            # Rarely: thousands of members may come at the same time.
            self._links = {other for other in self._links if not other.closed.is_set()}
            self._links_max = max(LINKS_MIN, 2 * len(self._links))
        self._links.add(link)
        return link


def transport_of(server: Server) -> DaskTransport:
    """Return the transport of a Dask server; the first call creates it."""
    transport = server.extensions.get(EXTENSION)
    if not isinstance(transport, DaskTransport) or transport.is_closed:
        transport = DaskTransport(server)
        server.extensions[EXTENSION] = transport
        server.handlers[HANDLER] = transport.accept
    return transport


def has_stream(comm: Any) -> bool:
    """Whether a comm is based on a tornado stream; checked because Dask does not document it."""
    return isinstance(getattr(comm, "stream", None), IOStream)


def _sharing_obstacle(offer: object) -> str:
    """Return why the memory of the peer with this offer cannot be read here; empty if it can."""
    try:
        check_offer(offer)
    except NoSharedMemoryError as fault:
        return str(fault)
    return ""


def _link_over(comm: Any, kind: str, hello: Mapping[str, Any]) -> PlainLink:
    """Make the kind of link on which both sides have agreed."""
    pieces = PIECE_BYTES if _is_far(comm) else None
    if kind != "stream":
        return CommLink(comm, hello, MessageChannel(comm), pieces)
    if isinstance(comm.stream, SSLIOStream):
        link = CommLink(comm, hello, StreamChannel(comm.stream), pieces)
        # Replaces the comm's own callback; ``close`` aborts the comm in its place.
        comm.stream.set_close_callback(link.close)
        return link
    return SocketLink.of_comm(comm, hello, pieces)


def _is_far(comm: Any) -> bool:
    """Whether a comm connects to another host, judging by its addresses."""
    try:
        here, there = (get_address_host(a) for a in (comm.local_address, comm.peer_address))
    except (NotImplementedError, ValueError):  # no host addresses: the same process
        return False
    return bool(here != there)


def read_greeting(hello: object) -> dict[str, Any]:
    """Return the greeting of a link's opener.

    Raises
    ------
    RemoteProtocolError
        When it is not a JSON object of at most ``GREETING_BYTES_MAX`` characters, or has a list
        or an object in it.
    """
    if not isinstance(hello, str) or len(hello) > GREETING_BYTES_MAX:
        raise RemoteProtocolError(f"its greeting is not a text of at most {GREETING_BYTES_MAX}")
    with reading_prefix("the greeting of a link"):
        greeting = json.loads(hello)
        if any(isinstance(value, list | dict) for value in greeting.values()):
            raise ValueError("a value is neither text nor a number")
    return dict(greeting)


async def _first_frame(link: AnyLink) -> Mapping[str, Any] | None:
    """Return the first frame's prefix; close the link and return None if none comes in time."""
    try:
        async with asyncio.timeout(FIRST_FRAME_S_MAX):
            return (await link.receive(_no_payload)).prefix
    except TimeoutError:
        logger.warning("the link from %s sent no frame in %g s", link.peer, FIRST_FRAME_S_MAX)
    except (LinkClosedError, RemoteProtocolError) as error:
        logger.debug("the link from %s ended before its first frame: %s", link.peer, error)
    link.close()
    return None


def _host_of(comm: Any) -> str:
    """Return the host of a comm's other end; comms within a process have none."""
    try:
        return str(get_address_host(comm.peer_address))
    except (NotImplementedError, ValueError):
        return ""


def _no_payload(header: Header, prefix: Mapping[str, Any]) -> memoryview:
    raise RemoteProtocolError(
        f"the first frame of a link has {header.payload_bytes} bytes of payload, wanted none"
    )


def _read_answer(comm: Any, answer: Any) -> tuple[str, Mapping[str, Any] | None, str]:
    """Return the kind of link, the peer's offer of memory, and the reason if it makes none."""
    match answer:
        case {"transport": str() as kind, "shared": shared, "apart": str() as apart}:
            return kind, shared, apart
        case {"refused": str() as reason}:
            raise RemoteProtocolError(
                f"{comm.peer_address} refused a link: {reason}; install the same elasticml there"
            )
        case {"deaf": str() as reason}:
            raise LinkClosedError(reason)
        case _:
            # The server does not know the operation (it answers None), or the operation failed.
            raise LinkClosedError(f"{comm.peer_address} runs no elasticml: it answered {answer!r}")


def _abort(comm: Any) -> None:
    if comm is not None:
        comm.abort()
