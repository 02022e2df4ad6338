"""
K-Means
=======

Cluster handwritten digits: in this process, then on members that never wait for each other.
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
# The centres are pictures of digits.

import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 10, figsize=(9, 1.2))
for panel, centre in zip(panels, model.cluster_centers_, strict=True):
    panel.imshow(centre.reshape(8, 8), cmap="gray_r")
    panel.set_axis_off()

# %%
# On a cluster
# ------------
# As a job, K-Means is asynchronous: every member visits its own examples in mini-batches, sends its
# centres to a random peer, and merges those that arrive. No member waits, so a slow or lost member
# holds up no other. The history has one row for each second.

from dask.distributed import Client

job = em.Job(em.AsyncSGD("kmeans", k=10, passes=20), em.from_arrays(X, digits))
with em.LocalCluster(workers=2, algorithms=["async_sgd"]) as cluster, Client(cluster) as client:
    result = job.run(client)
print("objective", result.summary["objective"], "with members", result.summary["members"])
print(result.model.predict(X[:10]), digits[:10])

# %%
# The result of a job depends on when messages arrive. :doc:`How it works </explanation/async-sgd>`
# and :doc:`its options </explanation/kmeans>` are explained elsewhere.
