"""HDFS: Hadoop's configuration and tokens, which name node a URL means, and its errors over HTTP.

Its normal answers are tested in tests/yarn.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from elasticml.data.readers.files import absolute
from elasticml.data.storage import hadoop_http, webhdfs
from elasticml.data.storage.filesystem import exists, names, read_bytes, write_whole
from elasticml.data.storage.hadoop_sites import HadoopConf, hadoop_conf, read_folders
from elasticml.data.storage.hdfs import (
    absolute_hdfs,
    hdfs_system,
    hdfs_token,
    read_tokens,
    web_addresses,
)
from elasticml.data.storage.webhdfs import WebHdfs
from elasticml.errors import ConfigError
from tests.http_server import closed_url, serving

# --- the configuration ----------------------------------------------------------------------------


def write(folder: Path, name: str, *properties: tuple[str, ...], more: str = "") -> None:
    """Write a file of properties: (name, value) or (name, value, final)."""
    folder.mkdir(exist_ok=True)
    items = "".join(
        f"<property><name>{p[0]}</name><value>{p[1]}</value>"
        f"{'<final>true</final>' if p[2:] else ''}</property>"
        for p in properties
    )
    (folder / name).write_text(f"<?xml version='1.0'?><configuration>{items}{more}</configuration>")


def test_files_are_read_as_hadoop_reads_them(tmp_path) -> None:
    first, second = tmp_path / "yarn", tmp_path / "hadoop"
    include = '<include xmlns="http://www.w3.org/2001/XInclude" href="{}"/>'
    # Of two files with one name the first folder's counts. Included files are read in place; one
    # that includes itself ends. Later files win, except over final properties.
    more = include.format("core-site.xml") + include.format("more.xml")
    write(second, "core-site.xml", ("a", "core"), ("b", "core", "final"), ("c", "1"), more=more)
    write(second, "more.xml", ("c", "2"), ("d", "2"))
    write(second, "yarn-site.xml", ("e", "of another"))
    write(first, "yarn-site.xml", ("a", "yarn"), ("b", "yarn"))
    wanted = {"a": "yarn", "b": "core", "c": "2", "d": "2"}
    assert read_folders([first, second]).values == wanted
    named = {"YARN_CONF_DIR": str(first), "HADOOP_CONF_DIR": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"none, which is not a folder; name the one with"):
        hadoop_conf(named)
    assert hadoop_conf({**named, "HADOOP_CONF_DIR": str(second)}).values == wanted
    assert hadoop_conf({}) == HadoopConf()
    for text in ("<configuration>", "<project/>"):
        (second / "core-site.xml").write_text(text)
        with pytest.raises(ConfigError, match=r"core-site.xml .*; copy it from the cluster again"):
            read_folders([second])


def test_values_have_references_units_and_defaults_and_wrong_ones_are_named(tmp_path) -> None:
    times = {"250": 0.25, "5s": 5, "2 m": 120, "1h": 3600, "-1": -0.001}
    write(
        *(tmp_path / "c", "yarn-site.xml", ("n", "many"), ("t", "soon"), ("empty", " ")),
        *(("host", "h"), ("at", "${host}:${port}"), ("deep", "x${at}"), ("loop", "${loop}")),
        *((f"time{k}", text) for k, text in enumerate(times)),
    )
    conf = read_folders([tmp_path / "c"])
    assert [conf.seconds(f"time{k}", 9.0) for k in range(len(times))] == [*times.values()]
    assert (conf.text("deep"), conf.text("loop")) == ("xh:${port}", "${loop}")
    assert (conf.text("empty", "x"), conf.number("m", 2), conf.flag("f", True)) == ("x", 2, True)
    assert (conf.seconds("none", 9.0), conf.words("w")) == (9.0, ())
    with pytest.raises(ConfigError, match=f"n is 'many', wanted a number; .* {tmp_path}/c"):
        conf.number("n", 1)
    with pytest.raises(ConfigError, match="t is 'soon', wanted a time such as 5000 or 5s"):
        conf.seconds("t", 1)


# --- tokens ---------------------------------------------------------------------------------------

#: Written by Hadoop's own Credentials class (3.4.2). Three tokens and a secret: of an HDFS, of the
#: timeline service, and of a name service, the last with an identifier of 200 zero bytes, so that
#: its length takes two bytes.
FILE = base64.b64decode(
    "SERUUwADBW90aGVyAmlkAnB3FUhERlNfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMjo4MDIwCHRpbWVsaW5lAgECAQMZ"
    "VElNRUxJTkVfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMTo4MTg4CmhhLWhkZnM6bnOPyA"
    + "A" * 263
    + "AAABnNlY3JldBVIREZTX0RFTEVHQVRJT05fVE9LRU4KaGEtaGRmczpucwEBawEJ"
)
OF_HDFS = "AmlkAnB3FUhERlNfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMjo4MDIw"


def test_tokens_are_read_as_hadoop_writes_them_and_chosen_by_their_service() -> None:
    tokens = read_tokens(FILE, "container_tokens")
    assert [(token.kind, token.service) for token in tokens] == [
        ("HDFS_DELEGATION_TOKEN", "10.0.0.2:8020"),
        ("TIMELINE_DELEGATION_TOKEN", "10.0.0.1:8188"),
        ("HDFS_DELEGATION_TOKEN", "ha-hdfs:ns"),
    ]
    assert tokens[2].text.startswith("j8gAAAA")
    assert tokens[2].text.endswith("AAZzZWNyZXQVSERGU19ERUxFR0FUSU9OX1RPS0VOCmhhLWhkZnM6bnM")
    for some, services, wanted in (
        (tokens, ["10.0.0.2:8020"], OF_HDFS),
        (tokens, ["ha-hdfs:ns"], tokens[2].text),
        (tokens, ["elsewhere:8020"], None),
        (tokens[:2], ["namenode.example:8020"], OF_HDFS),
        (tokens[1:2], ["10.0.0.1:8188"], None),
    ):
        assert hdfs_token(some, services) == wanted
    for length in (5, 6, 20, 120, 200):
        with pytest.raises(ConfigError, match="container_tokens is cut short; write it again"):
            read_tokens(FILE[:length], "container_tokens")
    with pytest.raises(ConfigError, match=r"is not a Hadoop token file .*; write it with hdfs fet"):
        read_tokens(b"HDTS\x01protobuf", "container_tokens")


# --- name nodes and users -------------------------------------------------------------------------


def test_a_url_without_a_host_means_the_default_file_system(tmp_path, monkeypatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "ELASTICML_WEBHDFS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"names no host, .*; export HADOOP_CONF_DIR="):
        absolute("hdfs:///a")
    with pytest.raises(ConfigError, match=r"no fs.defaultFS of HDFS"):
        absolute_hdfs("hdfs:///a", {})
    write(tmp_path, "core-site.xml", ("fs.defaultFS", "hdfs://nn:9000"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert absolute("hdfs:///a b/c?d#e") == "hdfs://nn:9000/a b/c?d#e"
    assert absolute("hdfs://other/a") == "hdfs://other/a"
    assert absolute("s3://bucket/a") == "s3://bucket/a"


HTTP, RPC = "dfs.namenode.http-address", "dfs.namenode.rpc-address"
OWN = {"fs.defaultFS": "hdfs://nn:8020"}
SERVICES = {
    **{"dfs.nameservices": "ns, other", "dfs.ha.namenodes.ns": "x,y"},
    **{f"{HTTP}.ns.x": "hx:1", f"{RPC}.ns.y": "hy:8020", f"{HTTP}.other": "ho:3"},
}


@pytest.mark.parametrize(
    ("values", "authority", "addresses"),
    [
        ({}, "nn:8020", ("http://nn:9870",)),
        ({"dfs.http.policy": "HTTPS_ONLY"}, "nn:8020", ("https://nn:9871",)),
        ({**OWN, HTTP: "0.0.0.0:50070"}, "nn:8020", ("http://nn:50070",)),
        ({RPC: "nn:1", HTTP: "web:2"}, "nn:1", ("http://web:2",)),
        # Another cluster than the configuration's own.
        ({**OWN, HTTP: "web:2"}, "far:8020", ("http://far:9870",)),
        (SERVICES, "ns", ("http://hx:1", "http://hy:9870")),
        ({"dfs.nameservices": "a", f"{HTTP}.a": "h:3"}, "a", ("http://h:3",)),
        ({f"{RPC}.ns.x": "nn:1", f"{HTTP}.ns.x": "w:5"}, "nn:1", ("http://w:5",)),
    ],
)
def test_the_web_address_comes_from_the_configuration(values, authority, addresses) -> None:
    assert web_addresses(HadoopConf(values=values), authority, {}) == addresses


def test_the_environment_and_the_url_name_addresses_and_the_user(tmp_path) -> None:
    addresses = ("http://a:1", "http://b:2")
    named = {"ELASTICML_WEBHDFS": ",".join(addresses)}
    assert web_addresses(HadoopConf(), "nn:9000", named) == addresses
    for scheme, http in (("webhdfs", "http"), ("swebhdfs", "https")):
        assert hdfs_system(f"{scheme}://h:50070/x", {})[0].addresses == (f"{http}://h:50070",)
    (tmp_path / "tokens").write_bytes(FILE)
    seen: list[Any] = []

    def answer(method: str, path: str, headers: Any, body: bytes) -> Any:
        query = parse_qs(urlsplit(path).query)
        seen.append(query.get("user.name") or query.get("delegation"))
        return 200, {}, STATUS

    with serving(answer) as url:
        for place, environment in (
            ("hdfs://ann@nn/x", {}),
            ("hdfs://nn/x", {"HADOOP_USER_NAME": "bob", "USER": "root"}),
            ("hdfs://nn/x", {"CONTAINER_ID": "container_1", "USER": "cid"}),
            (
                "hdfs://10.0.0.2:8020/x",
                {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens"), "USER": "me"},
            ),
        ):
            system, path = hdfs_system(place, {"ELASTICML_WEBHDFS": url, **environment})
            assert (path, system.info(path)["size"]) == ("/x", 7)
    assert seen == [["ann"], ["bob"], ["cid"], [OF_HDFS]]


# --- errors over HTTP -----------------------------------------------------------------------------

STATUS = b'{"FileStatus": {"length": 7, "type": "FILE", "modificationTime": 1}}'
#: The answer of a standby name node (Hadoop 3.4.2).
STANDBY = {
    "exception": "StandbyException",
    "javaClassName": "org.apache.hadoop.ipc.StandbyException",
    "message": "Operation category READ is not supported in state standby. Visit https://s",
}
SECURITY = "org.apache.hadoop.security.AccessControlException"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "PAUSES_S", (0.0, 0.0))


def failing(status: int, **exception: str) -> Any:
    return status, {}, json.dumps({"RemoteException": exception}).encode()


def place_of(url: str) -> str:
    return f"webhdfs://{urlsplit(url).netloc}/f"


def test_the_active_name_node_is_found_and_remembered() -> None:
    requests: list[str] = []

    def standby(*request: Any) -> Any:
        requests.append("standby")
        return failing(403, **STANDBY)

    def active(*request: Any) -> Any:
        requests.append("active")
        return 200, {}, STATUS

    with serving(standby) as first, serving(active) as second:
        system = WebHdfs((closed_url(), first, second), "me")
        assert [system.info("/f")["size"], system.info("/f")["size"]] == [7, 7]
    assert requests == ["standby", "active", "active"]


def test_a_dead_data_node_is_excluded_from_the_next_attempt_and_only_dead_ones_are_an_error() -> (
    None
):
    closed, requests, urls = closed_url(), [], []

    def answer(method: str, path: str, headers: Any, body: bytes) -> Any:
        url = urlsplit(path)
        if url.path == "/data":
            return 200, {}, b"content"
        requests.append(parse_qs(url.query).get("excludedatanodes"))
        where = f"{urls[0]}/data" if requests[-1] else f"{closed}/data"
        return 307, {"Location": where}, b""

    with serving(answer) as url:
        urls.append(url)
        assert WebHdfs((url,)).cat_file("/f", 0, 7) == b"content"
    assert requests == [None, [urlsplit(closed).netloc]]
    with (
        serving(lambda *request: (307, {"Location": f"{closed}/data"}, b"")) as url,
        pytest.raises(ConfigError, match=r"cannot be read: .* does not answer .*; start the"),
    ):
        read_bytes(place_of(url))


@pytest.mark.parametrize(
    ("call", "reply", "message"),
    [
        (
            lambda place: write_whole(place, b""),
            failing(403, exception="AccessControlException", message="Permission denied\n\tat x"),
            "Permission denied; name a place that this user may write to",
        ),
        (
            lambda place: write_whole(place, b""),
            failing(403, exception="DSQuotaExceededException", message="The DiskSpace quota of /q"),
            "The DiskSpace quota of /q; remove what is not needed, or ask for more room",
        ),
        (
            lambda place: write_whole(place, b""),
            failing(403, exception="RemoteException", message=f"{SECURITY}: no"),
            "no; name a place that this user may write to",
        ),
        (
            lambda place: write_whole(place, b""),
            failing(500, exception="IOException", message="odd"),
            "odd; check the host and the path",
        ),
        (exists, failing(403, **STANDBY), "the name node is on standby; start the server"),
        (names, (404, {}, b"<html>not here</html>"), "the server answers 404, wanted WebHDFS"),
        (
            exists,
            (401, {"WWW-Authenticate": "Negotiate"}, b""),
            "127.0.0.1 requires Kerberos; pip install gssapi",
        ),
    ],
)
def test_errors_of_servers_are_one_line_with_a_remedy(
    monkeypatch, call: Callable[[str], Any], reply: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with (
        serving(lambda *request: reply) as url,
        pytest.raises(ConfigError, match=re.escape(message)) as raised,
    ):
        call(place_of(url))
    assert "\n" not in raised.value.message


def test_an_authenticated_client_sends_the_cookie(monkeypatch) -> None:
    context = SimpleNamespace(step=lambda: b"ticket")
    gssapi = SimpleNamespace(
        Name=lambda *name: name,
        NameType=SimpleNamespace(hostbased_service="service"),
        SecurityContext=lambda **asked: context,
    )
    monkeypatch.setitem(sys.modules, "gssapi", gssapi)
    seen: list[Any] = []

    def answer(method: str, path: str, headers: Any, body: bytes) -> Any:
        seen.append((headers.get("Authorization"), headers.get("Cookie")))
        if headers.get("Authorization") or headers.get("Cookie") == "hadoop.auth=signed":
            return 200, {"Set-Cookie": "hadoop.auth=signed; Path=/"}, b""
        return 401, {"WWW-Authenticate": "Negotiate"}, b""

    with serving(answer) as url:
        assert [hadoop_http.ask("GET", url).status for _ in range(2)] == [200, 200]
    assert seen == [(None, None), ("Negotiate dGlja2V0", None), (None, "hadoop.auth=signed")]
