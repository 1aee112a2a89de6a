"""What `reprokit profile` observes in a training: calls of functions, settings, loaders, orders of completion."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import reprokit
from reprokit.agent.operators.call_graph import CallCounts, describe
from reprokit.agent.operators.files import MAX_FILES
from tests.agent.training import Outcome, Training
from tests.interpreters import interpreter, tf114_python
from tests.support import rest_slow, training_text, wait_until

FUNCTIONS = {"functions": True, "operators": False, "steps": None, "seconds": None, "confirm": 0}
needs_tf114 = pytest.mark.skipif(tf114_python() is None, reason="REPROKIT_TF114_PYTHON names no Python")


@pytest.fixture(params=rest_slow(["3.13", "3.7", "3.11"]))
def each_training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """A training in three Pythons that differ in how they profile, as far as this machine has them."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here")
    return Training(tmp_path, python=python)


def profiled(training: Training, **profiling: Any) -> Training:
    return dataclasses.replace(training, profiling={**FUNCTIONS, **profiling})


def places(line: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(os.path.basename(place[0]), place[1], place[2]) for place in line["where"]]


def run(training: Training, script: str, *arguments: str, options: Sequence[str] = ()) -> Outcome:
    outcome = training.run(script, *arguments, options=options)
    assert outcome.of("warning") == []
    return outcome


CALLS = training_text("profiled_calls.py")


def test_calls_are_counted_with_the_lines_of_the_user_s_code(any_training: Training) -> None:
    training = profiled(any_training)
    assert run(training, CALLS).status == 0
    (clock,) = training.observed_of("function", "time.time")
    assert clock["calls"] == 10
    assert clock["where"] == [[str(training.directory / "train.py"), 18, "main", 10]] or places(clock) == [
        ("train.py", 18, "main")
    ]
    (dumped,) = training.observed_of("function", "json.dumps")
    assert dumped["calls"] == 100  # in both threads
    assert places(dumped)[0] == ("train.py", 10, "work")
    (within,) = training.observed_of("function", "json.encoder.JSONEncoder.encode")
    assert ("train.py", 10, "work") in places(within)  # called by json, because of that line


def test_the_agent_and_what_imports_call_are_not_told(each_training: Training) -> None:
    training = profiled(each_training)
    run(training, CALLS)
    names = {line["name"] for line in training.observed_of("function")}
    assert not [name for name in names if "reprokit" in name or name.startswith(("importlib", "_lsprof"))]
    assert "work" not in {name.rpartition(".")[2] for name in names}


PROCESSES = training_text("profiled_processes.py")


@pytest.mark.slow
def test_every_process_has_its_file(each_training: Training) -> None:
    training = profiled(each_training)
    assert run(training, PROCESSES).status == 0
    for name, where in (
        ("json.dumps", ("train.py", 11, "encode")),
        ("json.loads", ("train.py", 19, "<module>")),
        ("base64.b64encode", ("<string>", 1, "<module>")),
        ("colorsys.rgb_to_hls", ("<string>", 1, "<module>")),
    ):
        assert where in places(training.observed_of("function", name)[0]), name
    (files,) = {len({line["file"] for line in training.observed()})}
    assert files >= 5  # the command, before and after exec, one or two of the pool, the fork, the subprocess


def test_processes_beyond_a_number_are_counted_only(training: Training) -> None:
    training = profiled(training)
    directory = training.run_directory / "profile"
    directory.mkdir(parents=True)
    for number in range(MAX_FILES - 1):
        (directory / f"other-{number}").touch()
    script = """
import json, os
for _ in range(20):
    child = os.fork()
    if child == 0:
        json.loads("[1]")
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert run(training, script).status == 0
    assert len({line["file"] for line in training.observed()}) == 1
    assert (directory / "more").stat().st_size == 20


def test_a_killed_process_leaves_what_was_seen_so_far(each_training: Training) -> None:
    training = profiled(each_training)
    script = (
        "import json\nkept = []\nwhile True:\n    kept = [[json.dumps([number])] for number in range(5000)], [kept]\n"
    )
    process = training.start(script)
    try:
        wait_until(lambda: training.observed_of("function", "json.dumps"), "what was observed")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert training.observed_of("function", "json.dumps")[0]["calls"] > 0


def test_a_disk_that_is_full_keeps_the_last_that_could_be_written(training: Training) -> None:
    training = profiled(training)
    script = """
import json, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
for _ in range(10):
    json.dumps({})
print("trained")
"""
    outcome = training.run(script)
    assert (outcome.status, outcome.output) == (0, "trained\n")
    assert [line["kind"] for line in training.observed()] == ["process"]  # of the start
    assert not list((training.run_directory / "profile").glob("*.new"))


# Trainings that profile themselves

OWN_CPROFILE = """
import cProfile, json
profile = cProfile.Profile()
profile.enable()
json.dumps({})
profile.disable()
names = [getattr(entry.code, "co_name", "") for entry in profile.getstats()]
print("dumps" in names, "seen" in dir())
"""
OWN_HOOK = """
import json, sys
seen = []
before = sys.getprofile()
sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
json.dumps({})
sys.setprofile(before)
json.dumps({})
print("dumps" in seen, before is not None)
"""


@pytest.mark.parametrize("script", [OWN_CPROFILE, OWN_HOOK], ids=["cProfile", "sys.setprofile"])
def test_a_training_that_profiles_itself_sees_what_it_sees_alone(any_training: Training, script: str) -> None:
    training = profiled(any_training)
    outcome = run(training, script)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "True False\n", "")
    notes = [line["text"] for line in training.observed_of("note")]
    hooks_go_together = script is OWN_HOOK and "3.12" <= _version(training) != "3.7"
    if not hooks_go_together:
        assert ["the training profiles itself" in note for note in notes] == [True]


def _version(training: Training) -> str:
    major, minor = training.observed_of("process")[0]["python"].split(".")[:2]
    return f"{major}.{int(minor):02}"


def test_cprofile_as_the_program_works(each_training: Training) -> None:
    training = profiled(each_training)
    training.write("train.py", "import json\njson.dumps({})\nprint('trained')\n")
    command = [training.python, "-m", "cProfile", "train.py"]
    outcome = training.command(command, training.environment())
    assert outcome.status == 0
    assert "trained" in outcome.output
    assert "dumps" in outcome.output


def test_a_tracer_goes_on_beside(each_training: Training) -> None:
    training = profiled(each_training)
    script = """
import json, sys
seen = set()
def trace(frame, event, argument):
    seen.add(frame.f_code.co_name)
sys.settrace(trace)
json.dumps({})
sys.settrace(None)
print("dumps" in seen)
"""
    assert run(training, script).output == "True\n"
    assert training.observed_of("function", "json.dumps")


@pytest.mark.slow
def test_code_that_is_made_without_end_is_not_followed(training: Training) -> None:
    training = profiled(training)
    script = """
for number in range(60_000):
    exec(compile("def made(): pass\\nmade()", "made", "exec"), {})
"""
    assert run(training, script).status == 0
    assert [note["text"] for note in training.observed_of("note") if "made as it runs" in note["text"]]


# Frameworks

TORCH = training_text("profiled_pytorch.py")


@pytest.mark.slow
def test_a_training_by_pytorch(training: Training) -> None:
    training = profiled(training)
    assert run(training, TORCH).status == 0
    assert places(training.observed_of("function", "torch.Tensor.index_put_")[0]) == [("train.py", 16, "<module>")]
    assert places(training.observed_of("function", "torch.Tensor.backward")[0]) == [("train.py", 14, "<module>")]
    (loss,) = training.observed_of("function", "torch._C._nn.cross_entropy_loss")
    assert (loss["calls"], places(loss)) == (8, [("train.py", 13, "<module>")])
    settings = {line["name"]: line["value"] for line in training.observed_of("setting") if "places" not in line}
    assert settings["torch.backends.cudnn.benchmark"] is True
    assert settings["torch.use_deterministic_algorithms"] is True
    assert settings["torch.use_deterministic_algorithms.warn_only"] is True
    assert settings["torch.get_num_threads"] >= 1
    set_at = {line["name"]: line["places"][0][1] for line in training.observed_of("setting") if "places" in line}
    assert set_at["torch.backends.cudnn.benchmark"] == 8
    assert set_at["torch.use_deterministic_algorithms"] == 7
    (loader,) = training.observed_of("loader")
    assert (loader["workers"], loader["generator"], loader["sampler"]) == (0, "default", "RandomSampler")
    assert training.observed_of("process")[0]["steps"] == 8


@pytest.mark.slow
def test_enough_steps_are_told_and_nothing_more_is_collected(training: Training) -> None:
    training = profiled(training, steps=3)
    assert run(training, TORCH).status == 0
    assert (training.run_directory / "profile" / "enough").exists()
    (backward,) = training.observed_of("function", "torch.Tensor.backward")
    assert backward["calls"] == 3
    assert training.observed_of("function", "torch.Tensor.index_put_") == []
    assert training.observed_of("setting", "torch.backends.cudnn.benchmark")


@pytest.mark.slow
def test_later_steps_are_looked_at_now_and_then(training: Training) -> None:
    training = profiled(training)
    script = TORCH.replace("(64,", "(2400,").replace("randn(64", "randn(2400")
    script = script.replace("torch.zeros(4)", "layer.eval()\ntorch.zeros(4)")
    assert run(training, script).status == 0
    (process,) = training.observed_of("process")
    (backward,) = training.observed_of("function", "torch.Tensor.backward")
    assert process["steps"] == 300
    assert process["sampled_steps"] < 150
    assert process["sampled_steps"] <= backward["calls"] + 1 <= process["sampled_steps"] + 2
    assert training.observed_of("function", "torch.Tensor.index_put_")  # as eval() was called before


def test_the_interrupt_that_ends_a_bounded_run_leaves_no_traceback(each_training: Training) -> None:
    training = profiled(each_training, seconds=3600)
    script = """
import os, signal
run = os.environ["REPROKIT_RUN"]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs jobs in the background has it ignored
open(run + "/profile/enough", "w").close()
os.kill(os.getpid(), signal.SIGINT)
while True:
    pass
"""
    outcome = training.run(script)
    assert outcome.status in (-signal.SIGINT, 1, 130)  # as Python's version has it
    assert outcome.errors == ""


def test_a_worker_that_loses_the_interrupted_process_leaves_no_traceback(each_training: Training) -> None:
    training = profiled(each_training, steps=3600)
    script = """
import os, sys
def lose():
    if os.fork() == 0:
        try:
            raise ConnectionResetError(104, "lost")
        except ConnectionResetError:
            sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(0)
    os.wait()
lose()
print("enough", file=sys.stderr, flush=True)
open(os.environ["REPROKIT_RUN"] + "/profile/enough", "w").close()
lose()
"""
    before, _, after = training.run(script).errors.partition("enough\n")
    assert before.endswith("ConnectionResetError: [Errno 104] lost\n")
    assert after == ""


KERAS = training_text("profiled_keras.py")


@pytest.mark.slow
def test_a_training_by_keras(training: Training) -> None:
    training = profiled(training)
    assert run(training, KERAS).status == 0
    assert training.observed_of("process")[0]["steps"] == 8
    settings = {line["name"]: line for line in training.observed_of("setting") if "places" not in line}
    assert settings["tf.config.experimental.enable_op_determinism"]["value"] is True
    assert settings["tf.config.threading.intra_op"]["value"] == 2
    (parallel,) = training.observed_of("loader", "tf.data.Dataset.map")
    assert (parallel["workers"], parallel["deterministic"], places_of(parallel)) == ("autotune", False, [11])
    (shuffled,) = training.observed_of("loader", "tf.data.Dataset.shuffle")
    assert (shuffled["seeded"], places_of(shuffled)) == (False, [12])
    (fit,) = training.observed_of("function", "keras.src.backend.tensorflow.trainer.TensorFlowTrainer.fit")
    assert places(fit) == [("train.py", 15, "<module>")]


def places_of(line: dict[str, Any]) -> list[int]:
    return [place[1] for place in line["where"]]


@pytest.mark.slow
@needs_tf114
def test_a_training_by_tensorflow_1(tmp_path: Path) -> None:
    training = profiled(Training(tmp_path, python=tf114_python() or ""))
    script = training_text("profiled_tensorflow1.py")
    assert run(training, script).status == 0
    assert training.observed_of("process")[0]["steps"] == 4
    (fit,) = training.observed_of("function", "tensorflow.python.keras.engine.training.Model.fit")
    assert places(fit) == [("train.py", 10, "<module>")]
    (parallel,) = training.observed_of("loader", "tf.data.Dataset.map")
    assert parallel["workers"] == 2
    (size,) = training.observed_of("setting", "tf.ConfigProto.intra_op_parallelism_threads")
    assert (size["value"], size["places"][0][1]) == (1, 12)


# Orders of completion

COMPLETION = training_text("profiled_completion.py")


def test_where_results_are_taken_as_they_come(each_training: Training) -> None:
    training = profiled(each_training)
    assert run(training, COMPLETION).status == 0
    found = {line["name"]: (line["where"][0][1], line["ordered"]) for line in training.observed_of("completion")}
    assert found == {
        "concurrent.futures.as_completed": (22, False),
        "concurrent.futures.wait": (25, False),
        "Pool.imap_unordered": (27, False),
        "Pool.map": (28, True),
        "Pool.apply_async(callback)": (29, False),
        "asyncio.as_completed": (14, False),
        "asyncio.sleep": (16, False),
        "os.wait": (36, False),
        "select.select": (37, False),
        "selectors.select": (40, False),
        "select.poll": (42, False),
        "asyncio.subprocess_exec": (45, False),
        "asyncio.sock_recv": (50, False),
    }


def test_variables_are_settings(training: Training) -> None:
    training = profiled(training)
    script = "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nos.environ['XLA_FLAGS'] = 'a\\nb'\n"
    training.run(script, TF_DETERMINISTIC_OPS="1")
    found = {line["name"]: (line["value"], line["where"]) for line in training.observed_of("setting")}
    assert found["TF_DETERMINISTIC_OPS"] == ("1", "environment")
    assert found["OMP_NUM_THREADS"] == ("2", "set by script")
    assert found["XLA_FLAGS"] == ("(another value)", "set by script")


def test_nothing_is_observed_without_being_asked_for(training: Training) -> None:
    outcome = training.run("import sys\nprint(any('observing' in name for name in sys.modules))\n")
    assert outcome.output == "False\n"
    assert not (training.run_directory / "profile").exists()


def test_two_functions_of_the_same_code_are_told_apart() -> None:
    """Code objects of two files may be equal."""
    source = "def same(): pass\n"
    first, second = (compile(source, name, "exec").co_consts[0] for name in ("one.py", "two.py"))
    assert first == second
    calls = CallCounts()
    calls.add([_Entry(first, 1), _Entry(second, 2)])
    assert sorted(calls.counts.values()) == [1, 2]
    assert list(describe(calls)) == []


def test_what_stands_in_for_a_framework_s_function_was_called_by_the_user_s_code() -> None:
    """The agent's own functions are set aside but for these."""
    (user,) = [part for part in compile("def train(): pass", "train.py", "exec").co_consts if hasattr(part, "co_name")]
    for place, callers in (("pytorch/events.py", [id(user)]), ("tensorflow/events.py", [id(user)]), ("journal.py", [])):
        file = f"{Path(reprokit.__path__[0])}/agent/{place}"
        (code,) = [part for part in compile("def call(): pass", file, "exec").co_consts if hasattr(part, "co_name")]
        calls = CallCounts()
        calls.add([_Entry(code, 1)], [user])
        assert list(calls.callees) == callers, place


class _Entry:
    """As cProfile has them."""

    def __init__(self, code: object, callcount: int) -> None:
        self.code, self.callcount = code, callcount
        self.calls = None


def test_the_lines_are_json_with_kind_and_key(training: Training) -> None:
    training = profiled(training)
    run(training, CALLS)
    (file,) = (training.run_directory / "profile").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    assert [line["key"] for line in lines] == list(range(len(lines)))
    assert file.stat().st_mode & 0o777 == 0o600
