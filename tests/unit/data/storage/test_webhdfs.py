"""Errors of HDFS over HTTP; its normal answers are tested in tests/yarn."""

import json
import re
import sys
from urllib.parse import parse_qs, urlsplit

import pytest

from elasticml.data.storage import hadoop_http, webhdfs
from elasticml.data.storage.filesystem import exists, names, read_bytes, write_whole
from elasticml.data.storage.webhdfs import WebHdfs
from elasticml.errors import ConfigError
from tests.http_server import closed_url, serving

#: The answer of a standby name node (Hadoop 3.4.2).
STANDBY = {
    "exception": "StandbyException",
    "javaClassName": "org.apache.hadoop.ipc.StandbyException",
    "message": "Operation category READ is not supported in state standby. Visit https://s",
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(webhdfs, "_PAUSES_S", (0.0, 0.0))


def failing(status, exception):
    return status, {}, json.dumps({"RemoteException": exception}).encode()


def place_of(url, path="/f"):
    return f"webhdfs://{urlsplit(url).netloc}{path}"


def test_the_active_name_node_is_found_and_remembered():
    requests = []

    def standby(method, path, headers, body):
        requests.append("standby")
        return failing(403, STANDBY)

    def active(method, path, headers, body):
        requests.append("active")
        return 200, {}, b'{"FileStatus": {"length": 7, "type": "FILE", "modificationTime": 1}}'

    with serving(standby) as first, serving(active) as second:
        system = WebHdfs((closed_url(), first, second), "me")
        assert [system.info("/f")["size"], system.info("/f")["size"]] == [7, 7]
    assert requests == ["standby", "active", "active"]


def test_only_standby_name_nodes_is_a_distinct_error():
    with (
        serving(lambda *request: failing(403, STANDBY)) as url,
        pytest.raises(ConfigError, match="the name node is on standby; start the server"),
    ):
        exists(place_of(url))


def test_a_dead_data_node_is_excluded_from_the_next_attempt():
    closed = closed_url()
    requests = []

    def answer(method, path, headers, body):
        url = urlsplit(path)
        query = parse_qs(url.query)
        if url.path == "/data":
            return 200, {}, b"content"
        requests.append(query.get("excludedatanodes"))
        where = f"{urls[0]}/data" if requests[-1] else f"{closed}/data"
        return 307, {"Location": where}, b""

    urls = []
    with serving(answer) as url:
        urls.append(url)
        assert WebHdfs((url,)).cat_file("/f", 0, 7) == b"content"
    assert requests == [None, [urlsplit(closed).netloc]]


def test_only_dead_data_nodes_is_an_error():
    closed = closed_url()
    with (
        serving(lambda *request: (307, {"Location": f"{closed}/data"}, b"")) as url,
        pytest.raises(ConfigError, match=r"cannot be read: .* does not answer .*; start the"),
    ):
        read_bytes(place_of(url))


@pytest.mark.parametrize(
    ("status", "exception", "message"),
    [
        (
            403,
            {"exception": "AccessControlException", "message": "Permission denied: user=u\n\tat x"},
            "Permission denied: user=u; name a place that this user may write to",
        ),
        (
            403,
            {"exception": "DSQuotaExceededException", "message": "The DiskSpace quota of /q is"},
            "The DiskSpace quota of /q is; remove what is not needed, or ask for more room",
        ),
        (
            403,
            {
                "exception": "RemoteException",
                "message": "org.apache.hadoop.security.AccessControlException: no",
            },
            "no; name a place that this user may write to",
        ),
        (500, {"exception": "IOException", "message": "odd"}, "odd; check the host and the path"),
    ],
)
def test_server_errors_are_one_line_with_a_remedy(status, exception, message):
    with (
        serving(lambda *request: failing(status, exception)) as url,
        pytest.raises(ConfigError, match=re.escape(message)) as raised,
    ):
        write_whole(place_of(url), b"")
    assert "\n" not in raised.value.message


def test_another_server_is_not_mistaken_for_hdfs():
    with (
        serving(lambda *request: (404, {}, b"<html>not here</html>")) as url,
        pytest.raises(ConfigError, match="the server answers 404, wanted WebHDFS"),
    ):
        names(place_of(url))


def test_kerberos_without_its_library_has_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    wants = {"WWW-Authenticate": "Negotiate"}
    with (
        serving(lambda *request: (401, wants, b"")) as url,
        pytest.raises(ConfigError, match=r"127.0.0.1 requires Kerberos; pip install gssapi"),
    ):
        exists(place_of(url))


def test_an_authenticated_client_sends_the_cookie(monkeypatch):
    monkeypatch.setattr(hadoop_http, "_ticket", lambda host: "ticket")
    seen = []

    def answer(method, path, headers, body):
        seen.append((headers.get("Authorization"), headers.get("Cookie")))
        if headers.get("Authorization") or headers.get("Cookie") == "hadoop.auth=signed":
            return 200, {"Set-Cookie": "hadoop.auth=signed; Path=/"}, b""
        return 401, {"WWW-Authenticate": "Negotiate"}, b""

    with serving(answer) as url:
        assert [hadoop_http.ask("GET", url).status for _ in range(2)] == [200, 200]
    assert seen == [(None, None), ("Negotiate ticket", None), (None, "hadoop.auth=signed")]
