"""
Text
====

Sentences become sparse rows with one column for each word. elasticml trains on sparse rows
directly; a column that is zero costs nothing.
"""

# %%
# Sentences
# ---------
# scikit-learn contains descriptions of data sets, in English. The task: from which description is a
# sentence?

import re

from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine

texts, topics = [], []
for name, load in {
    "cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "digits": load_digits,
    "iris": load_iris,
    "wine": load_wine,
}.items():
    for line in re.split(r"\n\s*\n|\.\s", load().DESCR):
        if len(line.split()) > 3:
            texts.append(line)
            topics.append(name)
print(len(texts), "sentences, such as:", " ".join(texts[-5].split()))

# %%
# Train
# -----
# ``TfidfVectorizer`` gives a sparse matrix. Estimators have scikit-learn's interface, so they work
# in its pipelines and searches. Without a cluster they fit in this process.

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import elasticml as em

words = TfidfVectorizer(sublinear_tf=True)
model = make_pipeline(words, em.LinearSVC(C=1.0))
accuracy = cross_val_score(model, texts, topics, cv=4).mean()
print(f"accuracy {accuracy:.2f}, by chance 0.20, from {len(texts)} sentences")

model.fit(texts, topics)
print(model.predict(["the petal of a flower", "alcohol and malic acid", "handwritten characters"]))

# %%
# ``dual_gap_`` certifies each of the five models, one for each topic.

svm = model[-1]
print(svm.dual_gap_)

# %%
# The words that decide
# ---------------------

import matplotlib.pyplot as plt
import numpy as np

names = np.array(words.get_feature_names_out())
figure, panels = plt.subplots(1, len(svm.classes_), figsize=(9, 3), sharex=True)
for panel, topic, weights in zip(panels, svm.classes_, svm.coef_, strict=True):
    best = np.argsort(weights)[-6:]
    panel.barh(names[best], weights[best])
    panel.set_title(topic, fontsize=9)
    panel.tick_params(labelsize=7)
figure.tight_layout()

# %%
# More text than one machine holds
# --------------------------------
# Give the estimator a client, ``em.LinearSVC(C=1.0, client=client)``, and it becomes a job on that
# cluster. Data that are already vectorised are best kept in svmlight or Parquet files, which the
# workers read themselves: ``em.read_svmlight("hdfs://…/text.svm.gz")``. Vectorise a large text
# without a vocabulary, with scikit-learn's ``HashingVectorizer`` in ``map_partitions`` of a Dask
# bag, and pass the result to ``em.from_dask``.
