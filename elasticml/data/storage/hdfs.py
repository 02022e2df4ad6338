"""HDFS: find the name node, user and token of a URL, and access it by WebHDFS.

YARN puts delegation tokens into a container in Hadoop's token file.
"""

from __future__ import annotations

import base64
import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from elasticml.data.storage.hadoop_sites import VARIABLES, HadoopConf, hadoop_conf
from elasticml.errors import ConfigError

#: The environment variable in which YARN names a container's token file.
TOKEN_FILE: Final = "HADOOP_TOKEN_FILE_LOCATION"
_MAGIC: Final = b"HDTS\x00"
_HDFS_KINDS: Final = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One delegation token."""

    kind: str
    #: The service it is for: ``ip:port``, or ``ha-hdfs:name`` of a name service.
    service: str
    #: The token as web services accept it: URL-safe Base64.
    text: str


def read_tokens(content: bytes, name: str) -> list[Token]:
    """Parse the content of a Hadoop token file.

    Raises
    ------
    ConfigError
        When it is not a token file, or is truncated.
    """
    if not content.startswith(_MAGIC):
        raise ConfigError(
            f"{name} is not a Hadoop token file in binary form; write it with hdfs fetchdt"
        )
    reader = _Reader(content, len(_MAGIC))
    try:
        return [_read_token(reader) for _ in range(reader.count())]
    except (IndexError, UnicodeDecodeError):
        raise ConfigError(f"{name} is cut short; write it again") from None


def hdfs_token(tokens: Sequence[Token], services: Sequence[str]) -> str | None:
    """Choose the token for a file system: by its service, else the only HDFS token."""
    fitting = [token for token in tokens if token.kind in _HDFS_KINDS]
    named = [token for token in fitting if token.service in services]
    if not named and len(fitting) > 1:
        return None
    return next((token.text for token in named or fitting), None)


def _read_token(reader: _Reader) -> Token:
    reader.block()  # the alias
    start = reader.position
    reader.block()
    reader.block()
    kind, service = reader.block().decode(), reader.block().decode()
    content = reader.content[start : reader.position]
    text = base64.urlsafe_b64encode(content).rstrip(b"=").decode()
    return Token(kind=kind, service=service, text=text)


class _Reader:
    """Reads counts and byte strings in the encoding of Hadoop's ``WritableUtils``."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content = content
        self.position = position

    def count(self) -> int:
        first = self.content[self.position]
        self.position += 1
        if first < 0x80:
            return first
        # Counts of tokens and bytes are positive: 0x8f means that one byte follows, 0x8e two, ...
        width = 0x90 - first
        if not 1 <= width <= 4:
            raise IndexError
        return int.from_bytes(self._take(width), "big")

    def block(self) -> bytes:
        return self._take(self.count())

    def _take(self, n: int) -> bytes:
        block = self.content[self.position : self.position + n]
        if len(block) < n:
            raise IndexError
        self.position += n
        return block


#: Address of the name node's web service, for processes without a Hadoop configuration.
WEBHDFS_VARIABLE: Final = "ELASTICML_WEBHDFS"

SCHEMES: Final = ("hdfs://", "webhdfs://", "swebhdfs://")
_PORTS: Final = {"http": 9870, "https": 9871}
_RPC_PORT: Final = 8020


def is_hdfs(place: str) -> bool:
    """Whether a place is an HDFS URL."""
    return place.startswith(SCHEMES)


def absolute_hdfs(place: str, environment: Mapping[str, str] | None = None) -> str:
    """Add the default file system's authority to ``hdfs:///path``.

    A member of the cluster may have another configuration, or none.

    Raises
    ------
    ConfigError
        When the configuration cannot be read, or its default file system is not HDFS.
    """
    url = _split(place)
    if url.scheme != "hdfs" or url.authority:
        return place
    return f"hdfs://{_default_authority(hadoop_conf(environment), place)}{url.path}"


def _default_authority(conf: HadoopConf, place: str) -> str:
    default = urlsplit(conf.text("fs.defaultFS", conf.text("fs.default.name")))
    if default.scheme != "hdfs" or not default.netloc:
        raise ConfigError(
            f"{place} names no host, and {conf.where()} no fs.defaultFS of HDFS; export "
            f"{VARIABLES[-1]}=/folder/with/core-site.xml, or write hdfs://host:{_RPC_PORT}/..."
        )
    return default.netloc


def hdfs_system(place: str, environment: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Return an fsspec file system for an HDFS URL, and the path in it.

    Raises
    ------
    ConfigError
        When the configuration cannot be read, or there is no name node.
    """
    from elasticml.data.storage.webhdfs import WebHdfs  # with fsspec and urllib3

    environment = os.environ if environment is None else environment
    url = _split(absolute_hdfs(place, environment))
    conf = hadoop_conf(environment)
    token = _token(conf, url.authority, environment)
    user = "" if token else (url.user or _user(environment))
    if url.scheme != "hdfs":
        scheme = "https" if url.scheme == "swebhdfs" else "http"
        return WebHdfs((f"{scheme}://{url.authority}",), user, token), url.path
    addresses = web_addresses(conf, url.authority, environment)
    return WebHdfs(addresses, user, token), url.path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Url:
    scheme: str
    user: str
    authority: str
    path: str


def _split(place: str) -> _Url:
    """Split a URL; an HDFS path has no query and no fragment."""
    scheme, _, rest = place.partition("://")
    netloc, slash, path = rest.partition("/")
    user, _, authority = netloc.rpartition("@")
    return _Url(scheme=scheme, user=user, authority=authority, path=f"/{path if slash else ''}")


def _user(environment: Mapping[str, str]) -> str:
    # In a container the process may run as another user than the application's.
    in_container = environment.get("USER") if environment.get("CONTAINER_ID") else None
    return environment.get("HADOOP_USER_NAME") or in_container or getpass.getuser()


def _token(conf: HadoopConf, authority: str, environment: Mapping[str, str]) -> str | None:
    path = Path(environment.get(TOKEN_FILE, ""))
    if not environment.get(TOKEN_FILE) or not path.is_file():
        return None
    services = [f"ha-hdfs:{authority}", authority]
    return hdfs_token(read_tokens(path.read_bytes(), str(path)), services)


def web_addresses(
    conf: HadoopConf, authority: str, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the web addresses of a name node, or of all name nodes of a name service.

    Parameters
    ----------
    authority : str
        As in a URL: ``host:port``, or the name of a name service.
    """
    scheme = "https" if conf.text("dfs.http.policy").upper() == "HTTPS_ONLY" else "http"
    key = f"dfs.namenode.{scheme}-address"
    if authority in conf.words("dfs.nameservices"):
        nodes = conf.words(f"dfs.ha.namenodes.{authority}")
        suffixes = [f".{authority}.{node}" for node in nodes] or [f".{authority}"]
        return tuple(_web_address(conf, key, scheme, suffix, "") for suffix in suffixes)
    host = authority.partition(":")[0]
    for suffix in ("", *_suffixes(conf, "dfs.namenode.rpc-address")):
        rpc = conf.text(f"dfs.namenode.rpc-address{suffix}")
        default = urlsplit(conf.text("fs.defaultFS")).netloc if not suffix else ""
        if authority in (rpc, default):
            return (_web_address(conf, key, scheme, suffix, host),)
    addresses = environment.get(WEBHDFS_VARIABLE, "")
    if addresses:
        return tuple(address.strip().rstrip("/") for address in addresses.split(","))
    return (f"{scheme}://{host}:{_PORTS[scheme]}",)


def _suffixes(conf: HadoopConf, key: str) -> list[str]:
    suffixes = (
        name.removeprefix(key) for name in sorted(conf.values) if name.startswith(f"{key}.")
    )
    return [suffix for suffix in suffixes if suffix]


def _web_address(conf: HadoopConf, key: str, scheme: str, suffix: str, host: str) -> str:
    rpc = conf.text(f"dfs.namenode.rpc-address{suffix}")
    address = conf.text(f"{key}{suffix}", f"0.0.0.0:{_PORTS[scheme]}")
    named, _, port = address.rpartition(":")
    if named in ("", "0.0.0.0"):  # the server listens on every interface
        named = host or rpc.rpartition(":")[0] or "127.0.0.1"
    return f"{scheme}://{named}:{port}"
