"""
Text
====

This page classifies sentences by topic. Each sentence becomes a sparse row with one column for each
word. elasticml trains on sparse rows directly, so zeros cost neither memory nor time.
"""

# %%
# Sentences
# ---------
# scikit-learn contains English descriptions of data sets. We split them into sentences. The task is
# to predict which description a sentence comes from.

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
# ``TfidfVectorizer`` returns a sparse matrix. elasticml's estimators have scikit-learn's interface,
# so they work in pipelines and grid searches. Without a Dask client they fit in this process.

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
# The classifier consists of five models, one for each topic. ``dual_gap_`` certifies each of them:
# the best possible objective is lower by at most this number.

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
# * To fit on a Dask cluster, pass a client: ``em.LinearSVC(C=1.0, client=client)``.
# * If your text is already vectorised, store it as svmlight or Parquet files. The workers then read
#   it themselves: ``em.read_svmlight("hdfs://…/text.svm.gz")``.
# * To vectorise a large text on the cluster, use scikit-learn's ``HashingVectorizer``, which needs
#   no vocabulary, in ``map_partitions`` of a Dask bag. Pass the result to ``em.from_dask``.
