"""reprokit.log and reprokit.log_predictions, in a run and outside of one, installed or not."""

from __future__ import annotations

import math

import pytest

import reprokit
from tests.agent.training import Training, float_value, tensor_digest
from tests.support import training_text
from tests.verify.runs import rows_digest

VALUES = {
    "0.1": float_value("float64", 0.1),
    "float('nan')": {"dtype": "float64", "bits": "7ff8000000000000", "decimal": None},
    "-float('inf')": {"dtype": "float64", "bits": "fff0000000000000", "decimal": None},
    "-0.0": {"dtype": "float64", "bits": "8000000000000000", "decimal": -0.0},
    "7": {"dtype": "int", "decimal": 7},
    "2**80": {"dtype": "str", "text": str(2**80)},
    "True": {"dtype": "bool", "decimal": True},
    "'t\\u00e9xt\\x1b'": {"dtype": "str", "text": "t\u00e9xt\x1b"},
    "fractions.Fraction(1, 4)": float_value("float64", 0.25),
}
NUMPY_VALUES = {
    "numpy.float32(0.1)": {"dtype": "float32", "bits": "3dcccccd", "decimal": 0.1},
    "numpy.float16(65504)": {"dtype": "float16", "bits": "7bff", "decimal": 65500.0},
    "numpy.float32(3.4028235e38)": {"dtype": "float32", "bits": "7f7fffff", "decimal": 3.4028235e38},
    "numpy.array([[0.25]])": float_value("float64", 0.25),
    "numpy.int64(-3)": {"dtype": "int", "decimal": -3},
    "numpy.bool_(1)": {"dtype": "bool", "decimal": True},
    "numpy.float64('nan')": {"dtype": "float64", "bits": "7ff8000000000000", "decimal": None},
}


def test_values_of_python_are_exact(any_training: Training) -> None:
    calls = "\n".join(f"reprokit.log(step={number}, value={text})" for number, text in enumerate(VALUES))
    outcome = any_training.run(f"import fractions, reprokit\nassert reprokit.__version__\n{calls}")
    assert (outcome.status, outcome.errors) == (0, "")
    lines = outcome.of("log")
    assert [line["value"] for line in lines] == list(VALUES.values())
    assert [line["step"] for line in lines] == list(range(len(VALUES)))
    assert math.copysign(1, lines[3]["value"]["decimal"]) == -1


def test_values_of_numpy_are_exact(training: Training) -> None:
    calls = "\n".join(f"reprokit.log(value={text}, epoch=numpy.int32(2))" for text in NUMPY_VALUES)
    outcome = training.run(f"import numpy, reprokit\n{calls}\nreprokit.log(value=numpy.arange(3.0))")
    *lines, array = outcome.of("log", epoch=2) + outcome.of("log", epoch=None)
    assert [line["value"] for line in lines] == list(NUMPY_VALUES.values())
    import numpy

    assert array["value"] == {"dtype": "str", "text": tensor_digest(numpy.arange(3.0))}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.tensorflow
def test_values_of_frameworks_are_exact(training: Training) -> None:
    outcome = training.run(training_text("logged_tensors.py"))
    values = {line["name"]: line["value"] for line in outcome.of("log")}
    tenth = {"dtype": "float32", "bits": "3dcccccd", "decimal": 0.1}
    assert values == {
        "a": tenth,
        "b": {"dtype": "bfloat16", "bits": "4020", "decimal": 2.5},
        "c": {"dtype": "int", "decimal": 3},
        "d": tenth,
        "e": float_value("float64", 0.5),
        "f": float_value("float32", 1.5),
    }


def test_bad_input_is_a_warning_and_never_an_exception(any_training: Training) -> None:
    outcome = any_training.run(
        """
import reprokit
class Bad:
    dtype = "mine"
    def __repr__(self): raise RuntimeError("no text")
reprokit.log(a=object(), b=Bad(), c=3)
reprokit.log(step="three", d=4)
reprokit.log_predictions(Bad(), [1])
print("trained")
"""
    )
    assert (outcome.status, outcome.output, outcome.errors) == (0, "trained\n", "")
    assert [line["name"] for line in outcome.of("log")] == ["c"]
    assert len(outcome.of("warning")) == 4


def test_predictions_are_digested(training: Training) -> None:
    outcome = training.run(
        "import numpy, reprokit\n"
        "for _ in range(2): reprokit.log_predictions([1, 2], numpy.eye(2, dtype='>f4')[:, ::-1], task='classification')"
    )
    import numpy

    first, second = outcome.of("evaluation", name="log_predictions")
    expected = {"dtype": "float32", "shape": [2, 2], "digest": rows_digest(numpy.eye(2, dtype="f4")[:, ::-1])}
    assert expected.items() <= first["predictions"].items()
    assert first["predictions"] == second["predictions"]  # and kept once
    assert (first["task"], first["truth"]["shape"]) == ("classification", [2])


def test_outside_a_run_it_does_nothing() -> None:
    reprokit.log(step=object(), loss=object())  # type: ignore[arg-type]
    reprokit.log_predictions(object(), object())


def test_importing_it_imports_nothing_heavy(training: Training) -> None:
    root = reprokit.__path__[0].rpartition("/")[0]
    heavy = "{'click', 'rich', 'cffi', 'msgspec', 'psutil', 'typing', 'dataclasses'}"
    script = f"import sys; sys.path.insert(0, {root!r}); import reprokit; print({heavy} & set(sys.modules))"
    command = [training.python, "-S", "-c", script]
    assert training.command(command, training.bare_environment()).output == "set()\n"


def test_seeding_is_written_down(training: Training) -> None:
    library = training.write("site-packages/library.py", "import random\ndef shuffled(): random.seed(1)").parent
    outcome = training.run(training_text("seeded_everywhere.py"), python_path=[library])
    assert outcome.errors == ""
    assert [(line["call"], line["argument"], line["where"]) for line in outcome.of("seed")] == [
        ("random.seed", "12", "train.py:9"),
        ("numpy.random.seed", "[1, 2]", "train.py:11"),
        ("numpy.random.default_rng", "seed=5", "train.py:12"),
        ("numpy.random.SeedSequence", "1", "train.py:14"),
        ("numpy.random.default_rng", "<PCG64>", "train.py:14"),
        ("random.seed", "1", "library.py:2"),
    ]
    assert [line["name"] for line in outcome.of("random_state")] == ["random", "numpy"]


def test_random_states_tell_runs_apart(training: Training) -> None:
    def states(script: str) -> dict[str, str]:
        (training.run_directory / "metrics.jsonl").unlink(missing_ok=True)
        return {line["name"]: line["digest"] for line in training.run(script).of("random_state")}

    seeded = "import random, numpy.random; random.seed(1); numpy.random.seed(1)\n"
    first, second, third = states(seeded), states(seeded), states(seeded + "numpy.random.rand()")
    assert first == second
    assert first["random"] == third["random"]
    assert first["numpy"] != third["numpy"]
