"""Real rows for K-Means benches: descriptors of image blocks, and a set with known clusters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

ROOT = Path(__file__).resolve().parents[2]
DATA = harness.DATA


def hog():
    """196,000 descriptors of 36 numbers from 0 to 1."""
    with np.load(DATA / "cifar_hog_blocks" / "cifar_hog_blocks_u8.npz") as file:
        return file["descriptors"] / 255.0


def birch1():
    """100,000 points of the plane in 100 clusters on a grid, scaled to the unit square."""
    X = np.loadtxt(DATA / "sipu_clusters" / "birch1.data.gz")
    return X / np.abs(X).max()
