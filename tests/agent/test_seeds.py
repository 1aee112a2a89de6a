"""The ledger of seeding calls: what is written, what a replay is given again, and that nobody can tell."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.agent.seeds.ledger import MAX_TEXT, NotExact, RecordedSeeds, decode, encode
from reprokit.run.seeds import SeedsByProcess
from tests.agent.training import Line, Outcome, Training
from tests.support import training_text


def replayed(
    training: Training, script: str, *arguments: str, name: str = "replay", python_path: Sequence[Path] = ()
) -> Outcome:
    """Run a script again under the agent alone, with the seeds that the first run wrote."""
    again = Training(training.directory / name, training.python)
    gathered = SeedsByProcess()
    for line in (training.run_directory / "metrics.jsonl").read_bytes().splitlines(keepends=True):
        gathered.take(line)
    again.run_directory.mkdir(parents=True)
    (again.run_directory / "seeds.jsonl").write_bytes(b"".join(gathered.lines()))
    return again.run(script, *arguments, python_path=python_path)


def told(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(line["call"], line["argument"], line["where"]) for line in outcome.of("seed")]


def replaced(outcome: Outcome) -> list[Line]:
    return [line for line in outcome.of("seed") if "asked" in line]


RANDOM = training_text("seeded_random.py")


def test_seeds_of_the_clock_are_given_again(any_training: Training) -> None:
    first = any_training.run(RANDOM)
    again = replayed(any_training, RANDOM)
    assert (first.errors, again.errors) == ("", "")
    assert again.output == first.output
    assert told(again) == told(first)
    assert len(replaced(again)) == len(first.of("seed")) == 5 * 7
    line = again.of("seed")[0]
    assert line["argument"] == first.of("seed")[0]["argument"] != line["asked"]
    assert {line["call"] for line in first.lines if line["k"] == "seed"} == {
        "random.seed",
        "random.Random",
        "random.Random.seed",
    }


COMPILED = training_text("seeded_compiled.py")
VALIDATED = training_text("seeded_validation.py")
BOOSTED = training_text("seeded_boosted.py")


@pytest.mark.slow
@pytest.mark.torch
def test_seeds_of_a_cross_validation_are_given_again(training: Training) -> None:
    """joblib stands between scikit-learn and itself. The trees' seeds are drawn, and would fill the ledger."""
    first = training.run(VALIDATED)
    again = replayed(training, VALIDATED)
    assert first.errors == again.errors == ""
    assert again.output == first.output
    assert [line["where"] for line in replaced(again)] == ["train.py:9"] * 2
    assert [line["call"].rpartition(".")[2] for line in again.of("seed")] == ["clone random_state", "RandomState"] * 2


@pytest.mark.slow
@pytest.mark.torch
def test_seeds_of_types_written_in_c_are_given_again(training: Training) -> None:
    first = training.run(COMPILED)
    again = replayed(training, COMPILED)
    assert first.errors == again.errors == ""
    assert again.output == first.output
    unseeded = {line["where"] for line in first.of("seed") if line not in again.of("seed")} - {
        line["where"] for line in replaced(again)
    }
    assert unseeded <= {"train.py:32"}  # spawned from entropy that is recorded, which no shim gives again here
    assert {line["call"] for line in replaced(again)} == {
        "numpy.random.seed",
        "numpy.random.RandomState",
        "numpy.random.SeedSequence",
        "numpy.random.default_rng",
        "torch.manual_seed",
        "torch.cuda.manual_seed_all",
        "torch.Generator.manual_seed",
    }


@pytest.mark.slow
@pytest.mark.xgboost
def test_seeds_among_parameters_are_given_again(training: Training) -> None:
    first = training.run(BOOSTED)
    again = replayed(training, BOOSTED)
    assert again.output == first.output != ""
    calls = [line["call"] for line in replaced(again)]
    assert [call.partition(" ")[0] for call in calls] == ["xgboost.train"] * 2 + ["lightgbm.train"] * 2


@pytest.mark.slow
@pytest.mark.tensorflow
def test_seeds_of_tensorflow_and_keras_are_given_again(training: Training) -> None:
    script = training_text("seeded_tensorflow.py")
    first = training.run(script)
    again = replayed(training, script)
    assert again.output == first.output != ""
    assert [line["call"] for line in replaced(again)] == [
        "tensorflow.random.set_seed",
        "tensorflow.set_random_seed",
        "tensorflow.random.Generator.from_seed",
        "keras.utils.set_random_seed",
        "keras.random.SeedGenerator",
        "keras.random.SeedGenerator",
    ]


@pytest.mark.slow
def test_seeds_of_jax_keys_are_given_again(tmp_path: Path) -> None:
    training = Training(tmp_path)
    script = training_text("seeded_jax.py")
    first = training.run(script)
    again = replayed(training, script)
    assert again.output == first.output != ""
    assert [line["call"] for line in replaced(again)] == ["jax.random.PRNGKey", "jax.random.key"]


def test_a_seed_that_is_the_same_needs_nothing(training: Training) -> None:
    script = "import random\nfor seed in (1, 'two', 3.5, b'4', 1 << 90): random.seed(seed)"
    training.run(script)
    again = replayed(training, script)
    assert len(again.of("seed")) == 5
    assert replaced(again) == []


def test_tasks_that_are_seeded_by_their_number_may_come_in_another_order(training: Training) -> None:
    script = "import random, sys\nfor task in sys.argv[1].split(): print(random.Random(int(task)).random())"
    training.run(script, "1 2 3 4")
    expected = Training(training.directory / "bare").write("train.py", script)
    again = replayed(training, script, "4 3 1 2")
    bare = training.command([training.python, str(expected), "4 3 1 2"], training.bare_environment())
    assert replaced(again) == []
    assert again.output == bare.output


def test_a_seed_named_by_the_command_line_is_left_alone(training: Training) -> None:
    script = "import random, sys; random.seed(int(sys.argv[1].rpartition('=')[2])); print(random.random())"
    training.run(script, "--seed=41")
    for number, argument in enumerate(("--seed=42", "42")):
        again = replayed(training, script, argument, name=str(number))
        assert (again.one("seed")["argument"], replaced(again)) == ("42", [])


def test_a_process_id_that_another_process_of_the_recording_had(training: Training) -> None:
    script = """
import os, random
seeds = [("0", 5), ("0/1", os.getpid())]
with open(os.environ["REPROKIT_RUN"] + "/seeds.jsonl", "w") as file:
    file.write("\\n" + "".join(f'["{process}","",0,"random.seed","train.py:6",{seed}]\\n' for process, seed in seeds))
random.seed(os.getpid())
"""
    assert training.run(script).one("seed")["argument"] == "5"


def test_files_of_the_same_name_and_line_are_told_apart_by_their_order(training: Training) -> None:
    for package in ("one", "other"):
        training.write(
            f"{package}/utils.py", "import random, time\ndef draw(): return random.Random(time.time()).random()"
        )
    script = "import one.utils, other.utils\nfor module in (one, other, one): print(module.utils.draw())"
    first = training.run(script, python_path=[training.directory])
    again = replayed(training, script, python_path=[training.directory])
    assert again.output == first.output != ""


def test_what_the_recording_does_not_hold_is_left_alone(training: Training) -> None:
    training.run("import random, time\nrandom.seed(time.time())")
    elsewhere = replayed(training, "import random, time\n\nrandom.seed(time.time())", name="elsewhere")
    of_another_type = replayed(training, "import random, time\nrandom.seed(time.time_ns())", name="type")
    more = "import random, time\nfor _ in range(3): random.seed(time.time())"
    assert replaced(elsewhere) == replaced(of_another_type) == []
    assert len(replaced(replayed(training, more, name="more"))) == 1


@pytest.mark.slow
def test_seeds_without_end_write_a_thousand_lines(training: Training) -> None:
    outcome = training.run("import random\nfor number in range(300000): random.Random(number)")
    assert len(outcome.of("seed")) == 1000
    count = outcome.one("seed_count")
    assert (count["call"], count["where"], count["count"]) == ("random.Random", "train.py:2", 300000)


def test_a_resumed_training_keeps_seeds_of_a_place_that_was_not_recorded_to_its_end(training: Training) -> None:
    training.run("import random\nfor number in range(0, 1200): random.Random(number)")
    resumed = replayed(training, "import random\nfor number in range(600, 1200): random.Random(number)")
    assert len(resumed.of("seed")) == 600
    assert replaced(resumed) == []


def test_places_without_end_are_bounded(training: Training) -> None:
    script = "import random\nfor number in range(10100): exec(compile('random.seed(1)', f'file{number}', 'exec'))"
    assert len(training.run(script).of("seed")) == 10000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n" * 100000,
        b"\n[" * 100000,
        b'\n["0","",0,"random.seed","train.py:2",' + b"[" * 30000 + b"]\n",
        b'\n["0","",0,"random.seed","train.py:2",{"float":"' + b"0" * 100000 + b'"}]\n',
        b'\n["0","",0,"random.seed","train.py:2",{"dtype":"|O","bytes":"00"}]\n',
        b'\n["0","",0,"random.seed","train.py:2",{"float":"00"}]\n',
        b'\n["0","",0,"random.seed","train.py:2",' + b"9" * 10000 + b"]\n",
        b'\n["0","",0,"random.seed","train.py:2",\xff]\n',
        b'\n["0","",0,"random.seed","train.py:2",',
    ],
)
def test_a_hostile_seeds_file_changes_nothing(training: Training, content: bytes) -> None:
    script = "import random\nrandom.seed(2.5); print(random.random())"
    expected = training.run_bare(script).output
    training.run_directory.mkdir()
    (training.run_directory / "seeds.jsonl").write_bytes(content)
    outcome = training.run(script)
    assert (outcome.output, outcome.errors, replaced(outcome)) == (expected, "", [])


def test_looking_a_seed_up_takes_the_same_memory_as_recording_it(tmp_path: Path) -> None:
    line, peaks = '["0","",0,"random.seed","train.py:2",12345', []
    for name in ("recorded", "replayed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shim.plan").write_bytes(bytes(2048))
        seeds = SeedsByProcess()
        seeds.take(b'{"k":"seed","p":"0","call":"random.seed","where":"train.py:2","value":12345}\n')
        if name == "replayed":
            (tmp_path / name / "seeds.jsonl").write_bytes(b"".join(seeds.lines()))
        recorded = RecordedSeeds(str(tmp_path / name))
        assert recorded.agrees(line)  # makes what both keep
        tracemalloc.start()
        try:
            recorded.agrees(line)
            peaks.append(tracemalloc.get_traced_memory())
        finally:
            tracemalloc.stop()
        assert recorded.agrees(line.replace("12345", "12344")) is (name == "recorded")
    assert peaks[0] == peaks[1]


TRANSPARENT = training_text("transparent_random.py")


def test_nobody_can_tell_that_random_is_watched(any_training: Training) -> None:
    bare = any_training.run_bare(TRANSPARENT)
    outcome = any_training.run(TRANSPARENT)
    assert bare.errors == outcome.errors == ""
    assert outcome.output == bare.output


NUMPY = training_text("transparent_numpy.py")


def test_nobody_can_tell_that_numpy_is_watched(training: Training) -> None:
    bare = training.run_bare(NUMPY)
    outcome = training.run(NUMPY)
    assert bare.errors == outcome.errors == ""
    assert outcome.output == bare.output


@pytest.mark.slow
@pytest.mark.tf114
def test_seeds_of_tensorflow_1_14_are_given_again(tmp_path: Path) -> None:
    from tests.interpreters import tf114_python

    training = Training(tmp_path, python=str(tf114_python()))
    script = training_text("seeded_tensorflow1.py")
    first = training.run(script)
    again = replayed(training, script)
    assert again.output == first.output != ""
    assert [line["call"] for line in replaced(again)] == [
        "tensorflow.set_random_seed",
        "numpy.random.seed",
        "numpy.random.RandomState",
    ]


PLAIN: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50)
)
PLAIN |= st.binary(max_size=50) | st.binary(max_size=50).map(bytearray) | st.text(st.characters(categories=["Cs"]))
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple))


@pytest.mark.slow
@given(NESTED)
def test_a_seed_is_built_again_from_its_json(value: Any) -> None:
    try:
        content = encode(value)
    except NotExact:
        return
    text = json.dumps(content)
    assert len(text) <= MAX_TEXT
    again = decode(json.loads(text))
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        numpy.int64(-3),
        numpy.uint8(3),
        numpy.float32(0.1),
        numpy.bool_(True),
        numpy.array(7, dtype=numpy.uint32),
        numpy.arange(6, dtype=">i8").reshape(2, 3),
        numpy.array([], dtype=numpy.uint64),
        float("nan"),
    ],
)
def test_a_number_of_numpy_is_built_again(value: Any) -> None:
    again = decode(json.loads(json.dumps(encode(value))))
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    assert numpy.asarray(again).dtype == numpy.asarray(value).dtype


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: 2},
        {1},
        1 << 100000,
        "x" * MAX_TEXT,
        b"x" * MAX_TEXT,
        [[[[[[[[[[1]]]]]]]]]],
        list(range(MAX_TEXT)),
        numpy.zeros(MAX_TEXT),
        numpy.array(["text"]),
        numpy.array([None]),
        type("Own", (int,), {})(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_built_again_is_only_described(value: Any) -> None:
    with pytest.raises(NotExact):
        encode(value)


def test_recorded_seeds_are_found_wherever_they_stand(tmp_path: Path) -> None:
    lines = [f'["0","",{number},"call","file:1",{number * 7}]\n' for number in range(20000)]
    (tmp_path / "seeds.jsonl").write_text("\n" + "".join(lines))
    recorded = RecordedSeeds(str(tmp_path))
    for number in (0, 1, 19999, 5, 10000, 2700, 2701, 2702):
        assert recorded.value(f'["0","",{number},"call","file:1",') == str(number * 7).encode()
    assert recorded.value('["0","",20000,"call","file:1",') is None
    assert recorded.holds(',"call","file:1",70000')
    assert not recorded.holds(',"call","file:1",70001')
