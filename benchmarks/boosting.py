"""What recording costs a boosting round: trainings bare and recorded in turn within one process.

    reprokit record -- python -m benchmarks.boosting LIBRARY [PAIRS]

Processor time of a whole training, as the digest of the whole model comes at its end. Beside it stands the floor: the
library serializes the model once, as its trees can be read in no other way.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from benchmarks.capture_training import keep_memory
from benchmarks.measure import REPROKIT, scratch

ROUNDS, PAIRS, WARM = 100, 20, 3
TARGET = 1.05


def data() -> tuple[Any, Any]:
    """Return features and classes, so that a round takes some 0.7 ms."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3000, 12)).astype("float32")
    return x, (x[:, 0] + x[:, 1] * x[:, 2] + generator.normal(size=3000) > 0).astype("int32")


def xgboost() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return a training, and what serializes its model."""
    import xgboost as library

    matrix = library.DMatrix(*data())
    settings = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1}
    return lambda: library.train(settings, matrix, ROUNDS), lambda model: model.save_raw("ubj")


def lightgbm() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return a training, and what serializes its model."""
    import lightgbm as library

    matrix = library.Dataset(*data())
    settings = {"objective": "binary", "num_leaves": 15, "num_threads": 1, "verbose": -1}
    return (
        lambda: library.train(settings, matrix, ROUNDS, keep_training_booster=True),
        lambda model: model.model_to_string(num_iteration=-1),
    )


def catboost() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return a training; of its models nothing is serialized."""
    import catboost as library

    pool = library.Pool(*data())
    settings = {"iterations": ROUNDS, "depth": 4, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    return lambda: library.CatBoostClassifier(**settings).fit(pool), lambda model: None


LIBRARIES = {one.__name__: one for one in (xgboost, lightgbm, catboost)}


def wrappers(library: str) -> list[tuple[Any, str, Any]]:
    """Return what the agent has put in the place of the library's functions."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == library]
    owners = {id(one): one for module in modules for one in (module, *vars(module).values())}.values()
    return [
        (owner, name, value)
        for owner in owners
        if isinstance(owner, (type, ModuleType))
        for name, value in list(vars(owner).items())
        if type(value) is FunctionType and hasattr(value, "__wrapped__") and "agent" in value.__code__.co_filename
    ]


def milliseconds(function: Callable[..., object], *arguments: Any) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    function(*arguments)
    return 1e3 * (time.process_time() - begin)


def train(library: str, pairs: int) -> None:
    """Train in turn, and print what a round of each side took."""
    keep_memory()
    training, serialize = LIBRARIES[library]()
    places = wrappers(library)
    assert places, "run this under reprokit record"
    results: dict[str, list[float]] = {"bare": [], "recorded": [], "floor": []}
    for number in range(WARM + pairs):
        times = {}
        for side in ("bare", "recorded") if number % 2 else ("recorded", "bare"):
            for owner, name, wrapper in places:
                setattr(owner, name, wrapper if side == "recorded" else wrapper.__wrapped__)
            gc.collect()
            times[side] = milliseconds(training) / ROUNDS
        times["floor"] = times["bare"] + milliseconds(serialize, training()) / ROUNDS
        for side, value in times.items():
            results[side] += [value] if number >= WARM else []
    print(f"{library}: a bare round {statistics.median(results['bare']):.3f} ms; target {TARGET} x")
    for side in ("recorded", "floor"):
        ratios = [one / other for one, other in zip(results[side], results["bare"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {side}: {middle:.3f} x ({low:.3f} to {high:.3f}, the middle half)")


def main(runs: int) -> None:
    """All libraries, each recorded."""
    for library in LIBRARIES:
        with scratch() as directory:
            command = [sys.executable, "-m", "benchmarks.boosting", library, str(max(runs, PAIRS))]
            subprocess.run([REPROKIT, "record", "-q", "-o", f"{directory}/run", "--", *command], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boosting")
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("pairs", type=int, nargs="?", default=PAIRS)
    arguments = parser.parse_args()
    train(arguments.library, arguments.pairs)
