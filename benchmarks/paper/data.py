"""Writes the data of the trainings: scikit-learn's digits, and SciPy's electrocardiogram, which SciPy 1.7 still holds.

Run by the Python that has TensorFlow 1.14, so that both versions train with the very same files.

Argument: the directory.
"""

import os
import sys
import warnings

import numpy as np

SECONDS, THINNED, HERTZ = 30, 4, 360  # what is taken of five minutes: every fourth value of the first half minute


def digits():
    """1797 images of 8 x 8 pixels and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return {"images": found.images.astype("uint8"), "labels": found.target}


def electrocardiogram():
    """A heart of the MIT-BIH Arrhythmia Database, in millivolts."""
    from scipy.misc import electrocardiogram as whole

    return {"series": whole()[: SECONDS * HERTZ : THINNED]}


def write(path, arrays):
    """Write a file of arrays whole or not at all."""
    with open(path + ".partial", "wb") as file:
        np.savez(file, **arrays)
    os.replace(path + ".partial", path)


def main(directory):
    """Write what is missing."""
    warnings.simplefilter("ignore")
    os.makedirs(directory, exist_ok=True)
    for make in (digits, electrocardiogram):
        path = os.path.join(directory, make.__name__ + ".npz")
        if not os.path.exists(path):
            write(path, make())


if __name__ == "__main__":
    main(*sys.argv[1:])
