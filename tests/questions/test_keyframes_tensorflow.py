"""Questions to trainings by TensorFlow and Keras are answered from keyframes as from the first step, or refused."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.state.call_log import IS_FIRST, IS_MADE, calls_in, packed
from reprokit.run_files import keyframes
from tests.support import Reprokit

TRAININGS = Path(__file__).parents[1] / "trainings"
SEED = ("--keyed", "--seed", "keyframes")


def record(directory: Path, training: str, *options: str, interval: str = "7steps") -> Path:
    script, *arguments = training.split()
    command = [sys.executable, str(TRAININGS / script), *arguments]
    done = Reprokit(directory).run("record", "-o", "run", "--keyframes", interval, *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return directory / "run"


def ask(directory: Path, *words: str) -> dict[str, Any]:
    done = Reprokit(directory).run("ask", "run", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_log_of_calls_is_read_as_it_was_written() -> None:
    tensors = [("float32", (), b"\0\0\x80?"), None, ("int64", (300, 2), None)]
    first = packed(1, "train_step", tensors, {7: b"\1\0\0\0"}, is_made=True)
    second = packed(1, "", [], {}, is_made=False)
    assert (first[0], second[0]) == (IS_MADE | IS_FIRST, 0)
    calls = list(calls_in(first + second))
    assert [(call.function, call.name, call.is_made) for call in calls] == [
        (1, "train_step", True),
        (1, "train_step", False),
    ]
    assert (calls[0].tensors, calls[0].variables) == (tensors, {7: b"\1\0\0\0"})
    assert (calls[1].tensors, calls[1].variables) == ([], {})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed(1, "f", [("float32", (2,), b"12345678")], {}, is_made=False)[:-1], "cut short"),
        (packed(1, "", [], {}, is_made=False), "damaged"),  # of a function that no record names
        (packed(1, "f", [], {}, is_made=False).replace(b"\2", b"\x42", 1), "damaged"),
        (packed(1, "f", [None], {}, is_made=False)[:-1] + b"\x99\0", "damaged"),
    ],
)
def test_a_damaged_log_of_calls_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(calls_in(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "steps", "keyframe"),
    [
        ("keyframed_keras.py 8 plain", "38-39", 35),
        pytest.param("keyframed_keras.py 8 data", "38-39", 35, marks=pytest.mark.extended),
        pytest.param("keyframed_keras.py 16 noise", "16-17", 14, marks=pytest.mark.extended),
        ("keyframed_tensorflow.py 45", "38-39", 35),
        ("keyframed_gan.py eager 41", "38-39", 35),
        *[
            pytest.param(f"keyframed_gan.py {kind}", "38-39", 35, marks=pytest.mark.extended)
            for kind in ("function 41", "functions 41", "keras 50")
        ],
        pytest.param("keyframed_otherwise.py pair", "15-16", 14, marks=pytest.mark.extended),
    ],
)
def test_an_answer_from_a_keyframe_is_that_from_the_first_step(
    tmp_path: Path, training: str, steps: str, keyframe: int
) -> None:
    run = record(tmp_path, training, *SEED)
    assert not any(kept.lacks or kept.hindrance for kept in keyframes.read(run))
    asked = ("weights", "biases", "optimizer_variables", "--steps", steps)
    answer = ask(tmp_path, ",".join(asked[:3]), *asked[3:])
    assert (answer["keyframe"], len(answer["steps"]), answer["settled"]) == (keyframe, 2, True), answer
    assert [answer[kind] for kind in ("refused", "unproved", "parted", "differing")] == [0, {}, [], []]
    assert answer["added"] > 20
    assert answer["seen"] >= 8
    again = ask(tmp_path, ",".join(asked[:3]), *asked[3:], "--from-start")
    assert (again["keyframe"], again["added"], again["known"], again["differing"]) == (None, 0, answer["added"], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "why"),
    [
        ("keyframed_otherwise.py table", "uses a resource that is no variable"),
        pytest.param(
            "keyframed_otherwise.py python",
            "has an operation with a state of its own (EagerPyFunc)",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "keyframed_otherwise.py several", "fetches batches in numbers of its own", marks=pytest.mark.extended
        ),
        pytest.param("keyframed_otherwise.py eager", "outside of compiled functions", marks=pytest.mark.extended),
        pytest.param("keyframed_gan.py uneven 20", "do not update in turn", marks=pytest.mark.extended),
        pytest.param(
            "keyframed_tensorflow.py 20 hidden", "of its own (RandomStandardNormal)", marks=pytest.mark.extended
        ),
    ],
)
def test_what_no_fast_forward_leads_to_is_said(tmp_path: Path, training: str, why: str) -> None:
    """A state that no variable has, as of a table, a list, or a kernel, would be another behind the keyframe."""
    run = record(tmp_path, training)
    kept = keyframes.read(run)
    assert kept
    assert all(why in keyframe.hindrance for keyframe in kept), kept


@pytest.mark.slow
def test_a_script_that_decides_by_its_weights_is_refused(tmp_path: Path) -> None:
    """Losses and metrics are the recording's until the keyframe; weights are not."""
    record(tmp_path, "keyframed_otherwise.py weights", interval="10steps")
    done = Reprokit(tmp_path).run("ask", "run", "weights", "--steps", "30-31")
    assert done.returncode == 2, done.stdout
    assert "keyframe-refused: no answer from the keyframe of step 30: the replay is not that run" in done.stderr
    assert not (tmp_path / "run" / "tensors").exists()


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize(
    ("training", "typed"),
    [
        (
            "keyframed_tensorflow.py 45",
            "p step, float(loss), total, len(seen)\np float(tf.reduce_sum(average)), rows.random()\nq\n",
        ),
        (
            "keyframed_gan.py eager 41",
            "up\np step, float(mean_loss.result()), rows.random()\n"
            "p int(of_critic.iterations), int(of_generator.iterations), float(draws.normal(()))\nq\n",
        ),
    ],
)
def test_the_debugger_shows_at_a_keyframe_what_a_replay_from_the_first_step_shows(
    tmp_path: Path, training: str, typed: str
) -> None:
    record(tmp_path, training)
    shown = []
    for words in ((), ("--from-start",)):
        done = Reprokit(tmp_path).run("debug", "run", "--step", "38", *words, stdin=typed)
        assert done.returncode == 0, done.stderr
        assert ("from the keyframe of step 35" in done.stderr) is not bool(words)
        shown.append(re.findall(r"\(Pdb\) (\(.*\))", done.stdout))
    assert shown[0] == shown[1]
    assert len(shown[0]) == 2


@pytest.mark.slow
def test_a_killed_fit_goes_on_from_its_keyframe(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    command = [sys.executable, str(TRAININGS / "continued_keras.py")]
    done = reprokit.run("record", "-o", "first", "--keyframes", "5steps", "--", *command)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    before = (tmp_path / "log.txt").read_text()
    on = {"ON": "1"}
    done = reprokit.run("continue", "first", "-o", "second", environment=on)
    assert done.returncode == 0, done.stderr
    assert "steps 20 to 22 are the same in both runs, by the trail" in done.stderr
    log, history = (tmp_path / "log.txt").read_text(), (tmp_path / "history.txt").read_text()
    assert log.startswith(before)
    assert [int(line.split()[0]) for line in log.splitlines()] == [*range(1, 37)]
    assert reprokit.run("replay", "second", "-o", "again", environment=on).returncode == 0
    assert ((tmp_path / "log.txt").read_text(), (tmp_path / "history.txt").read_text()) == (log, history)
    done = reprokit.run("verify", "second", "again", environment=on)
    assert done.stdout.startswith("identical: "), done.stdout
