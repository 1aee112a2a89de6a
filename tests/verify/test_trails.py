"""The comparator of trails: where two runs part, by what, and in which tensor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.tensorflow import trail as tensorflow_trail
from reprokit.core.difference import Difference, Role, Verdict
from reprokit.core.errors import RunDamaged, RunNotFound, RunTooNew
from reprokit.model.states import WITH_GRADIENTS, WITHOUT_TRAIL
from reprokit.run_files import rundir, trails
from reprokit.verify.categories import divergences
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from reprokit.verify.show.comparison import causes, document
from reprokit.verify.show.summary import document as document_of_run
from reprokit.verify.show.summary import summarize
from reprokit.verify.verdict import verdict_line
from tests.support import Reprokit, rest_slow, training_text
from tests.trails import UNSTEADY_PARAMETERS, Table, list_digest, write

from .runs import Building, kept_tensors, recording, replayed, trail

NAMES = ("fc1.weight", "fc1.bias", "fc2.weight")


def table(count: int, name: str = "optimizer#0") -> Table:
    return trail(count, NAMES, name)


def change(table: Table, first: int, *names: str, tensor: int = 0) -> None:
    """Make these quantities differ from a step on, of the tensors one."""
    for number in range(first, len(table.steps)):
        of_tensors = dict(zip(("gradients", "parameters"), kept_tensors(number, 3), strict=True))
        for name in names:
            if name in of_tensors:
                of_tensors[name][tensor] += 5
            else:
                table.steps[number][name] += 5
        table.steps[number].update({name: list_digest(digests) for name, digests in of_tensors.items()})
        if number in table.kept:
            table.kept[number] = (of_tensors["gradients"], of_tensors["parameters"])


Runs = tuple[Building, Building]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """A recording and its replay with an equal result."""
    left = recording(tmp_path / "left")
    left.start()
    left.losses(0.75, 0.5)
    left.add("end")
    return left, replayed(left, tmp_path / "right")


Write = Callable[..., Comparison]


@pytest.fixture
def compared(runs: Runs) -> Write:
    """Writes the trails of both runs, by process, seals them, and compares."""

    def write_and_compare(left: Any, right: Any, *, sealed: Sequence[bool] = (True, True)) -> Comparison:
        for building, found, seal in zip(runs, (left, right), sealed, strict=True):
            write_trails(building, {"0": found} if isinstance(found, Table) else found, sealed=seal)
        return compare(runs[0].path, runs[1].path)

    return write_and_compare


def write_trails(building: Building, found: dict[str, Any], *, sealed: bool = True) -> None:
    """A run with these tables, or lists of them, of its processes."""
    building.tables = {process: [tables] if isinstance(tables, Table) else tables for process, tables in found.items()}
    building.write(sealed=sealed)


def trail_of(comparison: Comparison) -> Difference:
    return next(child for child in comparison.tree.children if child.name == "trail")


def first(comparison: Comparison) -> Difference:
    found = comparison.tree.first()
    assert found is not None
    return found


def test_equal_trails_are_identical_and_named(compared: Write) -> None:
    comparison = compared(table(300), table(300))
    assert comparison.identical
    (leaf,) = trail_of(comparison).children
    assert (leaf.name, leaf.left) == ("trail of optimizer#0 of process 0", "300 steps")
    assert leaf.figures["known"] == ["batch", "torch", "python", "numpy", "loss", "gradients", "parameters"]


PARTINGS = [
    (
        ("gradients", "parameters"), 294, "gradients", "fc1.weight",
        "gradients of optimizer#0 of process 0: identical for 294 steps; at step 294 the gradients are the first to"
        " differ (fc1.weight); batch, random state and loss of that step are equal, so the cause is in the backward"
        " computation: a non-deterministic operation, or what changes gradients after it; not seen: the parameters"
        " before the step, buffers, what the script makes of the batch before the model gets it; 6 of the 6 steps from"
        " there on differ",
    ),
    (
        ("gradients", "parameters"), 120, "gradients", None,
        "gradients of optimizer#0 of process 0: identical for 120 steps; at step 120 the gradients are the first to"
        " differ; batch, random state and loss of that step are equal, so the cause is in the backward"
        " computation: a non-deterministic operation, or what changes gradients after it; not seen: the parameters"
        " before the step, buffers, what the script makes of the batch before the model gets it; 180 of the 180 steps"
        " from there on differ; which tensor is not known (digests of single tensors are kept of the first and the last"
        " 16 steps: end both runs right after it)",
    ),
    (
        ("batch", "loss", "gradients", "parameters"), 24, "batch", None,
        "batch of optimizer#0 of process 0: identical for 24 steps; at step 24 the batch is the first to differ; the"
        " cause is in the data, their order or augmentation, though the random states before it are equal; 276 of the"
        " 276 steps from there on differ",
    ),
    (
        ("torch", "loss", "gradients", "parameters"), 7, "random state", None,
        "random state of torch of optimizer#0 of process 0: identical for 7 steps; at step 7 the random state"
        " is the first to differ; the loss follows at step 7: another seed, or another number or order of random"
        " draws; 293 of the 293 steps from there on differ",
    ),
    (
        ("loss", "gradients", "parameters"), 8, "loss", None,
        "loss of optimizer#0 of process 0: identical for 8 steps; at step 8 the loss is the first to differ; batch and"
        " random state of that step are equal, so the cause is in the forward computation: a non-deterministic"
        " operation, or state that it reads; not seen: the parameters before the step, buffers, what the script makes"
        " of the batch before the model gets it; 292 of the 292 steps from there on differ",
    ),
    (
        ("parameters",), 0, "parameters", "fc1.weight",
        "parameters of optimizer#0 of process 0: at step 0, the first, the parameters are the first to differ"
        " (fc1.weight); batch, random state, loss and gradients of that step are equal, so the cause is in the update:"
        " the optimizer or its state; not seen: the initial parameters; 300 of the 300 steps from there on differ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("names", "step", "quantity", "tensor", "words"), PARTINGS)
def test_the_first_quantity_is_named_with_its_step_and_tensor_and_what_follows(
    compared: Write, names: tuple[str, ...], step: int, quantity: str, tensor: str | None, words: str
) -> None:
    other = table(300)
    change(other, step, *names)
    comparison = compared(table(300), other)
    assert verdict_line(comparison) == f"different: {words}"
    figures = document(comparison)["first_difference"]["figures"]
    assert (figures["step"], figures["quantity"], figures["tensor"]) == (step, quantity, tensor)
    assert figures["differing_steps"] == 300 - step


def test_a_random_state_is_named_with_what_follows_and_when(compared: Write) -> None:
    other = table(60)
    change(other, 5, "python")
    change(other, 9, "batch", "loss")
    comparison = compared(table(60), other)
    assert (
        "at step 5 the random state is the first to differ; the batch follows at step 9: " in first(comparison).detail
    )
    assert [leaf.name.partition(" of opt")[0] for leaf in trail_of(comparison).leaves() if leaf.verdict.differs] == [
        "random state of Python", "batch", "loss",
    ]  # fmt: skip


def test_the_trail_comes_before_the_losses_unless_they_part_earlier(runs: Runs, compared: Write) -> None:
    runs[1].lines[2]["value"] = {"dtype": "float32", "bits": "3f000001", "decimal": 0.5000000596046448}
    other = table(40)
    change(other, 1, "gradients")
    comparison = compared(table(40), other)
    assert first(comparison).name == "gradients of optimizer#0 of process 0"
    assert [child.name for child in comparison.tree.children if child.verdict.differs] == ["trail", "process metrics"]


def test_losses_that_part_before_the_trail_come_first(runs: Runs, compared: Write) -> None:
    for run in runs:
        run.lines.clear()
        run.numbers.clear()
        run.start()
        run.losses(*[0.5] * 40)
        run.add("end")
    runs[1].lines[2]["value"] = {"dtype": "float32", "bits": "3f000001", "decimal": 0.5000000596046448}
    other = table(40)
    change(other, 30, "gradients")
    assert first(compared(table(40), other)).name == "loss of process 0"


def test_of_several_ranks_and_optimizers_the_earliest_is_first(compared: Write) -> None:
    names = [("rank0", "optimizer#0"), ("rank0", "optimizer#1"), ("rank10", "optimizer#0"), ("rank10", "thread@Pool#0")]
    sides: list[dict[str, list[Table]]] = [{}, {}]
    for side in sides:
        for process, name in names:
            side.setdefault(process, []).append(table(50, name))
    change(sides[1]["rank0"][1], 9, "gradients", "parameters", tensor=1)
    change(sides[1]["rank10"][0], 9, "batch")
    change(sides[1]["rank0"][0], 11, "loss")
    comparison = compared(*sides)
    assert first(comparison).name == "batch of optimizer#0 of process rank10"
    found = trail_of(comparison)
    assert found.detail.endswith("(and 2 more optimizers or processes)")
    assert [child.verdict.differs for child in found.children] == [True, True, True, False]
    assert "(fc1.bias)" in found.children[1].detail


def test_runs_of_different_length_and_what_they_have_in_common(compared: Write) -> None:
    comparison = compared(table(120), table(300))
    leaf = first(comparison)
    assert leaf.detail == (
        "steps of optimizer#0 of process 0: identical for 120 steps, then the left run ends; the other has 300 steps"
    )
    assert (leaf.figures["quantity"], leaf.figures["step"], leaf.figures["steps"]) == ("steps", 120, [120, 300])


def test_a_trail_that_was_cut_off_is_compared_as_far_as_it_goes(runs: Runs, compared: Write) -> None:
    runs[1].run.signal, runs[1].run.exit_code, runs[1].run.trails = "SIGKILL", None, None
    cut = table(120)
    del cut.steps[-1]["gradients"], cut.steps[-1]["parameters"]
    comparison = compared(table(300), cut, sealed=(True, False))
    (leaf,) = trail_of(comparison).children
    assert leaf.verdict is Verdict.INFORMATION
    assert leaf.detail == "identical for 120 steps, as far as both go"
    assert first(comparison).name == "status"


def test_what_changed_while_it_was_read_is_no_difference(compared: Write) -> None:
    other = table(40)
    other.steps[20]["flags"] = UNSTEADY_PARAMETERS
    other.steps[20]["parameters"] += 1
    assert compared(table(40), other).identical


def test_a_quantity_that_one_run_does_not_know_is_a_difference(compared: Write) -> None:
    other = table(40)
    del other.steps[20]["batch"]
    leaf = first(compared(table(40), other))
    assert "at step 20 the batch is the first to differ" in leaf.detail
    assert "only the left run has it" in leaf.detail


def test_tensors_that_differ_though_their_step_does_not_are_named(compared: Write) -> None:
    other = table(40)
    other.kept[39][1][2] += 1
    leaf = first(compared(table(40), other))
    assert (leaf.figures["quantity"], leaf.figures["step"], leaf.figures["tensor"]) == ("parameters", 39, "fc2.weight")


def test_other_names_of_tensors_and_another_optimizer_are_differences(compared: Write) -> None:
    other = table(40)
    other.tensors[1] = ("fc1.biases", "float32", [10, 64])
    leaf = first(compared(table(40), other))
    assert (leaf.figures["quantity"], leaf.figures["tensor"]) == ("tensors", "fc1.biases")
    assert leaf.figures["tensors"] == ["fc1.biases", "fc1.bias"]


def test_a_series_or_a_process_in_one_run_only(compared: Write) -> None:
    comparison = compared({"0": [table(9), table(4, "optimizer#1")]}, {"0": table(9), "0/1": table(5)})
    names = [(leaf.name, leaf.verdict, leaf.left, leaf.right) for leaf in trail_of(comparison).leaves()][1:]
    assert names == [
        ("trail of optimizer#1 of process 0", Verdict.MISSING, "4 steps", ""),
        ("trail of optimizer#0 of process 0/1", Verdict.MISSING, "", "5 steps"),
    ]


def test_no_trails_are_not_recorded(compared: Write) -> None:
    assert trail_of(compared({}, {})).verdict is Verdict.NOT_RECORDED


def test_a_trail_in_one_run_only_is_missing(compared: Write) -> None:
    assert first(compared(table(9), {})).detail == "only the left run recorded a trail"


def test_a_trail_that_was_not_wanted_is_no_difference(runs: Runs) -> None:
    write_trails(runs[0], {"0": table(9)})
    runs[1].run.trail = WITHOUT_TRAIL
    runs[1].write()
    comparison = compare(runs[0].path, runs[1].path)
    assert comparison.identical
    assert "its steps cannot be compared" in trail_of(comparison).children[0].detail


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_is_refused_bit_by_bit(runs: Runs, sealed: bool) -> None:
    write_trails(runs[0], {"0": table(130)})
    write_trails(runs[1], {"0": table(130)}, sealed=sealed)
    (path,) = (runs[1].path / rundir.TRAIL).iterdir()
    data = path.read_bytes()
    for position in [8, 30, 282, 512 + 16, 512 + 70, *([] if not sealed else [len(data) - 30, 290, 305])]:
        path.write_bytes(data[:position] + bytes([data[position] ^ 64]) + data[position + 1 :])
        with pytest.raises((RunDamaged, RunTooNew)):
            compare(runs[0].path, runs[1].path)


def test_tables_that_follow_each_other_are_read_once(tmp_path: Path) -> None:
    other = table(40)
    grown = Table("optimizer#0", table(50).steps[40:], [*other.tensors, ("more", "float32", [2])], first=40)
    path = write(tmp_path / "trail", [other, grown])
    (series,) = trails.Trail(path, os.open(path, os.O_RDONLY)).series
    assert [step.number for step in series.steps()] == list(range(50))
    assert len(series.records(38, 44)) == 6 * 88


TRAINING = training_text("pytorch_perturbed.py")
FORWARD = "the cause is in the forward computation: a non-deterministic operation, or state that it reads"
FOR_THE_LOSS = "; not seen: what the script makes of the batch for the loss"
WHERE = {
    "batch": (24, "batch", None, "the cause is in the data, their order or augmentation"),
    "seed": (28, "random state", None, "another number or order of random draws"),
    "gradient": (40, "gradients", "fc1.weight", "the cause is in the backward computation"),
    "update": (40, "parameters", "fc1.weight", "the cause is in the update: the optimizer or its state"),
    "buffer": (40, "loss", None, f"so {FORWARD}{FOR_THE_LOSS};"),
    "made": (
        35,
        "model inputs",
        None,
        "so the cause is in what the script makes of the batch before the model gets it;",
    ),
    "race": (
        0,
        "loss",
        None,
        f"before it and batch, random state and model inputs of that step are equal, so {FORWARD}{FOR_THE_LOSS};",
    ),
    "between": (33, "parameters before", None, "that the step before left are equal, so the cause is what changes"),
    "initial": (0, "parameters before", None, "differ; the cause is what gave them their values; 48"),
    "drawn": (0, "parameters before", None, "by random numbers of Python, which differed before the first step;"),
    "unused": (12, "random state", None, "; the loss follows at step 20: another seed"),
    "statistics": (30, "buffers", None, "parameters of that step are equal, so the cause is what changes buffers"),
}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Records the training in a variant, once each."""
    directory = tmp_path_factory.mktemp("trainings")
    (directory / "train.py").write_text(TRAINING)

    def record(variant: str) -> Path:
        run = directory / (variant or "run")
        if not run.exists():
            command = ("record", "-o", run.name, "--", sys.executable, "train.py")
            Reprokit(directory).run(*command, environment={"VARIANT": variant, "OMP_NUM_THREADS": "1"})
        return run

    return record


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "variant",
    rest_slow(
        ["batch", "seed", "gradient", "update", "buffer", "race", "between", "drawn"],
        extended=["made", "initial", "unused", "statistics"],
    ),
)
def test_a_training_that_was_perturbed_parts_where_it_was(training: Callable[[str], Path], variant: str) -> None:
    step, quantity, tensor, words = WHERE[variant]
    leaf = first(compare(training(""), training(variant)))
    assert (leaf.figures["step"], leaf.figures["quantity"], leaf.figures["tensor"]) == (step, quantity, tensor)
    assert words in leaf.detail
    assert (f"identical for {step} steps" if step else "at step 0, the first,") in leaf.detail


@pytest.mark.slow
@pytest.mark.torch
def test_a_killed_training_is_compared_as_far_as_it_went(training: Callable[[str], Path]) -> None:
    comparison = compare(training(""), training("killed"))
    leaf = trail_of(comparison).first()
    assert leaf is not None
    assert "identical for 44 steps, then the right run ends; the other has 48 steps; the right run was" in leaf.detail
    assert {child.name for child in comparison.tree.children if child.verdict.differs} >= {"trail", "exit status"}


@pytest.mark.slow
@pytest.mark.torch
def test_of_a_killed_training_the_end_is_the_one_cause(training: Callable[[str], Path]) -> None:
    comparison = compare(training(""), training("killed"))
    assert verdict_line(comparison) == (
        "different: steps of optimizer#0 of process 0: identical for 44 steps, then the right run ends; the other has"
        " 48 steps; the right run was killed by SIGKILL; what else differs may follow from it"
    )
    assert list(causes(comparison)) == []
    roles = {leaf.role for leaf in comparison.tree.leaves() if leaf.verdict.differs}
    assert roles == {Role.END, Role.CONSEQUENCE, Role.IDLE}


@pytest.mark.slow
@pytest.mark.torch
def test_what_differs_before_a_training_is_killed_comes_first(training: Callable[[str], Path]) -> None:
    leaf = first(compare(training("seed"), training("killed")))
    assert (leaf.figures["step"], leaf.figures["quantity"]) == (28, "random state")


@pytest.mark.extended
@pytest.mark.torch
def test_a_generator_from_which_nobody_drew_is_no_cause(training: Callable[[str], Path]) -> None:
    comparison = compare(training(""), training("batch"))
    leaves = [leaf for leaf in trail_of(comparison).leaves() if leaf.verdict.differs]
    idle = [leaf for leaf in leaves if leaf.role is Role.IDLE]
    # PyTorch imports NumPy, whose later releases make their generator when it is first asked for.
    code = "import numpy, sys; sys.exit('numpy.random' in sys.modules)"
    has_numpy = subprocess.run([sys.executable, "-c", code], check=False).returncode
    generators = ["python", "numpy"] if has_numpy else ["python"]
    assert [leaf.figures["generator"] for leaf in idle] == generators
    assert [leaf.figures["generator"] for leaf in leaves if "generator" in leaf.figures] == generators
    assert "no step drew from it" in first(compare(training(""), training("other"))).detail


@pytest.mark.slow
@pytest.mark.torch
def test_show_reads_a_trail_that_is_still_written(tmp_path: Path) -> None:
    script = TRAINING.replace("range(4)", "range(100_000)")
    (tmp_path / "train.py").write_text(script)
    process = Reprokit(tmp_path).start("record", "-o", "run", "--", sys.executable, "train.py")
    try:
        seen: list[int] = []
        while len(set(seen)) < 3:
            assert process.poll() is None
            with suppress(RunNotFound):
                summary = summarize(tmp_path / "run")
                assert not summary.problems
                seen += [holding.steps for holding in summary.trails if holding.steps]
        assert seen == sorted(seen)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.mark.torch
def test_show_says_what_the_trail_holds(training: Callable[[str], Path]) -> None:
    summary = summarize(training(""))
    (holding,) = summary.trails
    size = sum(path.stat().st_size for path in (training("") / rundir.TRAIL).iterdir())
    assert str(holding) == (
        "optimizer#0 (SGD) of process 0: 48 steps of 6 tensors: batch, random state, loss, gradients, parameters,"
        f" buffers, model inputs; in a file of {size} bytes"
    )
    assert document_of_run(summary)["trails"][0]["steps"] == 48


def test_gradients_that_one_run_was_not_asked_for_are_not_compared(runs: Runs, compared: Write) -> None:
    other = table(40)
    for step in other.steps:
        del step["gradients"]
    for number in other.kept:
        other.kept[number] = ([0, 0, 0], other.kept[number][1])
    runs[0].run.trail = WITH_GRADIENTS
    assert compared(table(40), other).identical


@pytest.mark.parametrize(
    ("quantity", "step", "words"),
    [
        ("loss", 21, "not seen: the parameters before the step, buffers, the batch, and what the script makes of it"),
        (
            "gradients",
            21,
            "before the step, buffers, the batch, and what the script makes of it before the model gets it",
        ),
        ("loss", 0, "not seen: the initial parameters, buffers, the batch, and what the script makes of it"),
        ("parameters", 21, "so the cause is in the update"),
    ],
)
def test_a_batch_that_nobody_saw_may_be_the_cause(compared: Write, quantity: str, step: int, words: str) -> None:
    sides = table(40), table(40)
    for side in sides:
        for one in side.steps:
            del one["batch"]
    for one in sides[1].steps[step:]:
        one[quantity] += 1
    assert words in first(compared(*sides)).detail


def test_where_parameters_are_not_known_of_each_step_an_update_may_be_the_cause(compared: Write) -> None:
    sides = table(40), table(40)
    for side in sides:
        for number in set(range(40)) - {0, 17, 34}:
            del side.steps[number]["parameters"]
        for step in side.steps:
            del step["gradients"]
        side.kept.clear()
    for number in range(21, 40):
        sides[1].steps[number]["loss"] += 1
    detail = first(compared(*sides)).detail
    assert "so the cause is in the forward computation, or in an update since step 17: a non-determ" in detail


def tensorflow(count: int, *, every: int) -> Table:
    """A series of TensorFlow, with the parameters of one in so many steps."""
    found = table(count)
    found.facts["framework"] = "tensorflow"
    for step in found.steps:
        del step["gradients"]
    for number in set(range(count)) - set(range(0, count, every)):
        del found.steps[number]["parameters"]
    found.kept.clear()
    return found


@pytest.mark.parametrize(
    ("every", "lacking", "step"),
    [
        ((17, 1), None, None),  # one of them keeps keyframes
        ((17, 17), 17, 17),
        ((17, 1), 34, 34),
        ((1, 17), 34, 34),
        ((1, 1), 18, 18),
        ((1, 17), 18, None),
    ],
)
def test_a_digest_that_neither_setting_explains_is_a_difference(
    compared: Write, every: tuple[int, int], lacking: int | None, step: int | None
) -> None:
    sides = [tensorflow(40, every=each) for each in every]
    if lacking is not None:
        sides[1].steps[lacking].pop("parameters", None)
    comparison = compared(*sides)
    assert comparison.identical == (step is None)
    if step is not None:
        assert f"at step {step} the parameters are the first to differ" in first(comparison).detail


@pytest.mark.parametrize("differs", [False, True])
def test_seed_generators_read_in_other_steps_of_a_resumed_training_are_no_difference(
    compared: Write, differs: bool
) -> None:
    whole, resumed = tensorflow(60, every=1), tensorflow(36, every=1)
    resumed.steps = [dict(step) for step in whole.steps[24:]]
    resumed.steps[0]["before"] = whole.steps[23]["parameters"]
    for side in (whole, resumed):
        for number in range(0, len(side.steps), tensorflow_trail.WEIGHTS_EVERY):
            side.steps[number]["torch"] += 1000 + number
    if differs:
        resumed.steps[5]["torch"] += 1
    assert ("random state" in trail_of(compared(whole, resumed)).first().detail) == differs  # type: ignore[union-attr]


DRAWN = training_text("pytorch_drawn.py")


@pytest.mark.extended
@pytest.mark.torch
def test_a_draw_is_told_at_its_step_and_the_batch_that_it_changes_at_its_own(reprokit: Reprokit) -> None:
    reprokit.script("train.py", DRAWN)
    for command, more in (["record", "-o", "a", "--", sys.executable, "train.py"], {}), (["replay", "-o", "b", "a"], 1):
        done = reprokit.run(*command, environment={"MORE": "1"} if more else {})
        assert done.returncode == 0, done.stderr
    comparison = compare(reprokit.directory / "a", reprokit.directory / "b")
    told = "at step 5 the random state is the first to differ; the batch follows at step 8: another seed"
    assert told in verdict_line(comparison)
    assert [cause.partition(":")[0] for cause in causes(comparison)] == ["script variable MORE"]


def test_gaps_of_the_weights_are_expected_where_agents_leave_them() -> None:
    assert divergences.PARAMETERS_EVERY == {"tensorflow": tensorflow_trail.WEIGHTS_EVERY}
