"""Predictions that a script logs by itself: in numbers far apart, beyond a bound, in a forked child and in threads."""

import os
import threading

import reprokit

CASE = "exact"


def exact():
    """The first time NumPy is not there yet."""
    for _ in range(2):
        reprokit.log_predictions(
            [1e308, 1e-308, 5e-324, 3.0, 0.1, 1e16], [0.0, 0.0, 0.0, 3.0, 0.2, 1.5], task="regression"
        )
        import numpy  # noqa: F401


def bounded():
    import _reprokit_agent.predictions.log as log
    import numpy

    log.MAX_BYTES = 4000
    for number in range(3):
        reprokit.log_predictions(None, numpy.full(300, number))


def forked():
    import numpy

    reprokit.log_predictions(None, numpy.arange(3))
    child = os.fork()
    reprokit.log_predictions(None, numpy.arange(5 if child else 7))
    if child:
        os.waitpid(child, 0)


def threads():
    import numpy

    def predict():
        for number in range(300):
            reprokit.log_predictions(None, numpy.full(50, number))

    workers = [threading.Thread(target=predict, name="worker") for _ in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]


globals()[CASE]()
