"""
K-Means
=======

Cluster handwritten digits with K-Means: first in this process, then on a Dask cluster whose workers
never wait for each other.
"""

# %%
# In this process
# ---------------

from sklearn.datasets import load_digits

import elasticml as em

X, digits = load_digits(return_X_y=True)
model = em.KMeans(n_clusters=10, random_state=0).fit(X)
print("inertia", round(model.inertia_), "after", model.n_iter_, "passes")

# %%
# Each centre is the mean of the pictures in its cluster, so it looks like a digit.

import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 10, figsize=(9, 1.2))
for panel, centre in zip(panels, model.cluster_centers_, strict=True):
    panel.imshow(centre.reshape(8, 8), cmap="gray_r")
    panel.set_axis_off()

# %%
# On a cluster
# ------------
# On a cluster, K-Means is asynchronous. Every worker takes mini-batches of its own examples, sends
# its centres to a random other worker, and merges the centres that it receives. No worker waits for
# another, so a slow or lost worker does not delay the rest.

from dask.distributed import Client

job = em.Job(em.AsyncSGD("kmeans", k=10, passes=20), em.from_arrays(X, digits))
with em.LocalCluster(workers=2, algorithms=["async_sgd"]) as cluster, Client(cluster) as client:
    result = job.run(client)
print("objective", result.summary["objective"], "with members", result.summary["members"])
print(result.model.predict(X[:10]), digits[:10])

# %%
# The result depends on when messages arrive, so two runs differ slightly. Read :doc:`how it works
# </explanation/async-sgd>` and :doc:`which options it has </explanation/kmeans>`.
