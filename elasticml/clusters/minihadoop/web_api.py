"""Requests to the web services of YARN and HDFS on this machine."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

#: Seconds for a response from this machine.
ANSWER_S_MAX = 5.0

#: Ignores proxies that the environment names: they do not lead to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, method: str = "GET") -> dict[str, Any] | None:
    """Return a web service's JSON response; None if it does not respond yet."""
    request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
    try:
        with _OPENER.open(request, timeout=ANSWER_S_MAX) as response:
            content: dict[str, Any] = json.loads(response.read() or b"{}")
            return content
    except (OSError, http.client.HTTPException, urllib.error.URLError, ValueError):
        return None


def node_states(rm_url: str) -> dict[str, str]:
    """Return the state of each node that the ResourceManager knows, by node id."""
    content = ask(f"{rm_url}/ws/v1/cluster/nodes") or {}
    nodes = (content.get("nodes") or {}).get("node") or []
    return {node["id"]: node["state"] for node in nodes}


def live_data_nodes(name_url: str) -> int:
    """Return the number of live DataNodes; 0 if the NameNode does not respond."""
    content = ask(f"{name_url}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState") or {}
    beans = content.get("beans") or [{}]
    return int(beans[0].get("NumLiveDataNodes", 0))


def make_directory(name_url: str, path: str, user: str, permission: str) -> bool:
    """Make a directory on HDFS; return whether it exists."""
    query = f"op=MKDIRS&permission={permission}&user.name={user}"
    content = ask(f"{name_url}/webhdfs/v1{path}?{query}", "PUT") or {}
    return bool(content.get("boolean"))
