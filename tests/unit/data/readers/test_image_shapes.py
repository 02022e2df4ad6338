"""Shapes of images, which their number of columns does not determine."""

from __future__ import annotations

import numpy as np
import pytest

import elasticml as em
from elasticml.data.readers.images import image_shape
from elasticml.errors import DataError
from tests.unit.data.readers.test_image_folder import in_folder, png
from tests.unit.data.readers.test_images import write


def idx_file(folder, *dimensions: int) -> str:
    folder.mkdir()
    write(folder, "labels-idx1-ubyte", np.zeros(3, np.uint8))
    return write(folder, "images-idx3-ubyte", np.zeros((3, *dimensions), np.uint8))


@pytest.mark.parametrize(
    ("dimensions", "shape"), [((4, 6), (1, 4, 6)), ((3, 2, 5), (3, 2, 5)), ((24,), None)]
)
def test_idx_dimensions_are_a_shape_if_they_are_those_of_an_image(tmp_path, dimensions, shape):
    assert image_shape(em.read_images(idx_file(tmp_path / "a", *dimensions))) == shape


def test_images_have_the_shape_in_which_they_are_read(tmp_path):
    files = {"a/1.png": png(np.zeros((4, 6, 3), np.uint8)), "b/1.png": b"never read"}
    path = in_folder(tmp_path, files)
    assert image_shape(em.read_images(path)) == (3, 4, 6)
    assert image_shape(em.read_images(path, mode="L")) == (1, 4, 6)
    assert image_shape(em.read_images(path, size=(8, 2))) == (3, 8, 2)


def test_a_source_without_images_is_named(tmp_path):
    path = in_folder(tmp_path, {"a/notes.txt": b"no"})
    with pytest.raises(DataError, match="has no pictures in folders"):
        image_shape(em.read_images(path))


def test_other_data_have_no_shape():
    assert image_shape(em.from_arrays(np.zeros((2, 16)), np.zeros(2))) is None


@pytest.mark.torch
def test_a_networks_test_images_of_equal_area_and_another_shape_are_refused(tmp_path):
    train = em.read_images(idx_file(tmp_path / "train", 4, 6))
    test = em.read_images(idx_file(tmp_path / "test", 3, 8))
    algorithm = em.LocalSGD(model="tests.networks:linear")
    em.Job(algorithm, train, test=train).check_data()
    report = r"data\.test: .*pictures have shape \[1, 3, 8\], wanted \[1, 4, 6\] as in training"
    with pytest.raises(DataError, match=report):
        em.Job(algorithm, train, test=test).check_data()
    # Without training images the configured shape is used, if it is that of an image.
    rows = em.from_arrays(np.zeros((2, 24)), np.arange(2))
    em.Job(algorithm, rows, test=test).check_data()
    shaped = em.LocalSGD(model="tests.networks:linear", shape=(1, 4, 6))
    with pytest.raises(DataError, match=report):
        em.Job(shaped, rows, test=test).check_data()
    flat = em.LocalSGD(model="tests.networks:linear", shape=(24,))
    em.Job(flat, rows, test=test).check_data()


def test_a_linear_model_takes_test_images_of_another_shape_and_equal_area(tmp_path):
    train = em.read_images(idx_file(tmp_path / "train", 4, 6))
    test = em.read_images(idx_file(tmp_path / "test", 3, 8))
    em.Job(em.BatchGradient(), train, test=test).check_data()
