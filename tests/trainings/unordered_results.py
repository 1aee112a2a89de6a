"""Gradients of parts of the data, added up in the order in which worker processes have them."""

import multiprocessing

import numpy


def gradient(part: int) -> numpy.ndarray:
    """That of one part."""
    generator = numpy.random.default_rng(part)
    x = generator.normal(size=(400 * (1 + part % 3), 16)).astype("float32")
    return x.T @ (x @ numpy.ones(16, "float32"))


if __name__ == "__main__":
    weights = numpy.ones(16, "float32")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for _ in range(6):
            for found in pool.imap_unordered(gradient, range(24)):
                weights = weights * numpy.float32(0.999) - numpy.float32(1e-6) * found
    numpy.save("weights.npy", weights)
