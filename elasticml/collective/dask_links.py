"""Links between Dask servers: a Dask comm opens them, with its port and its TLS.

Both sides then leave the comm aside and use the bytes below it: the socket of ``tcp://``
(``SocketLink``), the stream of ``tls://`` (``StreamLink``). Where there is neither (``inproc://``,
``ws://``, ``ucx``), or ``hello["transport"]`` is ``"comm"``, Dask's messages do (``CommLink``).
Where each side can open the other's memory, vectors stay there (``SharedLink``), under TLS too:
both are processes of the same user on the same host, as each finds out about the other.

Two things of Dask's that are no contract are relied on, and tested: that the comms of ``tcp://``
and ``tls://`` have their tornado stream at ``stream``, and that a handler whose first parameter is
called ``comm`` owns the comm.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from distributed.comm import connect, get_address_host
from distributed.core import Status
from numpy.typing import NDArray
from tornado.iostream import IOStream, SSLIOStream

from elasticml.collective.comm_link import CommLink
from elasticml.collective.frames import VERSION, Frame, Header, Kind
from elasticml.collective.pieces import PIECE_BYTES
from elasticml.collective.shared_link import SharedLink
from elasticml.collective.shared_slots import SlotPool
from elasticml.collective.slot_descriptors import NoSharedMemoryError, check_offer
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.stream_link import StreamLink
from elasticml.collective.transport import Link, LinkClosedError, OnLink
from elasticml.errors import ConfigError, RemoteProtocolError

logger = logging.getLogger(__name__)

#: Name of our operation among the handlers of a Dask server, and of our entry in its extensions.
HANDLER: Final = "em_link"
EXTENSION: Final = "elasticml-links"
#: What ``hello["transport"]`` may be.
CHOICES: Final = ("auto", "stream", "comm", "shm")
#: Seconds until a peer that does not answer is given up.
CONNECT_S_MAX: Final = 5.0


PlainLink = SocketLink | StreamLink | CommLink
AnyLink = PlainLink | SharedLink


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both ends of a new link know."""

    kind: str
    #: What the peer said of its memory; None where vectors travel through the link.
    offer: Mapping[str, Any] | None


class Server(Protocol):
    """What a transport needs of a ``distributed.Scheduler`` or ``Worker``."""

    address: str
    handlers: dict[str, Any]
    extensions: dict[str, Any]
    connection_args: dict[str, Any]


class DaskTransport:
    """The links of one Dask server, for all jobs on it; see ``transport.Transport``.

    Made by ``transport_of``. One listener serves all jobs and tells them apart by ``link.hello``.
    """

    def __init__(self, server: Server) -> None:
        self.is_closed = False
        self._server = server
        self._on_link: OnLink | None = None
        self._links: set[AnyLink] = set()
        self._pool = SlotPool()
        #: Reasons told why links are plain ones; each is told once.
        self._told: set[str] = set()

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._server.address

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link to the server at ``address``.

        Parameters
        ----------
        address : str
            As Dask writes it, such as ``tls://10.0.0.7:40001``.
        hello : mapping
            What the other side is told, in JSON's types. ``hello["transport"]`` may be ``"auto"``
            (the default: shared memory on one host, else a stream where there is one), ``"shm"``,
            ``"stream"`` or ``"comm"``.

        Raises
        ------
        LinkClosedError
            When nobody answers within ``CONNECT_S_MAX``, or nobody listens there.
        RemoteProtocolError
            When the peer runs another version of elasticml.
        ConfigError
            When ``"stream"`` or ``"shm"`` is demanded where there is none; an unknown choice.
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
                agreed = await self._ask(comm, choice, hello)
        except OSError as fault:
            _abort(comm)
            raise LinkClosedError(f"no link to {address}: {fault or 'no answer'}") from fault
        except BaseException:
            _abort(comm)
            raise
        link, is_shared = _link_over(comm, agreed.kind, hello), agreed.offer is not None
        kept = self._keep(SharedLink(link, self._pool, agreed.offer) if is_shared else link)
        # The accepter is silent until it has this, so that nothing is lost between the comm's
        # last message and the link's first frame.
        try:
            await link.send(Frame(kind=Kind.CONTROL, prefix={"shared": is_shared}))
        except BaseException:
            kept.close()
            raise
        return kept

    def listen(self, on_link: OnLink) -> None:
        """Hand every link that is opened to us from now on to ``on_link``, instead of before."""
        self._on_link = on_link

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return an array in shared memory, where any peer can read it; see ``Transport``."""
        return self._pool.take(nbytes)

    def close(self) -> None:
        """Stop listening and close all links; a closing Worker calls this too."""
        self.is_closed = True
        self._on_link = None
        for link in list(self._links):
            link.close()
        self._links.clear()
        self._pool.close()

    def teardown(self) -> None:
        """Do as ``close``; a closing Scheduler calls this."""
        self.close()

    async def accept(
        self, comm: Any, hello: str, transport: str, protocol: int, shared: Any = None
    ) -> Any:
        """Take over a comm that a peer opened: the handler of the operation ``em_link``.

        Its first parameter must be called ``comm``; only then does the server leave the comm to
        us, until this returns.
        """
        if protocol != VERSION:
            return {"refused": f"the peer speaks version {VERSION} of the protocol, not {protocol}"}
        on_link = self._on_link
        if on_link is None:
            return {"deaf": f"nobody listens at {self.address}"}
        comm.allow_offload = False
        comm.deserialize = False
        kind = "stream" if transport == "stream" and has_stream(comm) else "comm"
        greeting: dict[str, Any] = json.loads(hello)
        offer, apart = self._share_with(shared) if shared is not None else (None, "")
        await comm.write({"transport": kind, "shared": offer, "apart": apart})
        # No await between the last message and the link: nobody else reads the stream meanwhile.
        link: AnyLink = self._keep(_link_over(comm, kind, greeting))
        try:
            if (await link.receive(_no_payload)).prefix.get("shared"):
                self._links.discard(link)
                link = self._keep(SharedLink(link, self._pool, shared))
            await on_link(link)
            await link.closed.wait()
        except LinkClosedError:
            logger.debug("the link from %s is closed", link.peer)
        except Exception:
            logger.exception("the listener for the link from %s failed", link.peer)
        finally:
            link.close()
        return Status.dont_reply

    async def _ask(self, comm: Any, choice: str, hello: Mapping[str, Any]) -> Agreed:
        """Send the opening message and read the answer; returns what is agreed on."""
        comm.allow_offload = False
        wanted = "stream" if choice != "comm" and has_stream(comm) else "comm"
        offer, apart = None, "there is no byte stream below its comm"
        if choice in ("auto", "shm") and wanted == "stream":
            offer, apart = self._own_offer()
        await comm.write(
            {
                "op": HANDLER,
                "hello": json.dumps(dict(hello)),
                "transport": wanted,
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
            apart = _apart(theirs)
        is_shared = theirs is not None and not apart
        if not is_shared and choice in ("auto", "shm"):
            self._stay_apart(comm.peer_address, choice, refusal or apart)
        return Agreed(kind, theirs if is_shared else None)

    def _own_offer(self) -> tuple[dict[str, Any] | None, str]:
        """Offer this process's memory; or say why there is none."""
        try:
            return self._pool.offer(), ""
        except NoSharedMemoryError as fault:
            return None, str(fault)

    def _share_with(self, theirs: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """Answer an offer with one of our own; or say why not."""
        apart = _apart(theirs)
        return (None, apart) if apart else self._own_offer()

    def _stay_apart(self, peer: str, choice: str, reason: str) -> None:
        """Say once for each reason why a link is plain; an error where that was not wanted."""
        if choice == "shm":
            raise ConfigError(
                f"transport 'shm' needs memory that this process and {peer} share: {reason}; "
                "use transport: auto"
            )
        kind = re.sub(r"\d+", "N", reason)
        if kind not in self._told:
            self._told.add(kind)
            logger.info("no shared memory with %s, vectors go over the stream: %s", peer, reason)

    def _keep(self, link: AnyLink) -> AnyLink:
        """Remember a link, so that closing the transport closes it."""
        self._links = {known for known in self._links if not known.closed.is_set()}
        self._links.add(link)
        return link


def transport_of(server: Server) -> DaskTransport:
    """Give out the one transport of a Dask server; made at the first call."""
    transport = server.extensions.get(EXTENSION)
    if not isinstance(transport, DaskTransport) or transport.is_closed:
        transport = DaskTransport(server)
        server.extensions[EXTENSION] = transport
        server.handlers[HANDLER] = transport.accept
    return transport


def has_stream(comm: Any) -> bool:
    """Whether a comm lies on a tornado stream; no contract of Dask's, therefore asked."""
    return isinstance(getattr(comm, "stream", None), IOStream)


def _apart(offer: Mapping[str, Any]) -> str:
    """Say why the memory of the peer that made an offer cannot be read here; empty where it can."""
    try:
        check_offer(offer)
    except NoSharedMemoryError as fault:
        return str(fault)
    return ""


def _link_over(comm: Any, kind: str, hello: Mapping[str, Any]) -> PlainLink:
    """Make the link on which both sides have agreed."""
    pieces = PIECE_BYTES if _is_far(comm) else None
    if kind != "stream":
        return CommLink(comm, hello, pieces)
    if isinstance(comm.stream, SSLIOStream) or sys.platform == "win32":
        return StreamLink(comm, hello, pieces)
    return SocketLink(comm, hello, pieces)


def _is_far(comm: Any) -> bool:
    """Whether a comm leads to another host, as its addresses tell."""
    try:
        here, there = (get_address_host(a) for a in (comm.local_address, comm.peer_address))
    except (NotImplementedError, ValueError):  # no addresses of hosts: one process
        return False
    return bool(here != there)


def _no_payload(header: Header, prefix: Mapping[str, Any]) -> memoryview:
    raise RemoteProtocolError(
        f"a link began with {header.payload_bytes} bytes of payload, wanted an empty frame"
    )


def _read_answer(comm: Any, answer: Any) -> tuple[str, Mapping[str, Any] | None, str]:
    """Return the kind of link, the peer's offer of memory, and why it makes none."""
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
            # The server knows no such operation (it answers None), or it failed in it.
            raise LinkClosedError(f"{comm.peer_address} runs no elasticml: it answered {answer!r}")


def _abort(comm: Any) -> None:
    if comm is not None:
        comm.abort()
