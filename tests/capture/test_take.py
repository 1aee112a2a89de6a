"""The snapshot of a step of a past run: taken by a replay that the trail proves, or refused; and --on-nan note."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.core import trail_library
from reprokit.run.parts.noted import BadLoss, bad_steps, step_of
from reprokit.run_files.rundir import RunDirectory
from tests.support import Done, Reprokit
from tests.verify.runs import recording, trail

TRAININGS = Path(__file__).parents[1] / "trainings"
KEYFRAMED, TURNS_NAN = str(TRAININGS / "keyframed_loader.py"), str(TRAININGS / "turns_nan.py")
STEP = 17
# Of a snapshot: who wrote it, and when. The losses before a keyframe were not computed by a replay from there.
OTHERS = ("pid", "created", "check", "digest", "losses")


def header(snapshot: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((snapshot / "snapshot.json").read_text())
    return {name: value for name, value in content.items() if name not in OTHERS}


def take(directory: Path, step: int, *words: str, status: int = 0, **variables: str) -> Done:
    command = ("snapshot", "take", "run", "--step", str(step), *words)
    done = Reprokit(directory).run(*command, environment=variables)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("number", "count", "updates", "step"),
    [
        (7, 20, 20, 7),
        (7, 8, 7, 7),  # the last step was not finished
        (7, 20, 10, 3),  # two losses a step
        (7, 32, 10, 2),  # three, and two at the end that no update followed
        (7, 35, 10, None),  # by no rule
        (7, 8, 0, None),
    ],
)
def test_the_step_of_a_loss_is_known_where_all_steps_have_equally_many(
    number: int, count: int, updates: int, step: int | None
) -> None:
    assert step_of(BadLoss("", number, float("nan"), count), updates) == step


@pytest.mark.slow
@pytest.mark.torch
def test_a_taken_snapshot_is_the_same_from_a_keyframe_and_done_again(tmp_path: Path) -> None:
    command = [sys.executable, KEYFRAMED, "24", "0"]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--keyframes", "5steps", "--", *command)
    assert done.returncode == 0, done.stderr
    before = sorted((tmp_path / "run").rglob("*"))
    done = take(tmp_path, STEP, "-o", "near")
    assert "from the keyframe of step 15" in done.stderr
    assert "the trail proves that the replay was that run from step 15 to " in done.stdout
    take(tmp_path, STEP, "--from-start", "-o", "far")
    assert header(tmp_path / "near") == header(tmp_path / "far")
    near, far = (json.loads((tmp_path / name / "snapshot.json").read_text()) for name in ("near", "far"))
    assert near["losses"] == far["losses"][15:]
    assert (near["step"], near["trigger"]["condition"]) == (STEP, "asked")
    assert sorted((tmp_path / "run").rglob("*")) == before
    assert not list(tmp_path.glob(".take-*"))
    again = Reprokit(tmp_path).run("snapshot", "reproduce", "near", "--", *command)
    assert again.returncode == 0, again.stdout + again.stderr
    explained = Reprokit(tmp_path).run("snapshot", "explain", "near", "--", *command)
    assert explained.returncode == 2
    assert "nothing to explain" in explained.stderr
    for step, words, said in [
        (STEP, ("-o", "near"), "is there already"),
        (STEP, ("-o", "no/where"), "nothing can be written beside"),
        (24, ("-o", "other"), "has no step 24: its last one is 23"),
        (10**9, ("-o", "other"), "its last one is 23"),
    ]:
        done = take(tmp_path, step, *words, status=2)
        assert "snapshot-not-taken" in done.stderr
        assert said in done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.torch
def test_a_step_of_gradients_that_several_batches_add_up_is_taken_with_all_of_them(tmp_path: Path) -> None:
    for words, verbs in [((), ("reproduce",)), (("5",), ("reproduce", "explain", "minimize"))]:
        directory = tmp_path / "-".join(("run", *words))
        directory.mkdir()
        command = [sys.executable, str(TRAININGS / "taken_accumulated.py"), "loader", *words]
        done = Reprokit(directory).run("record", "-o", "run", "--", *command)
        assert done.returncode == 0, done.stderr
        found = take(directory, 5, "-o", "taken").stdout
        assert ("the loss is nan" if words else "nothing was found wrong") in found
        for verb in verbs:
            again = Reprokit(directory).run("snapshot", verb, "taken", "--", *command)
            assert again.returncode == 0, again.stdout + again.stderr
            assert "gradients  4 of 4 are bitwise as captured" in again.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_what_is_noted_leads_to_the_step_that_began_it(tmp_path: Path) -> None:
    """The snapshot is the very one that --on-nan capture takes, also where the trail has one in eight steps."""
    command = [sys.executable, TURNS_NAN, "root_at_zero"]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--on-nan", "note", "--trail-every", "8", "--", *command)
    assert done.returncode == 0
    assert "warning: step 4: the loss is nan, the first that is not finite; the training went on" in done.stderr
    assert "reprokit snapshot take run --step 4 -o step-4" in done.stderr
    facts = Reprokit(tmp_path).facts("run")
    assert facts["capture"]["action"] == "note"
    assert not facts["snapshots"]
    late = take(tmp_path, 4, "-o", "late").stdout
    assert "was not finite before the step" in late
    assert "an earlier step began it: reprokit snapshot take run --step 3 -o DIR" in late
    assert "reprokit snapshot explain" in take(tmp_path, 3, "-o", "taken").stdout
    captured = Reprokit(tmp_path).run("replay", "--on-nan", "capture", "-o", "captured", "run")
    assert captured.returncode == 123
    digests = [
        json.loads((tmp_path / path / "snapshot.json").read_text())["digest"]
        for path in ("taken", "captured/snapshots/step-00000003")
    ]
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.torch
def test_behind_a_step_that_a_scaler_left_out_no_step_is_said_to_have_the_loss(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "noted_scaled.py")]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--on-nan", "note", "--", *command)
    assert "warning: loss 6 (they begin with 0) is nan, the first that is not finite" in done.stderr
    assert "reprokit snapshot take run --step 6 -o step-6" in done.stderr
    late = take(tmp_path, 6, "-o", "late").stdout
    assert "an earlier step began it: reprokit snapshot take run --step 5 -o DIR" in late


@pytest.mark.slow
@pytest.mark.torch
def test_a_replay_that_is_another_run_gives_no_snapshot(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    text = (TRAININGS / "pytorch_long.py").read_text()
    script.write_text(text)
    done = Reprokit(tmp_path).run("record", "-o", "run", "--", sys.executable, str(script), environment={"WHOLE": "12"})
    assert done.returncode == 0, done.stderr
    script.write_text(text.replace("lr=0.1", "lr=0.2"))
    done = take(tmp_path, 5, "-o", "taken", status=2)
    assert "the replay is not that run from step " in done.stderr
    assert not (tmp_path / "taken").exists()
    script.write_text(text.replace("range(", "range(0 * "))
    done = take(tmp_path, 5, "-o", "taken", status=2)
    assert "the replay came to no update of step 5" in done.stderr


@pytest.mark.slow
@pytest.mark.tensorflow
def test_of_keras_the_step_is_noted_and_any_one_is_taken(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "keras_noted.py")]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--on-nan", "note", "--", *command)
    assert "warning: step 5: what it returned, or a gradient, is not finite, the first that was seen" in done.stderr
    assert "reprokit snapshot take run --step 5 -o step-5" in done.stderr
    assert "the loss is inf" in take(tmp_path, 5, "-o", "taken").stdout
    assert "has no step 12: its last one is 11" in take(tmp_path, 12, "-o", "none", status=2).stderr


@pytest.mark.extended
@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["returned", "pair", "metric", "eager", "scaled"])
def test_the_first_bad_step_of_a_loop_of_tensorflow_is_noted(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, str(TRAININGS / "tensorflow_noted.py"), kind]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--on-nan", "note", "--", *command)
    assert done.returncode == 0, done.stderr
    if kind == "scaled":
        assert "not finite" not in done.stderr
    elif kind == "metric":
        assert "warning: step 17: a weight behind it is not finite, the first that was seen" in done.stderr
        assert "reprokit replay --on-nan capture run" in done.stderr
    else:
        assert "warning: step 9: what it returned, or a gradient, is not finite, the first that was seen" in done.stderr
        assert "reprokit snapshot take run --step 9 -o step-9" in done.stderr
        assert "snapshot explain" in take(tmp_path, 9, "-o", "taken").stdout


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, []),
        ({5: trail_library.NOT_FINITE, 3: trail_library.RUINED}, [(3, "0", True)]),
        ({3: trail_library.NOT_FINITE | trail_library.RUINED}, [(3, "0", False)]),
    ],
)
def test_the_first_step_that_is_not_finite_is_read_from_the_trail(
    tmp_path: Path, flags: dict[int, int], found: list[tuple[int, str, bool]]
) -> None:
    building, table = recording(tmp_path / "run"), trail(8, ("kernel",))
    table.facts["framework"] = "tensorflow"
    for number, bits in flags.items():
        table.steps[number]["flags"] = bits
    building.tables = {"0": [table]}
    building.start()
    building.add("end")
    building.write()
    assert list(bad_steps(RunDirectory(building.path))) == found


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("training", "step", "keyframe"),
    [
        ("keyframed_keras.py 5 plain", 23, 21),
        *[
            pytest.param(training, 17, 14, marks=pytest.mark.extended)
            for training in ("keyframed_tensorflow.py 24", "keyframed_gan.py eager 24", "keyframed_gan.py function 24")
        ],
    ],
)
def test_a_step_of_tensorflow_is_the_same_from_a_keyframe_and_done_again(
    tmp_path: Path, training: str, step: int, keyframe: int
) -> None:
    script, *arguments = training.split()
    command = [sys.executable, str(TRAININGS / script), *arguments]
    done = Reprokit(tmp_path).run(
        "record", "-o", "run", "--keyed", "--seed", "taken", "--keyframes", "7steps", "--", *command
    )
    assert done.returncode == 0, done.stderr
    done = take(tmp_path, step, "-o", "near")
    assert f"from the keyframe of step {keyframe}" in done.stderr
    assert f"the trail proves that the replay was that run from step {keyframe} to " in done.stdout
    take(tmp_path, step, "--from-start", "-o", "far")
    assert header(tmp_path / "near") == header(tmp_path / "far")
    again = Reprokit(tmp_path).run("snapshot", "reproduce", "near", "--", *command)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "found", "verb"),
    [
        ("function", "asked for; nothing was found wrong", "reproduce"),
        pytest.param("ruined", "is not finite after the update", "", marks=pytest.mark.extended),
        pytest.param("not-finite", "gradient of ", "explain", marks=pytest.mark.extended),
        pytest.param("several-bad", "gradient of ", "explain", marks=pytest.mark.extended),
        *[
            pytest.param(kind, "asked for; nothing was found wrong", "reproduce", marks=pytest.mark.extended)
            for kind in ("eager", "eager-fit", "xla", "xla-fit", "pair", "scaled", "several", "fetched", "ragged")
        ],
        ("accumulated", "asked for; nothing was found wrong", "reproduce"),
        *[
            pytest.param(
                f"accumulated{kind}", "asked for; nothing was found wrong", "reproduce", marks=pytest.mark.extended
            )
            for kind in ("-apart", "-eagerly")
        ],
        *[
            pytest.param(f"accumulated{kind} bad", "gradient of ", "explain", marks=pytest.mark.extended)
            for kind in ("", "-apart", "-eagerly")
        ],
    ],
)
def test_steps_of_tensorflow_are_taken_from_graphs_that_stay_as_they_were(
    tmp_path: Path, kind: str, found: str, verb: str
) -> None:
    command = [sys.executable, str(TRAININGS / "taken_tensorflow.py"), *kind.split()]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--", *command)
    assert done.returncode == 0, done.stderr
    assert found in take(tmp_path, 5 if "accumulated" in kind else 9, "-o", "taken").stdout
    if verb:
        again = Reprokit(tmp_path).run("snapshot", verb, "taken", "--", *command)
        assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("fetched-twice", "fetches its batches itself"),
        pytest.param("drawn", "draws random numbers", marks=pytest.mark.extended),
        pytest.param("mirrored", "replicas", marks=pytest.mark.extended),
    ],
)
def test_why_a_step_of_tensorflow_is_not_taken_is_said(tmp_path: Path, kind: str, why: str) -> None:
    command = [sys.executable, str(TRAININGS / "taken_tensorflow.py"), kind]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--", *command)
    assert done.returncode == 0, done.stderr
    assert why in take(tmp_path, 3, "-o", "taken", status=2).stderr
