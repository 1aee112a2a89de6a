"""A trail that passes over steps: what it has, how two of them are compared, and what is said of the steps between."""

from __future__ import annotations

import json
import signal
import sys
from importlib import resources
from itertools import accumulate
from pathlib import Path

import jsonschema
import pytest

from reprokit.agent.pytorch.stride import BLOCK, LONGEST, MEASURED, OUTSIDE, TrailCost
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.run_files.trails import Series
from reprokit.verify.categories.divergences import SeriesDivergence, compared
from reprokit.verify.categories.trails import sides
from reprokit.verify.show.summary import holdings
from tests.support import Reprokit, training_text

pytestmark = pytest.mark.torch

STEPS, EVERY, ALWAYS = 120, 16, 16
LOOKED_AT = [*range(ALWAYS), *range(ALWAYS, STEPS, EVERY)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    """The command in a directory whose runs several tests compare."""
    return Reprokit(tmp_path_factory.mktemp("shared"))


def record(reprokit: Reprokit, run: str, every: int | str, *arguments: str, script: str = "pytorch_strided.py") -> None:
    """Of an equal training the tests have one run of each name."""
    if (reprokit.directory / run).exists():
        return
    path = reprokit.script(script, training_text(script))
    command = ["record", "--trail-every", str(every), "-o", run, "--", sys.executable, str(path), *arguments]
    done = reprokit.run(*command)
    assert done.returncode == 0, done.stderr


def series_of(reprokit: Reprokit, run: str) -> dict[str, Series]:
    trails_of_run = trails.read(RunDirectory(reprokit.directory / run))
    return {series.name: series for trail in trails_of_run for series in trail.series}


def compare(reprokit: Reprokit, *runs: str) -> SeriesDivergence:
    left, right = (
        sides(directory, list(trails.read(directory)))["0", "optimizer#0"]
        for directory in (RunDirectory(reprokit.directory / run) for run in runs)
    )
    return compared(left, right)


def trail_line(reprokit: Reprokit, *runs: str) -> str:
    done = reprokit.run("verify", *runs)
    return next(line for line in done.stdout.splitlines() if line.startswith("trail "))


def differing(diff: SeriesDivergence) -> list[str]:
    """The quantities that differ, but for generators that no step draws from: these recordings have other ones."""
    return [name for name in diff.differing if not diff.is_idle(name)]


@pytest.mark.slow
def test_a_change_in_a_step_passed_over_is_found_at_the_next(shared: Reprokit) -> None:
    record(shared, "each", 1, str(STEPS), "-1")
    record(shared, "changed", EVERY, str(STEPS), "100")
    series = series_of(shared, "changed")["optimizer#0"]
    steps = list(series.steps())
    assert (series.every, series.count) == (EVERY, STEPS)
    assert [step.number for step in steps if not step.passed] == LOOKED_AT
    assert all(step.loss and step.torch and step.batch and step.gradients for step in steps if not step.passed)
    last = steps[-1]
    assert [step.number for step in steps if step.passed and step.parameters] == [last.number]
    assert (last.loss, last.torch, last.batch, last.gradients) == (None,) * 4
    diff = compare(shared, "each", "changed")
    assert diff.every == EVERY
    assert (differing(diff)[0], diff.step(differing(diff)[0]), diff.looked_at_before(112)) == ("before", 112, 96)
    line = trail_line(shared, "each", "changed")
    assert "identical in the steps up to 96 that both trails have; they part by step 112" in line
    assert "--trail-every 1" in line


@pytest.mark.slow
def test_strides_that_differ_are_compared_in_common_steps_and_a_replay_obeys(shared: Reprokit) -> None:
    record(shared, "some", EVERY, str(STEPS), "-1")
    record(shared, "few", 4 * EVERY, str(STEPS), "-1")
    record(shared, "each", 1, str(STEPS), "-1")
    for pair in (("some", "few"), ("few", "some"), ("some", "each"), ("each", "few")):
        diff = compare(shared, *pair)
        assert differing(diff) == []
        assert diff.compared_steps == STEPS  # the parameters of the last step are in all of them
    for options, every in (([], EVERY), (["--trail-every", "1"], 1)):
        done = shared.run("replay", *options, "-o", f"replay{every}", "some")
        assert done.returncode == 0, done.stderr
        assert json.loads((shared.directory / f"replay{every}" / "run.json").read_text())["trail_every"] == every
        verified = shared.run("verify", "some", f"replay{every}")
        assert verified.returncode == 0, verified.stdout
        assert f"note: the trails have one in {EVERY} steps" in verified.stdout
        assert series_of(shared, f"replay{every}")["optimizer#0"].every == every


@pytest.mark.slow
def test_replays_of_each_step_tell_which_it_is(shared: Reprokit) -> None:
    record(shared, "some", EVERY, str(STEPS), "-1")
    record(shared, "changed", EVERY, str(STEPS), "100")
    for run in ("some", "changed"):
        assert shared.run("replay", "--trail-every", "1", "-o", f"{run}-each", run).returncode == 0
    assert "identical for 101 steps; at step 101" in trail_line(shared, "some-each", "changed-each")
    located = shared.run("locate", "some", "changed")
    assert located.returncode == 1
    assert "step 101" in located.stdout


@pytest.mark.slow
def test_questions_say_that_the_trail_has_some_steps_only(reprokit: Reprokit) -> None:
    record(reprokit, "run", EVERY, "200", "-1", "paced")  # so that the replay is ended before the training is over
    done = reprokit.run("ask", "run", "losses", "weights", "--steps", "98-99")
    assert f"the replay is that run in each of those steps that its trail has, one in {EVERY} of " in done.stdout
    assert "0 values are proved" in done.stdout
    assert "refused" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("proved")]


@pytest.mark.slow
def test_weights_that_change_after_the_last_step_are_not_taken_for_it(shared: Reprokit) -> None:
    record(shared, "later", EVERY, str(STEPS), "-1", "later")
    record(shared, "each", 1, str(STEPS), "-1")
    last = list(series_of(shared, "later")["optimizer#0"].steps())[-1]
    assert (last.number, last.passed, last.parameters) == (STEPS - 1, True, None)
    diff = compare(shared, "later", "each")
    assert differing(diff) == []
    assert diff.compared_steps == LOOKED_AT[-1] + 1


@pytest.mark.slow
def test_optimizers_that_update_in_turn_have_steps_of_their_own(reprokit: Reprokit) -> None:
    for run, every in (("each", 1), ("some", EVERY)):
        record(reprokit, run, every, script="pytorch_strided_pair.py")
    each, some = (series_of(reprokit, run) for run in ("each", "some"))
    assert each.keys() == some.keys() == {"optimizer#0", "optimizer#1"}
    for name, series in some.items():
        pairs = list(zip(each[name].steps(), series.steps(), strict=True))
        taken = [(left, right) for left, right in pairs if not right.passed]
        assert [right.number for _, right in taken] == [n for n in range(series.count) if n < ALWAYS or not n % EVERY]
        for left, right in taken[:-1]:
            assert (left.batch, left.loss, left.inputs) == (right.batch, right.loss, right.inputs), right.number
            assert (left.gradients, left.parameters) == (right.gradients, right.parameters), right.number


@pytest.mark.slow
def test_a_killed_training_keeps_what_was_looked_at(reprokit: Reprokit) -> None:
    script = training_text("pytorch_strided.py") + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    path = reprokit.script("killed.py", script)
    done = reprokit.run(
        "record", "--trail-every", str(EVERY), "-o", "run", "--", sys.executable, str(path), str(STEPS), "-1"
    )
    assert done.returncode == -signal.SIGKILL
    steps = [step for step in series_of(reprokit, "run")["optimizer#0"].steps() if not step.passed]
    assert [step.number for step in steps] == LOOKED_AT


@pytest.mark.parametrize("every", [1, 4, 16, 32])
def test_neighbors_of_a_step_are_steps_that_were_looked_at(every: int) -> None:
    series = Series.__new__(Series)
    series.every, series.always, series.skipped = every, ALWAYS, 0
    looked_at = [number for number in range(200) if number < ALWAYS or not number % every]
    for step in range(100):
        assert series.looked_at_from(step) == min(number for number in looked_at if number >= step)
        assert series.looked_at_before(step) == max([number for number in looked_at if number < step], default=-1)


@pytest.mark.parametrize("word", ["0", "3", "-1", "131072", "1.5", "two", "automatic"])
def test_a_stride_is_a_power_of_two(reprokit: Reprokit, word: str) -> None:
    done = reprokit.run("record", f"--trail-every={word}", "--", "true")
    assert done.returncode == 125
    assert "is not a power of two" in done.stderr
    assert not (reprokit.directory / ".reprokit").exists()


def test_a_trail_that_is_left_out_has_no_stride(reprokit: Reprokit, tmp_path: Path) -> None:
    done = reprokit.run("record", "--no-trail", "--trail-every", "16", "--", "true")
    assert "--trail-every is about the trail, which --no-trail leaves out" in done.stderr


def test_an_automatic_stride_is_the_least_power_of_two_that_keeps_the_trail_cheap() -> None:
    def stride(*nanoseconds: tuple[int, int]) -> int:
        cost = TrailCost()
        cost.marks["an optimizer"] = list(
            accumulate(nanoseconds, lambda total, one: (total[0] + one[0], total[1] + one[1]))
        )
        return cost.stride("an optimizer")

    def of_share(share: float) -> tuple[int, int]:
        of_block = 100_000_000
        return of_block, round((of_block * share - BLOCK * OUTSIDE) / (1 + share))

    assert [stride((0, 0), *[of_share(share)] * 5) for share in (0.02, 0.029, 0.031, 0.1, 0.5, 8)] == [
        1,
        1,
        2,
        4,
        32,
        LONGEST,
    ]
    slow, fast = of_share(8), of_share(0.1)
    assert stride((0, 0), slow, fast, slow, fast, fast) == 4  # a pause in a few steps says nothing
    assert (stride(), stride((0, 0)), stride((0, 0), (0, 0))) == (1, 1, 1)


@pytest.mark.slow
def test_an_automatic_stride_is_written_in_the_run_and_a_replay_obeys_it(shared: Reprokit) -> None:
    record(shared, "auto", "auto", "300", "-1")
    series = series_of(shared, "auto")["optimizer#0"]
    every = series.every
    assert (series.always, series.count, len(series.tables)) == (MEASURED, 300, 1)
    assert 1 < every <= LONGEST
    assert every & (every - 1) == 0
    ((shown,), _) = holdings(RunDirectory(shared.directory / "auto"), in_progress=False)
    assert f"300 steps (from step {MEASURED} on one in {every}) of 4 tensors" in str(shown)
    schema = json.loads((resources.files("reprokit") / "schemas/show.schema.json").read_text())
    jsonschema.validate(shown.document(), schema["properties"]["trails"]["items"])
    looked_at = [number for number in range(300) if number < MEASURED or not number % every]
    assert [step.number for step in series.steps() if not step.passed] == looked_at
    assert shared.run("replay", "-o", "auto-replay", "auto").returncode == 0
    again = series_of(shared, "auto-replay")["optimizer#0"]
    assert (again.every, again.always) == (every, MEASURED)
    verified = shared.run("verify", "auto", "auto-replay")
    assert verified.returncode == 0, verified.stdout
    assert f"note: the trails have one in {every} steps" in verified.stdout


@pytest.mark.slow
def test_an_automatic_stride_is_compared_with_any_other(shared: Reprokit) -> None:
    record(shared, "auto", "auto", "300", "-1")
    record(shared, "auto-changed", "auto", "300", "200")
    record(shared, "each-300", 1, "300", "-1")
    record(shared, "some-300", EVERY, "300", "-1")
    for pair in (("auto", "each-300"), ("some-300", "auto"), ("auto", "some-300")):
        diff = compare(shared, *pair)
        assert differing(diff) == []
        assert diff.compared_steps == 300
    every = max(series_of(shared, run)["optimizer#0"].every for run in ("auto", "auto-changed"))
    diff = compare(shared, "auto", "auto-changed")
    expected = 201 + -201 % every
    assert diff.step(differing(diff)[0]) == min(expected, 299)
    replayed = shared.run("replay", "--trail-every", "1", "-o", "auto-each", "auto-changed")
    assert replayed.returncode == 0
    assert compare(shared, "each-300", "auto-each").step("before") == 201


@pytest.mark.slow
def test_questions_seek_and_prove_the_steps_that_the_trail_has(reprokit: Reprokit) -> None:
    """A replay that is asked makes each step of its trail, and leaves the states of the generators of each."""
    record(reprokit, "run", EVERY, "400", "-1")
    first = reprokit.run("ask", "run", "weights,optimizer_variables", "--steps", "300-303").stdout
    assert "of what the trail sees, 0 values are proved" in first
    assert "the same in a second replay" in first
    after = reprokit.run("ask", "run", "weights,gradients", "--steps", "304-320:16").stdout
    assert "from the keyframe of step 300" in after
    assert "proved: the replay is that run in each of those steps that its trail has, one in 16 of " in after


@pytest.mark.slow
def test_keyframes_of_a_recording_with_a_stride_are_sought(reprokit: Reprokit) -> None:
    path = reprokit.script("train.py", training_text("pytorch_strided.py"))
    arguments = ["--keyframes", "50steps", "--trail-every", str(EVERY), "-o", "run"]
    assert reprokit.run("record", *arguments, "--", sys.executable, str(path), "200", "-1").returncode == 0
    asked = reprokit.run("ask", "run", "weights", "--steps", "176").stdout
    assert "from the keyframe of step 150" in asked
    assert "proved: the replay is that run" in asked
