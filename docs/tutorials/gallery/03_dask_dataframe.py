"""
A Dask dataframe
================

Your data are a Dask dataframe already, in the memory of the workers of a cluster. This page trains
a model where the rows are. They are not copied to the client or the scheduler.
"""

# %%
# A cluster with a dataframe on it
# --------------------------------
# Any Dask cluster works. Here we start a small one on this machine. ``persist`` computes the
# partitions and keeps them in the workers' memory.

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.distributed import Client

import elasticml as em

cluster = em.LocalCluster(workers=2, algorithms=["batch_gradient"]).start()
client = Client(cluster.scheduler_address)

rng = np.random.default_rng(1)
rooms = rng.integers(1, 7, 4000)
houses = pd.DataFrame(
    {
        "rooms": rooms,
        "area": 18.0 * rooms + rng.normal(0, 9, 4000),
        "town": rng.choice(["Baker", "Fleet", "Regent"], 4000),
    }
)
houses["price"] = 3.1 * houses["area"] + 40.0 * (houses["town"] == "Regent")
houses["price"] += rng.normal(0, 20, 4000)
frame = dd.from_pandas(houses, npartitions=8).persist()
frame

# %%
# Train where the rows are
# ------------------------
# ``label`` names the column to predict. Text columns are one-hot encoded.

data = em.from_dask(frame, label="price")
job = em.Job(em.Linear(loss="squared", l2=1e-6), data)
result = job.run(client)
for name, weight in zip(
    result.model.get_feature_names_out(), result.model.coef_.ravel(), strict=True
):
    print(f"{name:12} {weight:8.2f}")
print("intercept   ", round(float(np.ravel(result.model.intercept_)[0]), 2))

# %%
# Or with an estimator
# --------------------
# The estimators accept Dask collections too. If there is a Dask client, they fit as a job on its
# cluster. ``predict`` then returns a lazy collection with the same partitions.

X, y = frame[["rooms", "area"]], frame["price"]
ridge = em.Ridge(alpha=1.0).fit(X, y)
print(ridge.solver_path_, ridge.coef_)
predicted = ridge.predict(X)
print(predicted.compute()[:3])

# %%
# When a worker is lost
# ---------------------
# Dask computes the lost partitions again from their task graph, and the job continues with all
# rows. :doc:`Data in Dask </how-to/dask-data>` explains memory use and limits.

client.close()
cluster.close()
