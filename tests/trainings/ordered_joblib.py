"""Tasks of joblib whose results are used in the order in which they are done; prints what came out."""

import random
import time

from joblib import Parallel, delayed


def task(number):
    time.sleep(random.SystemRandom().random() / 20)
    return number


if __name__ == "__main__":
    for backend in "threading", "loky":
        parallel = Parallel(2, backend=backend, return_as="generator_unordered", batch_size=1)
        print([list(parallel(delayed(task)(number) for number in range(20))) for _ in range(2)])
