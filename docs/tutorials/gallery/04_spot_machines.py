"""
Spot machines
=============

A cloud takes spot machines back with a notice of 30 seconds to two minutes, or with none. This page
shows on worker processes of this machine what a job does in each case.
"""

# %%
# Data, and a cluster that can lose workers
# -----------------------------------------
# ``em.LocalCluster`` starts worker processes, and loses them on request: ``faults`` of a job says
# when. ``how: notice`` announces the end first, as clouds do; ``how: kill`` is SIGKILL.

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
# With a notice the chunks of a member move to the others before it ends; nothing is absent. Without
# one, half of the examples are absent until the workers return. Their last gradient takes their
# place.

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
# The story of a job has every event and its cause.

for record in results["two with a notice"].story:
    if record["event"] in ("MemberLost", "MemberJoined") and record["round"] > 0:
        print(record["round"], record["event"], record["member"], record.get("reason", ""))

# %%
# On real machines
# ----------------
# Workers read the clouds' notices if they have elasticml's preload:
# ``dask worker tcp://SCHEDULER:8786 --preload elasticml.preload``. :doc:`Run jobs on spot machines
# </how-to/spot>` has the details for AWS, GCE and Azure.
