"""A question is answered from a keyframe with the bits that a replay from the first step has, or it is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.state.generator_log import states_in
from reprokit.core.errors import RunDamaged
from reprokit.model.question import KeyframesAsked
from reprokit.questions import left_keyframes
from reprokit.run import agent_lines
from reprokit.run_files import keyframes
from tests.questions.asking import asked
from tests.questions.test_resume_frameworks import TRAINERS
from tests.support import LIMIT, Done, Reprokit

TRAININGS = Path(__file__).parents[1] / "trainings"
ASKED = ("weights,gradients,losses,optimizer_variables", "--steps", "38-39")


def record(
    directory: Path, training: str, interval: str = "7steps", *options: str, python: object = sys.executable
) -> Path:
    script, *arguments = training.split()
    command = [str(python), str(TRAININGS / script), *arguments]
    done = Reprokit(directory).run("record", "-o", "run", "--keyframes", interval, *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return directory / "run"


def ask(directory: Path, *words: str, status: int = 0) -> dict[str, Any]:
    done = Reprokit(directory).run("ask", "run", *ASKED, *words, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def debug(directory: Path, *typed: str, words: Sequence[str] = (), status: int = 0) -> Done:
    text = "".join(f"{line}\n" for line in typed) or "\n"
    done = Reprokit(directory).run("debug", "run", "--step", "38", *words, stdin=text)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that main answers are asked of: no question leaves anything in it."""
    directory = tmp_path_factory.mktemp("loop")
    record(directory, "keyframed_loop.py 40")
    return directory


def assert_answers_are_alike(directory: Path) -> None:
    answer = ask(directory)
    assert (answer["keyframe"], answer["steps"], answer["proved_steps"]) == (35, [38, 39], 5), answer
    assert answer["added"] > 10
    assert [answer[kind] for kind in ("refused", "unproved", "parted")] == [0, {}, []]
    again = ask(directory, "--from-start")
    assert (again["keyframe"], again["added"], again["known"], again["differing"]) == (None, 0, answer["added"], [])


def test_an_answer_from_a_keyframe_is_that_from_the_first_step(loop: Path) -> None:
    assert_answers_are_alike(loop)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param("keyframed_loop.py 40 grouped", marks=pytest.mark.extended),
        pytest.param("keyframed_loader.py 40 0", marks=pytest.mark.extended),
        pytest.param("keyframed_loader.py 40 2", marks=pytest.mark.slow),
        pytest.param("keyframed_endless.py 40", marks=pytest.mark.extended),
        pytest.param("keyframed_pair.py 40", marks=pytest.mark.extended),
    ],
)
def test_so_it_is_in_other_trainings(tmp_path: Path, training: str) -> None:
    record(tmp_path, training)
    assert_answers_are_alike(tmp_path)


def test_the_debugger_stops_in_a_step_of_the_recorded_run(loop: Path) -> None:
    shown = debug(loop, "p step", "n", "p step", "q")
    assert "step 38 begins" in shown.stderr
    assert "-> schedule.step()\n(Pdb) 37\n" in shown.stdout
    assert shown.stdout.endswith("the replay was that run in each of the steps 35 to 37\n")


def test_the_snapshot_of_a_step_of_the_recorded_run_is_taken(loop: Path) -> None:
    done = Reprokit(loop).run("snapshot", "take", "run", "--step", "37", "-o", "taken")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from the keyframe of step 35" in done.stderr
    assert "the trail proves that the replay was that run from step 35 to " in done.stdout
    header = json.loads((loop / "taken" / "snapshot.json").read_text())
    assert (header["step"], header["trigger"]["condition"]) == (37, "asked")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", pytest.param("fused", marks=pytest.mark.extended)])
def test_updates_that_a_gradient_scaler_skipped_are_skipped_until_the_keyframe(tmp_path: Path, kind: str) -> None:
    """With them autocast, accumulated gradients, an average of the weights, and schedules, one of them by losses."""
    run = record(tmp_path, f"keyframed_scaled.py 60 {kind}")
    (draws,) = (run / "keyframes").glob("*.draws")
    updates = list(states_in(draws.read_bytes()))[:40]
    assert updates[0][1] is (kind == "clip")
    count = sum(is_skipped for _, is_skipped in updates)
    assert count > 4 if kind == "clip" else count == 0  # a fused one skips by itself
    answer = ask(tmp_path)
    assert (answer["keyframe"], answer["steps"], answer["refused"], answer["unproved"]) == (35, [38, 39], 0, {})
    again = ask(tmp_path, "--from-start")
    assert (again["known"], again["differing"]) == (answer["added"], [])


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
@pytest.mark.parametrize("training", ["keyframed_lightning.py 48", "keyframed_transformers.py 48"])
def test_trainers_are_fast_forwarded_with_what_they_do_beside_their_steps(tmp_path: Path, training: str) -> None:
    record(tmp_path, training, python=TRAINERS)
    answer = ask(tmp_path)
    assert (answer["keyframe"], answer["steps"], answer["refused"], answer["unproved"]) == (35, [38, 39], 0, {})
    again = ask(tmp_path, "--from-start")
    assert (again["known"], again["differing"]) == (answer["added"], [])


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
def test_a_trainer_that_stops_early_by_its_losses_is_refused(tmp_path: Path) -> None:
    record(tmp_path, "keyframed_lightning.py 48 stopping", python=TRAINERS)
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 2, done.stdout
    assert "the script ended before it (exit status 0)" in done.stderr


@pytest.mark.slow
def test_keyframes_are_kept_at_growing_distances_within_their_bytes(tmp_path: Path) -> None:
    run = record(tmp_path, "keyframed_loop.py 64", "2steps")
    kept = keyframes.read(run)
    steps = [keyframe.step for keyframe in kept]
    assert steps[-4:] == [58, 60, 62, 64]
    assert len(steps) < 16
    distances = [later - earlier for earlier, later in pairwise(steps)]
    assert distances == sorted(distances, reverse=True)
    assert not any(keyframe.lacks for keyframe in kept)
    size = sum(path.stat().st_size for path in (run / "keyframes").glob("*.safetensors"))
    second = tmp_path / "second"
    second.mkdir()
    run = record(second, "keyframed_loop.py 64", "2steps", "--keyframe-bytes", "1M")
    assert sum(path.stat().st_size for path in (run / "keyframes").glob("*.safetensors")) <= min(1 << 20, size)
    assert keyframes.read(run)[-1].step == 64


@pytest.mark.slow
def test_a_damaged_keyframe_is_no_answer(loop: Path, tmp_path: Path) -> None:
    run = shutil.copytree(loop / "run", tmp_path / "run")
    shards = sorted((run / "keyframes").glob("*.safetensors"))
    data = bytearray(shards[-1].read_bytes())
    data[-5] ^= 1
    shards[-1].write_bytes(data)
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 2
    assert "keyframe-refused: no answer from the keyframe of step 35: the keyframe of step 35 is damaged" in done.stderr
    assert "--from-start" in done.stderr
    os.unlink(shards[-1])
    assert ask(tmp_path)["keyframe"] == 28  # of those whose files are there
    index = next((run / "keyframes").glob("*.jsonl"))
    index.write_bytes(index.read_bytes().replace(b'"updates":28', b'"updates":27'))
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 0
    assert "from the first step: " in done.stderr
    assert "was altered since the run ended" in done.stderr


@pytest.mark.slow
def test_steps_that_tensors_and_the_trail_count_apart_are_not_sought_by_keyframes(tmp_path: Path) -> None:
    """By number alone, values of the fast-forward itself would be taken for those of later steps, and proved."""
    record(tmp_path, "keyframed_pair.py 40 uneven")
    done = Reprokit(tmp_path).run("ask", "run", "weights,losses", "--steps", "30-39")
    assert "from the first step: its optimizers do not update in turn" in done.stderr
    again = Reprokit(tmp_path).run("ask", "run", "weights,losses", "--steps", "30-39", "--from-start", "--json")
    assert json.loads(again.stdout)["differing"] == []


@pytest.mark.slow
def test_a_value_that_a_keyframe_lacks_and_no_trail_sees_is_not_proved(tmp_path: Path) -> None:
    """A second replay from the same keyframe would lack the same, and give the wrong value again."""
    record(tmp_path, "keyframed_hidden.py 20")
    words = ("run", "outputs", "--mode", "eval", "--steps", "16", "--json")
    done = Reprokit(tmp_path).run("ask", *words)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["keyframe"], answer["agreed"], answer["settled"]) == (14, 0, False)
    assert list(answer["unproved"]) == ["differs"]


@pytest.mark.slow
def test_a_script_that_decides_by_its_losses_is_refused(tmp_path: Path) -> None:
    """Until the keyframe its losses are others, so that the order in its epoch is another; the trail sees that."""
    record(tmp_path, "keyframed_loop.py 40 by-loss", "15steps")
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 2, done.stdout
    refused = "keyframe-refused: no answer from the keyframe of step 30: the replay is not that run at step 30"
    assert refused in done.stderr
    assert "--from-start replays from the first step" in done.stderr
    assert not (tmp_path / "run" / "tensors").exists()
    assert ask(tmp_path, "--from-start")["refused"] == 0


@pytest.mark.slow
def test_a_question_to_a_plain_recording_leaves_keyframes_for_the_next(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "keyframed_pair.py"), "120"]
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", *command).returncode == 0
    words = ("ask", "run", "weights,gradients", "--json", "--steps")
    meanwhile = Reprokit(tmp_path).start(*words, "109")
    first = Reprokit(tmp_path).run(*words, "109")
    said = first.stderr + meanwhile.communicate(timeout=LIMIT)[1]
    left = "keyframes of 4 steps are left in run/keyframes, for the next question: 27, 54, 81, 108"
    assert (meanwhile.returncode, said.count(left), said.count("no keyframes were left")) == (0, 1, 0), said
    second = json.loads(Reprokit(tmp_path).run(*words, "109-111").stdout)
    assert (second["keyframe"], second["differing"], second["settled"]) == (108, [], True)
    assert second["known"] * 2 == second["added"]
    assert sorted(path.stat().st_mode & 0o777 for path in (tmp_path / "run" / "keyframes").iterdir())[-1] == 0o600
    (index,) = (tmp_path / "run" / "keyframes").glob("*.jsonl")
    index.write_bytes(index.read_bytes().replace(b'"updates":216', b'"updates":215'))
    third = Reprokit(tmp_path).run(*words, "112")
    assert (third.returncode, json.loads(third.stdout)["keyframe"]) == (0, None)
    assert "was altered since the run ended" in third.stderr


@pytest.mark.slow
def test_a_keyframe_that_a_question_left_and_that_no_replay_comes_to_is_done_without(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "keyframed_dying.py"), "120"]
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", *command).returncode == 0
    for step in ("109", "110"):
        done = Reprokit(tmp_path).run("ask", "run", "gradients", "--steps", step, "--json")
        assert (done.returncode, json.loads(done.stdout)["keyframe"]) == (0, None), done.stderr
    assert "from the first step: no answer from the keyframe of step 108" in done.stderr


@pytest.mark.slow
def test_a_keyframe_that_is_too_large_for_a_question_names_no_option_that_it_lacks(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "pytorch_long.py")]
    recorded = Reprokit(tmp_path).run("record", "-o", "run", "--", *command, environment={"WHOLE": "9"})
    assert recorded.returncode == 0, recorded.stderr
    asked(tmp_path / "run", tmp_path / "replay", KeyframesAsked(steps=1, max_bytes=9, bound=left_keyframes.BOUND))
    (warning,) = agent_lines.read(tmp_path / "replay").warnings
    assert re.search(
        r"one has [0-9,]+ bytes, and 9 are allowed \(a quarter of the free disk, at most 2 GiB\)", str(warning)
    )


@pytest.mark.slow
def test_locate_leaves_keyframes_behind_and_starts_there_the_next_time(tmp_path: Path) -> None:
    for name, *more in (("left",), ("right", "noise-at=118")):
        command = [sys.executable, str(TRAININGS / "keyframed_loop.py"), "124", *more]
        options = ("-o", name, "--keyed", "--seed", "located")
        assert Reprokit(tmp_path).run("record", *options, "--", *command).returncode == 0
    answers = []
    for words in ((), (), ("--from-start",)):
        done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json", *words)
        assert done.returncode == 1, done.stderr
        answers.append((json.loads(done.stdout), done.stderr))
    for name in ("left", "right"):
        assert f"keyframes of 4 steps are left in {name}/keyframes, for the next question: 29, 58, 87" in answers[0][1]
        assert f"{name} was replayed from the keyframe of step 116" in answers[1][0]["notes"]
    assert len(answers[1][0]["notes"]) == 2
    found = [answer["processes"] for answer, _ in answers]
    assert found[0] == found[1] == found[2]
    assert found[0][0]["call"]["step"] == 118
    assert not list(tmp_path.glob(".locate-*"))


@pytest.mark.slow
def test_why_a_replay_did_not_come_to_its_keyframe_or_cannot_is_said(tmp_path: Path) -> None:
    record(tmp_path, "keyframed_dying.py 40")
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 2, done.stdout
    assert "the script ended before it (exit status 1): ValueError: the loss does not change; --from" in done.stderr
    for command in (["ask", "run", "weights", "--steps", "400"], ["debug", "run", "--step", "400"]):
        done = Reprokit(tmp_path).run(*command)
        assert done.returncode == 2, done.stdout
        assert "usage: run has 40 steps, by its trail: none is step 400" in done.stderr


@pytest.mark.slow
def test_what_no_fast_forward_leads_to_is_answered_from_the_first_step(tmp_path: Path) -> None:
    record(tmp_path, "keyframed_pair.py 40 scaled")
    done = Reprokit(tmp_path).run("ask", "run", *ASKED)
    assert done.returncode == 0, done.stderr
    assert "from the first step: it has several optimizers with a gradient scaler" in done.stderr
    assert "the replay is that run in each of " in done.stdout


@pytest.mark.extended
def test_the_operator_by_which_runs_part_is_located_from_their_keyframes(tmp_path: Path) -> None:
    seed = ("--keyed", "--seed", "located")
    record(tmp_path, "keyframed_loop.py 40", "7steps", *seed)
    os.rename(tmp_path / "run", tmp_path / "left")
    record(tmp_path, "keyframed_loop.py 40 noise-at=38", "9steps", *seed)
    answers = []
    for words in ((), ("--from-start",)):
        done = Reprokit(tmp_path).run("locate", "left", "run", "--pairs", "1", "--json", *words)
        assert done.returncode == 1, done.stderr
        answers.append(json.loads(done.stdout))
    notes = "\n".join(answers[0]["notes"])
    assert "left was replayed from the keyframe of step 35" in notes
    assert "run was replayed from the keyframe of step 36" in notes
    assert answers[0]["processes"] == answers[1]["processes"]
    assert answers[0]["processes"][0]["call"]["step"] == 38


@pytest.mark.slow
def test_a_replay_stops_in_the_debugger_and_what_is_changed_there_is_said(loop: Path) -> None:
    files = sorted(path for path in loop.rglob("*") if path.is_file())
    first = debug(loop, "p step, loss.item()", "n", "n", "p step, round(total, 3)", "q")
    assert "from the keyframe of step 35" in first.stderr
    assert "step 38 begins" in first.stderr
    assert re.search(r"-> schedule\.step\(\)\n\(Pdb\) \(37, [0-9.]+\)\n", first.stdout)
    assert first.stdout.endswith("the replay was that run in each of the steps 35 to 37\n")
    whole = debug(loop, "p step, loss.item()", "n", "n", "p step, round(total, 3)", "q", words=("--from-start",))
    shown = [line for line in first.stdout.splitlines() if line.startswith("(Pdb) (")]
    assert len(shown) == 2
    assert shown == [line for line in whole.stdout.splitlines() if line.startswith("(Pdb) (")]
    assert sorted(path for path in loop.rglob("*") if path.is_file()) == files
    changed = debug(loop, "net.last.bias.data.add_(1)", "c", words=("--when", "step > 37"))
    assert changed.stdout.splitlines()[-1].startswith("it is another run from step 39 on, by its ")


@pytest.mark.slow
def test_the_debugger_names_the_variables_that_the_keyframe_lacks(tmp_path: Path) -> None:
    record(tmp_path, "keyframed_values.py 40")
    shown = debug(tmp_path, "p raw, exact, notes, again", "q")
    (line,) = (line for line in shown.stderr.splitlines() if "which the keyframe lacks" in line)
    names = set(re.findall(r"keyframed_values\.py: ([^,]+)", line))
    assert names == {"losses", "text", "view", "means"}
    whole = debug(tmp_path, "p raw, exact, notes, again", "q", words=("--from-start",))
    assert "which the keyframe lacks" not in whole.stderr
    values = [next(line for line in each.stdout.splitlines() if "Decimal(" in line) for each in (shown, whole)]
    assert values[0] == values[1]


@pytest.mark.slow
def test_the_debugger_stops_at_a_line_or_says_that_it_did_not(loop: Path) -> None:
    lines = (TRAININGS / "keyframed_loop.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "total += " in text)
    there = debug(loop, "p step", "q", words=("--at", f"keyframed_loop.py:{line}", "--when", "step == 38"))
    assert "-> total += loss.item()\n(Pdb) 38\n" in there.stdout
    none = debug(loop, words=("--when", "step > 100"), status=2)
    assert "the replay did not stop" in none.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing\n", "line 1"),
        ('{"format":2}\n', "has format 2, not 1"),
        ('{"format":1}\n{"keyframe":"x"}\n', "line 2"),
        ('{"format":1}\n{"keyframe":7,"series":[1]}\n', "line 2"),
        ('{"format":1}\n{"keyframe":7,"series":{"optimizer#0":-5}}\n', "line 2"),
        ('{"format":1}\n{"keyframe":7,"written":[1e30,64]}\n', "line 2"),
        ("[" * 100_000 + "\n", "line 1"),
    ],
)
def test_an_index_that_is_none_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "keyframes").mkdir()
    (tmp_path / "keyframes" / ("0" * 16 + "-0.jsonl")).write_text(text)
    with pytest.raises(RunDamaged, match=problem) as refused:
        keyframes.read(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seal", ["", "nothing", "[" * 2000, json.dumps({"size": 11, "digest": "sha256:" + "0" * 64})])
def test_a_seal_beside_the_index_that_does_not_fit_is_one_line(tmp_path: Path, seal: str) -> None:
    (tmp_path / "keyframes").mkdir()
    (tmp_path / "keyframes" / ("0" * 16 + "-0.jsonl")).write_text('{"format":1}\n')
    assert keyframes.read(tmp_path) == []
    (tmp_path / "keyframes" / "seal.json").write_text(seal)
    with pytest.raises(RunDamaged, match=r"seal\.json: |keyframes was altered since the run ended") as refused:
        keyframes.read(tmp_path)
    assert "\n" not in str(refused.value)
    keyframes.write_seal(tmp_path)
    assert keyframes.read(tmp_path) == []
    (tmp_path / "keyframes" / "seal.json").unlink()
    (tmp_path / "keyframes" / "seal.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDamaged, match="seal"):
        keyframes.read(tmp_path)


def test_keyframes_without_all_of_their_files_are_none(tmp_path: Path) -> None:
    directory = tmp_path / "keyframes"
    directory.mkdir()
    lines: list[dict[str, Any]] = [{"format": 1, "process": "0"}]
    for step, shard in ((4, 0), (8, 1), (12, 2)):
        lines += [{"step": step, "shard": shard}, {"keyframe": step, "updates": step, "series": {}}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / ("0" * 16 + "-0.jsonl")).write_text(text + '{"keyframe": 16')  # cut short as it was written
    for shard in (0, 2):
        (directory / ("0" * 16 + f"-0-{shard:06d}.safetensors")).touch()
    assert [keyframe.step for keyframe in keyframes.read(tmp_path)] == [4, 12]


@pytest.mark.parametrize("interval", ["0steps", "5", "ten steps", "3days"])
def test_an_interval_is_steps_or_time(tmp_path: Path, interval: str) -> None:
    done = Reprokit(tmp_path).run("record", "--keyframes", interval, "--", "true")
    assert done.returncode == 125
    assert "give a whole number and a unit, as in 500steps, 30s, 10min or 2h" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_beside_an_optimizer_that_never_updates_a_keyframe_has_the_large_variables(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    command = [sys.executable, str(TRAININGS / "keyframed_late.py")]
    assert reprokit.run("record", "-o", "run", "--keyframes", "7steps", "--", *command).returncode == 0
    shown = []
    for words in ((), ("--from-start",)):
        done = reprokit.run("debug", "run", "--step", "16", *words, stdin="p step, float(large.sum())\nq\n")
        assert done.returncode == 0, done.stderr
        assert ("from the keyframe of step 14" in done.stderr) is not bool(words)
        shown.append(re.findall(r"\(Pdb\) (\(.*\))", done.stdout))
    assert shown[0] == shown[1]
    assert len(shown[0]) == 1
