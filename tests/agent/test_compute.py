"""What a process computed with: counts of threads and choices of code, as the libraries themselves tell them."""

from __future__ import annotations

import os
from ast import literal_eval
from typing import Any

import pytest

from tests.agent.training import Outcome, Training
from tests.support import training_text

TORCH = training_text("compute_libraries.py", "torch_threads")


def facts(outcome: Outcome, library: str) -> dict[str, Any]:
    """The facts of the first library of this kind."""
    found: dict[str, Any] = next(line["facts"] for line in outcome.lines if line.get("library") == library)
    return found


def test_a_plain_process_says_nothing(any_training: Training) -> None:
    assert any_training.run("import os, random").of("compute") == []


@pytest.mark.slow
def test_torch_and_what_it_brings(training: Training) -> None:
    outcome = training.run(TORCH)
    told = facts(outcome, "torch")
    assert f"{told['threads']} {told['interop_threads']} {told['capability']}\n" == outcome.output
    assert facts(outcome, "process")["usable"] == len(os.sched_getaffinity(0))
    assert facts(outcome, "openmp")["threads"] == told["threads"]
    if told["mkl"]:
        assert facts(outcome, "mkl")["threads"] >= 1
    assert outcome.of("warning") == []


@pytest.mark.slow
def test_counts_are_those_at_the_end(training: Training) -> None:
    outcome = training.run(f"{TORCH}import torch\ntorch.set_num_threads(3)")
    assert facts(outcome, "torch")["threads"] == 3
    assert facts(outcome, "openmp")["threads"] == 3


@pytest.mark.slow
def test_lowered_capabilities_show(training: Training) -> None:
    outcome = training.run(TORCH + "import numpy", ATEN_CPU_CAPABILITY="default", OPENBLAS_CORETYPE="Nehalem")
    assert facts(outcome, "torch")["capability"] == "DEFAULT"
    assert facts(outcome, "openblas")["core"] == "Nehalem"
    chosen = facts(outcome, "process")["variables"]
    assert chosen == ["ATEN_CPU_CAPABILITY=default", "OPENBLAS_CORETYPE=Nehalem"]


def test_numpy_dispatches_to_what_the_processor_has(training: Training) -> None:
    script = "import numpy; print(numpy._core._multiarray_umath.__cpu_dispatch__)"
    outcome = training.run(script)
    told = facts(outcome, "numpy")
    assert sorted(told["used"] + told["unused"]) == sorted(literal_eval(outcome.output))
    for feature in told["used"]:
        lowered = training.run(script, NPY_DISABLE_CPU_FEATURES=feature)
        assert feature in [line["facts"] for line in lowered.of("compute", name="numpy")][-1]["unused"]


def test_openblas_threads(training: Training) -> None:
    assert facts(training.run("import numpy", OPENBLAS_NUM_THREADS="1"), "openblas")["threads"] == 1


@pytest.mark.slow
def test_tensorflow_takes_what_it_was_told(training: Training) -> None:
    script = "import tensorflow as tf; tf.config.threading.set_intra_op_parallelism_threads(7); tf.ones(3)"
    outcome = training.run(script, TF_NUM_INTEROP_THREADS="5")
    told = facts(outcome, "tensorflow")
    assert (told["threads"], told["interop_threads"]) == (7, 5)


@pytest.mark.slow
def test_workers_of_loaders(training: Training) -> None:
    script = training_text("compute_libraries.py", "torch_loaders")
    lines = training.run(script).of("compute", library="loader")
    assert [(line["name"], line["facts"]["workers"]) for line in lines] == [("loader#0", 2), ("loader#1", 0)]


def test_nothing_is_imported_for_it(training: Training) -> None:
    script = training_text("compute_libraries.py", "imports")
    outcome = training.run(script)
    assert outcome.output == "[]\n"
    assert facts(outcome, "numpy")
