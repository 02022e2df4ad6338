"""Scale a cluster object of the client by the demand of the jobs that run on it.

A scheduler cannot start workers; the cluster object in the client's process can. A thread asks the
scheduler every second how many workers the jobs require, and calls ``cluster.scale``. An adaptive
cluster asks by itself, so the thread leaves it alone.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

#: Seconds between two questions to the scheduler, as ``Adaptive`` has them.
INTERVAL_S = 1.0

_lock = threading.Lock()
#: The followers that run, by client.
_followers: weakref.WeakKeyDictionary[Client, ClusterFollower] = weakref.WeakKeyDictionary()


def cluster_of(client: Client) -> Any | None:
    """Return the ``distributed.deploy.Cluster`` from which a client was made, else None."""
    from distributed.deploy import Cluster

    return client.cluster if isinstance(client.cluster, Cluster) else None


def follow_demand(client: Client) -> None:
    """Scale the client's cluster while jobs run on it; do nothing for a client without one.

    The cluster grows to what jobs require: ``members.start``, ``members.min`` and the requests of
    policies. Workers that it started for them are closed again when no job requires them; those
    that were there before stay.
    """
    cluster = cluster_of(client)
    if cluster is None:
        return
    with _lock:
        follower = _followers.get(client)
        if follower is not None:
            follower.restarts = True
            return
        follower = _followers[client] = ClusterFollower(client, cluster)
    threading.Thread(target=follower.run, name="elasticml-demand", daemon=True).start()


class ClusterFollower:
    """Scales a cluster until no job runs on it.

    Parameters
    ----------
    client : distributed.Client
    cluster : distributed.deploy.Cluster
    """

    def __init__(self, client: Client, cluster: Any) -> None:
        self._client = client
        self._cluster = cluster
        #: The workers that were there before.
        self._own = set(cluster.plan)
        self._pause = threading.Event()
        #: Another job has been submitted.
        self.restarts = False

    def run(self) -> None:
        """Ask and scale until no job runs, or the client is closed."""
        try:
            while self._client.status == "running":
                self.restarts = False
                reply = self._client.sync(self._client.scheduler.em_demand)
                if not is_adaptive(self._cluster):
                    self._scale(reply["workers"], reply["idle"])
                with _lock:
                    if not reply["running"] and not self.restarts:
                        del _followers[self._client]
                        return
                self._pause.wait(INTERVAL_S)
        except Exception as error:
            # Errors of any deployment system: the job goes on with the workers that it has.
            logger.warning("the cluster does not follow the job's demand: %s", error)
        with _lock:
            _followers.pop(self._client, None)

    def _scale(self, required: int, idle: list[Any]) -> None:
        cluster, plan = self._cluster, set(self._cluster.plan)
        if required > len(plan):
            cluster.scale(required)
            return
        surplus = len(plan) - max(required, len(self._own))
        victims = [name for name in idle if name in plan and name not in self._own][:surplus]
        if surplus <= 0 or not victims:
            return
        if hasattr(cluster, "scale_down"):
            cluster.sync(cluster.scale_down, victims)
        else:
            cluster.scale(len(plan) - len(victims))


def is_adaptive(cluster: Any) -> bool:
    """Return whether ``cluster.adapt`` is active."""
    adaptive = getattr(cluster, "_adaptive", None)
    return adaptive is not None and adaptive.periodic_callback is not None
