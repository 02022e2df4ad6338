"""
Tables with strings and gaps
============================

Real tables have text, dates and missing values. This page trains a classifier on such a table
without preparing it first, and then predicts new rows.
"""

# %%
# A table
# -------
# We make up two thousand flights. Flights are late more often in the evening, with one of the
# carriers, and in strong wind. One wind value in ten is missing.

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n = 2000
flights = pd.DataFrame(
    {
        "carrier": rng.choice(["Ada", "Babbage", "Curie"], n),
        "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, n), unit="D"),
        "hour": rng.integers(5, 23, n),
        "wind": rng.gamma(2.0, 5.0, n),
    }
)
lateness = 0.25 * (flights["hour"] - 14) + 1.5 * (flights["carrier"] == "Curie")
lateness += 0.1 * (flights["wind"] - 10) + rng.logistic(size=n)
flights["arrived"] = np.where(lateness > 0.5, "late", "on time")
flights.loc[rng.random(n) < 0.1, "wind"] = np.nan
flights[:1600].to_csv("flights.csv", index=False)
flights[1600:].to_csv("new.csv", index=False)
flights.head()

# %%
# Train
# -----
# ``read_csv`` only describes the data; the workers will read the file.
#
# * A column of text is one-hot encoded: it becomes one column for each value.
# * ``dates=["weekday"]`` turns a date into its weekday.
# * ``missing="median"`` replaces a missing number by the median of its column, and
#   ``missing_indicator`` adds a column that marks where it was missing.
# * The label may be text.
# * Columns of numbers are standardised during training. The coefficients of the model are still in
#   the units of the table.

from dask.distributed import Client

import elasticml as em

data = em.read_csv(
    "flights.csv", label="arrived", missing="median", missing_indicator=True, dates=["weekday"]
)
job = em.Job(
    em.Linear(loss="logistic", l2=1e-3),
    data,
    test=em.read_csv("new.csv", label="arrived", missing="median"),
)
with (
    em.LocalCluster(workers=2, algorithms=["batch_gradient"]) as cluster,
    Client(cluster) as client,
):
    result = job.run(client)
print(result.summary["engine"], result.summary["stopped_by"])
print(result.summary["test"])

# %%
# The engine is the algorithm, which follows from the loss and the number of columns.
#
# Predict
# -------
# The model encodes new rows as it encoded the training data. It accepts a file, a DataFrame, an
# Arrow table or a Dask collection. A carrier that was not in the training data, here Darwin, gets 0
# in the columns of all known carriers.

evening = pd.DataFrame(
    {
        "carrier": ["Ada", "Curie", "Darwin"],
        "day": ["2026-04-01"] * 3,
        "hour": [21, 21, 21],
        "wind": [np.nan, 20.0, 20.0],
    }
)
evening["prediction"] = result.model.predict(evening)
evening

# %%
# What each column contributes
# ----------------------------
# ``get_feature_names_out`` returns a name for each coefficient.

import matplotlib.pyplot as plt

names = result.model.get_feature_names_out()
weights = result.model.coef_.ravel()
order = np.argsort(weights)
plt.figure(figsize=(7, 3))
plt.barh([names[i] for i in order], weights[order])
plt.xlabel("coefficient")
plt.tight_layout()

# %%
# Save the model as one file. To use it, you need neither a cluster nor the files of the run.

result.model.save("flights.npz")
print(em.load_model("flights.npz").score("new.csv"))

# %%
# You can do the same without Python. ``elasticml init flights.csv --label arrived`` writes a
# commented job file, and ``elasticml run`` runs it. The :doc:`reference of job files
# </reference/job-files>` lists all options for tables.
