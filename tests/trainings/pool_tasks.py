"""Gives tasks to two workers of a pool; what each task draws depends on the worker that takes it.

Usage: pool_tasks.py KIND [FORM]
"""

import concurrent.futures.process
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time

TASKS = 24


def task(number):
    """Wait for a time that no replay repeats, then draw: afresh, from a generator, from what the worker did before."""
    is_process = multiprocessing.current_process().name != "MainProcess"
    if number == TASKS // 2 and os.environ.get("DIES") and is_process:
        os._exit(3)
    if number == TASKS // 3 and os.path.exists("stuck"):
        time.sleep(1000)
    time.sleep(time.perf_counter_ns() // 1000 % 7 / 1000)
    worker = threading.current_thread()  # joblib pickles this function, but no module state
    if not hasattr(worker, "weight"):
        worker.generator, worker.weight = random.Random(os.urandom(8)), 0.0
    drawn = random.random() if is_process else worker.generator.random()
    worker.weight = worker.weight / 2 + drawn
    return number, os.urandom(4).hex(), worker.weight


def mapped(form):
    with multiprocessing.get_context(form).Pool(2) as pool:
        yield pool.map(task, range(TASKS), chunksize=1)
        yield pool.map(task, range(TASKS))


def unordered(form):
    with multiprocessing.get_context(form).Pool(2) as pool:
        yield list(pool.imap_unordered(task, range(TASKS)))


def renewed(form):
    with multiprocessing.get_context(form).Pool(2, maxtasksperchild=3) as pool:
        yield pool.map(task, range(TASKS), chunksize=1)


def died(form):
    os.environ["DIES"] = "1"
    with multiprocessing.get_context(form).Pool(2) as pool:
        results = [pool.apply_async(task, (number,)) for number in range(TASKS)]
        yield [result.get(30) for result in results if result is not results[TASKS // 2]]


def stuck(form):
    """In a directory that has a file `stuck`, a task in the middle never ends; the others are waited for."""
    with multiprocessing.get_context(form).Pool(2) as pool:
        results = [pool.apply_async(task, (number,)) for number in range(TASKS)]
        found = []
        for number in sorted(range(TASKS), key=lambda number: number == TASKS // 3):
            with contextlib.suppress(multiprocessing.TimeoutError):
                found.append(results[number].get(0.1 if number == TASKS // 3 else 60))
        yield found


def killed(form):
    yield from mapped(form)
    os.kill(os.getpid(), signal.SIGKILL)


def processes(form):
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(form)) as pool:
        yield list(pool.map(task, range(TASKS)))


def broken(form):
    os.environ["DIES"] = "1"
    with contextlib.suppress(concurrent.futures.process.BrokenProcessPool):
        yield from processes(form)
    del os.environ["DIES"]
    yield from processes(form)


def threads(_form):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield list(pool.map(task, range(TASKS)))


def thread_pool(_form):
    from multiprocessing.pool import ThreadPool

    with ThreadPool(2) as pool:
        yield pool.map(task, range(TASKS), chunksize=1)


def joblib(backend):
    from joblib import Parallel, delayed

    for _ in range(2):
        yield Parallel(2, backend=backend)(delayed(task)(number) for number in range(TASKS))


def search(_form):
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV, cross_val_score

    images, labels = load_digits(return_X_y=True)
    model = SGDClassifier(max_iter=3, tol=None)  # draws from NumPy's global generator, in the worker
    grid = GridSearchCV(model, {"alpha": [1e-5, 1e-4, 1e-3, 1e-2]}, n_jobs=2, cv=3).fit(images, labels)
    yield grid.cv_results_["mean_test_score"].tolist()
    yield cross_val_score(model, images, labels, n_jobs=2, cv=8).tolist()


if __name__ == "__main__":
    kind, form = [*sys.argv[1:], "fork"][:2]
    results = list(globals()[kind](form))
    with open("results.json", "w") as file:
        json.dump(results, file)
    print(hashlib.sha256(json.dumps(results).encode()).hexdigest())
