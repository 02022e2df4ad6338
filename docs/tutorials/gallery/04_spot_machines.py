"""
Spot machines
=============

A cloud may take a spot machine back at any time, usually with a warning of 30 seconds to two
minutes, sometimes without. This page shows how a job reacts in both cases. Worker processes on this
machine play the spot machines.
"""

# %%
# Data, and a cluster that can lose workers
# -----------------------------------------
# ``em.LocalCluster`` starts worker processes. The job's ``faults`` say in which rounds workers are
# lost and started again. ``how: notice`` warns a worker before it ends, as clouds do. ``how: kill``
# sends SIGKILL without a warning.
#
# ``absent="taylor"`` says what to do about the training examples of a killed worker: replace their
# gradient by an estimate from the last one that is known.

import numpy as np
from dask.distributed import Client

import elasticml as em

rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 30))
y = np.where(X @ rng.normal(size=30) + 2 * rng.normal(size=20_000) > 0, 1.0, -1.0)
data = em.from_arrays(X, y)


def train(client, faults):
    job = em.Job(
        em.BatchGradient(loss="logistic", l2=1e-4, optimizer="gd", tolerance=0),
        data,
        absent="taylor",
        stop=em.Stop(rounds=40),
        faults=faults,
    )
    return job.run(client)


results = {}
with (
    em.LocalCluster(workers=4, algorithms=["batch_gradient"]) as cluster,
    Client(cluster) as client,
):
    results["undisturbed"] = train(client, [])
    results["two killed"] = train(
        client, [{"round": 5, "lose": 2, "how": "kill"}, {"round": 25, "return": 2}]
    )
    results["two with a notice"] = train(
        client,
        [{"round": 5, "lose": 2, "how": "notice", "grace": 30}, {"round": 25, "return": 2}],
    )

# %%
# The same result
# ---------------
# With a warning, a worker's rows move to the other workers before it ends, so no example is ever
# missing. Without a warning, half of the examples are absent from round 5 until the workers return
# in round 25. In between, the estimate takes their place.

for name, result in results.items():
    summary = result.summary
    print(f"{name:18} objective {summary['objective']:.6f}, lost {summary['lost']}")

# %%
import matplotlib.pyplot as plt

figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 4))
for name, result in results.items():
    rows = [row for row in result.history if row["objective"] is not None]
    top.plot([row["round"] for row in rows], [row["objective"] for row in rows], label=name)
    bottom.plot([row["round"] for row in rows], [row["absent_examples"] for row in rows])
top.set_ylabel("objective")
top.legend(frameon=False)
bottom.set_ylabel("absent examples")
bottom.set_xlabel("round")
figure.tight_layout()

# %%
# What the job decided
# --------------------
# The *story* of a job is its log: every event, every decision, and their causes. A *member* is what
# elasticml calls a worker that takes part in a job.

for record in results["two with a notice"].story:
    if record["event"] in ("MemberLost", "MemberJoined") and record["round"] > 0:
        print(record["round"], record["event"], record["member"], record.get("reason", ""))

# %%
# On real machines
# ----------------
# Start the workers with elasticml's preload script, so that they learn about the cloud's warnings:
# ``dask worker tcp://SCHEDULER:8786 --preload elasticml.preload``. :doc:`Run jobs on spot machines
# </how-to/spot>` has the details for AWS, GCE and Azure.
