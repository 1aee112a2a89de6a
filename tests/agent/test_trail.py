"""The trail of a training by PyTorch: what it holds of each step, who waits for it, and what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.native import trail_path
from reprokit.run_files.trails import Series, Trail, TrailStep
from tests import trails
from tests.agent.training import Outcome, Training
from tests.support import training_text

pytestmark = pytest.mark.torch

SCRIPT = training_text("pytorch_trailed.py")


class Trailed(Training):
    """A training whose trail is kept."""

    def environment(self, python_path: Sequence[Path] = (), **variables: str) -> dict[str, str]:
        environment = super().environment(python_path, **variables)
        plan = self.run_directory / "plan.json"
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "trail": str(trail_path())}))
        return {**environment, "OMP_NUM_THREADS": "1"}

    def trails(self) -> list[Trail]:
        """Of all processes."""
        paths = sorted((self.run_directory / "trail").glob("*.trail"))
        return [Trail(path, os.open(path, os.O_RDONLY)) for path in paths]


def assert_well(outcome: Outcome) -> None:
    assert (outcome.status, outcome.errors) == (0, "")
    assert [line["text"] for line in outcome.of("warning")] == []


EACH = training_text("forked_cases.py")


class Cases:
    """Calls in a script that one process makes, after the import of PyTorch, in a forked child each, with a trail."""

    def __init__(self, directory: Path, script: str, cases: dict[str, str], *imported: str):
        self._training, self._names = Trailed(directory), list(cases)
        for number, call in enumerate(cases.values()):
            self._training.write(f"case{number}.py", script + call)
        self.outcome = self._training.run(EACH, str(len(cases)), *imported)
        assert self.outcome.status == 0, self.outcome.errors

    def status(self, name: str) -> int:
        """As waitpid gives it."""
        return int(self.outcome.output.split()[self._names.index(name)])

    def directory(self, name: str) -> Path:
        """Where it ran."""
        return self._training.directory / f"case{self._names.index(name)}"

    def path(self, name: str) -> Path:
        """Its trail: of the children, which have one name, the first has the first one."""
        (path,) = (self._training.run_directory / "trail").glob(f"*-{self._names.index(name)}.trail")
        return path

    def trail(self, name: str) -> Trail:
        """Likewise, to be read."""
        return Trail(self.path(name), os.open(self.path(name), os.O_RDONLY))

    def series(self, name: str) -> Series:
        """The series of a case that has one optimizer."""
        (series,) = self.trail(name).series
        return series

    def steps(self, *names: str) -> list[list[TrailStep]]:
        """The steps of cases that have one optimizer and ended well."""
        assert [self.status(name) for name in names] == [0] * len(names), self.outcome.errors
        return [list(self.series(name).steps()) for name in names]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All cases that need no process of their own."""
    names = ["plain", "buffers", "states", "late", "odd", "odd_loops", "small", "killed", "pair", "limit"]
    calls = {name: f"{name}()" for name in names}
    for variant in ("", "batch", "seed", "gradient", "update", "rate"):
        calls[f"changes {variant}"] = f"changes('{variant}')"
    for variant in ("", "gradients", "clamp"):
        calls[f"mutating {variant}"] = f"mutating('{variant}')"
    for variant in ("", "text", "bytes"):
        calls[f"packed {variant}"] = f"packed('{variant}')"
    for name in ("plain", "late", "odd", "odd_loops", "mutating gradients", "mutating clamp"):
        calls[f"{name} again"] = calls[name]
    return Cases(tmp_path_factory.mktemp("cases"), SCRIPT, {**calls, "graphs": GRAPHS}, "numpy.random")


QUANTITIES = ("batch", "torch", "loss", "gradients", "parameters")


def differences(left: list[TrailStep], right: list[TrailStep]) -> list[tuple[int, str]]:
    """Step and quantity of each difference; Python's and NumPy's own states differ where nobody seeds them."""
    return [
        (a.number, name)
        for a, b in zip(left, right, strict=True)
        for name in QUANTITIES
        if getattr(a, name) != getattr(b, name)
    ]


def test_equal_runs_have_equal_trails_of_which_everything_is_known(cases: Cases) -> None:
    left, right = cases.steps("plain", "plain again")
    assert [step.number for step in left] == list(range(40))
    assert differences(left, right) == []
    names = set(TrailStep.__struct_fields__) - {"before"}
    assert all(getattr(step, name) is not None for step in left for name in names)
    assert {step.number for step in left if step.before is not None} == {0}  # PyTorch's counts tell the others
    assert [step.number for step in left if step.unchanged] == list(range(1, 40))
    assert len({step.parameters for step in left}) == len({step.gradients for step in left}) == 40
    assert len({step.batch for step in left}) == 12
    assert not any(step.partial for step in left)


def test_the_values_are_those_of_the_definition(cases: Cases) -> None:
    import torch

    (steps,) = cases.steps("states")
    series = cases.series("states")

    def load(name: str) -> Any:
        return torch.load(cases.directory("states") / name, weights_only=True)

    def digest(tensor: Any) -> int:
        return trails.digest(tensor.numpy().tobytes(), str(tensor.dtype).partition(".")[2], tuple(tensor.shape))

    x, y = load("data.pt")
    for number, (step, (state, python, numpy)) in enumerate(zip(steps, load("states.pt"), strict=True)):
        tensors = [digest(tensor) for tensor in load(f"{number}.pt")]
        parameters, gradients = tensors[:4], tensors[4:]
        kept = series.digests(number)
        assert kept is not None
        assert (list(kept.gradients), list(kept.parameters)) == (gradients, parameters)
        assert [(t.name, t.dtype, t.shape) for t in kept.tensors[:2]] == [
            ("0.weight", "float32", [2400, 64]), ("0.bias", "float32", [2400]),
        ]  # fmt: skip
        assert step.gradients == trails.list_digest(gradients)
        assert step.parameters == trails.list_digest(parameters)
        assert step.torch == digest(state)
        assert step.python == trails.digest(python, "uint32", (625,))
        assert step.numpy == trails.digest(numpy, "uint32", (625,))
        batch = trails.mix(digest(x[8 * number : 8 * number + 8]))
        assert step.batch == trails.mix(batch + digest(y[8 * number : 8 * number + 8]) & trails.MASK)


@pytest.mark.parametrize(
    ("variant", "first"),
    [
        ("batch", (24, "batch")),
        ("seed", (24, "torch")),
        ("gradient", (25, "gradients")),
        ("update", (25, "loss")),
        ("rate", (0, "parameters")),
    ],
)
def test_what_is_changed_shows_at_its_step_and_in_causal_order(cases: Cases, variant: str, first: object) -> None:
    found = differences(*cases.steps("changes ", f"changes {variant}"))
    order = {name: place for place, name in enumerate(QUANTITIES)}
    assert min(found, key=lambda difference: (difference[0], order[difference[1]])) == first


def test_parameters_are_looked_at_before_a_step(cases: Cases) -> None:
    (steps,) = cases.steps("changes update")
    others = [now.number for last, now in pairwise(steps) if now.before != last.parameters]
    assert others == [25]
    assert steps[25].unchanged  # PyTorch does not count a change by way of .data


def test_buffers_and_the_random_states_before_the_first_step_are_known(cases: Cases) -> None:
    import torch

    assert cases.status("buffers") == 0
    one, other = cases.trail("buffers").series
    steps = list(one.steps())
    for step in steps:
        expected = 0
        for tensor in torch.load(cases.directory("buffers") / f"{step.number}.pt", weights_only=True):
            name = str(tensor.dtype).partition(".")[2]
            digest = trails.digest(tensor.numpy().tobytes(), name, tuple(tensor.shape))
            expected = trails.mix(expected + digest & trails.MASK)
        assert step.buffers == expected
    assert (one.untouched, other.untouched) == (["numpy"], [])  # Python seeds its own anew in a forked child
    assert one.generators["python"] == steps[0].python != other.generators["python"]
    (step,) = other.steps()
    assert step.python != other.generators["python"]


@pytest.mark.parametrize("variant", ["gradients", "clamp"])
def test_what_a_script_changes_right_after_each_step_is_digested_as_the_step_left_it(
    cases: Cases, variant: str
) -> None:
    left, right = cases.steps(f"mutating {variant}", f"mutating {variant} again")
    assert differences(left, right) == []
    assert None not in [step.gradients for step in left] + [step.parameters for step in left]
    if variant == "gradients":  # which the model does not see
        assert differences(left, *cases.steps("mutating ")) == []


def test_a_change_that_comes_late_makes_no_false_difference(cases: Cases) -> None:
    left, right = cases.steps("late", "late again")
    assert differences(left, right) == []
    assert [step.number for step in left if step.parameters is None] == [30]


@pytest.mark.slow
def test_a_training_comes_to_the_same_with_and_without_a_trail(cases: Cases, tmp_path: Path) -> None:
    assert_well(Training(tmp_path).run(SCRIPT + "plain()"))
    assert not (tmp_path / "run" / "trail").exists()
    import torch

    ends = [torch.load(place / "end.pt", weights_only=True) for place in (cases.directory("plain"), tmp_path)]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_many_steps_take_a_few_dozen_bytes_each_and_the_last_digests_are_kept(cases: Cases) -> None:
    (steps,) = cases.steps("small")
    status = cases.path("small").stat()
    assert len(steps) == 700
    assert status.st_size / 700 < 96
    assert status.st_mode & 0o777 == 0o600
    series = cases.series("small")
    assert [step for step in range(700) if series.digests(step)] == [*range(16), *range(684, 700)]


def test_a_killed_training_leaves_a_trail_that_can_be_read(cases: Cases) -> None:
    assert cases.status("killed") == signal.SIGKILL
    steps = list(cases.series("killed").steps())
    assert len(steps) == 56
    assert all(step.parameters is not None and step.gradients is not None for step in steps[:55])


def test_each_optimizer_has_a_series_and_one_that_gets_other_parameters_goes_on(cases: Cases) -> None:
    trail = cases.trail("pair")
    assert [(series.name, series.kind, series.count) for series in trail.series] == [
        ("optimizer#0", "Adam", 30), ("optimizer#1", "Adam", 30),
    ]  # fmt: skip
    grown = trail.series[1]
    assert [len(grown.tensors(step)) for step in (0, 20, 21, 29)] == [2, 2, 3, 3]
    digests = grown.digests(29)
    assert digests is not None
    assert (digests.gradients[2], digests.parameters[2] != 0) == (0, True)
    assert all(step.batch is None for series in trail.series for step in series.steps())


def test_sparse_gradients_are_left_out_which_is_said_once_and_strided_ones_count_in_their_order(cases: Cases) -> None:
    left, right = cases.steps("odd", "odd again")
    assert differences(left, right) == []
    assert all(step.partial and step.gradients and step.parameters for step in left)
    texts = [line["text"] for line in cases.outcome.of("warning")]
    assert [text for text in texts if "sparse" in text] == texts
    assert len(texts) == 2  # of two trainings


def test_closures_and_gradients_that_are_summed_up_and_clipped_repeat(cases: Cases) -> None:
    found = [[list(series.steps()) for series in cases.trail(name).series] for name in ("odd_loops", "odd_loops again")]
    assert [len(steps) for steps in found[0]] == [12, 20]
    for left, right in zip(*found, strict=True):
        assert differences(left, right) == []
        assert None not in [step.gradients for step in left]


def test_batches_are_digested_whatever_they_are_packed_in(cases: Cases) -> None:
    same, packed, other = cases.steps("packed ", "packed text", "packed bytes")
    assert [step.batch for step in same] == [step.batch for step in packed]
    assert [a.batch != b.batch and a.loss == b.loss for a, b in zip(same, other, strict=True)] == [True] * 12


@pytest.mark.slow
def test_a_forked_process_has_a_trail_of_its_own(tmp_path: Path) -> None:
    training = Trailed(tmp_path)
    outcome = training.run(SCRIPT + "forked()")
    assert outcome.status == 0, outcome.errors
    counts = {trail.process: [series.count for series in trail.series] for trail in training.trails()}
    assert counts == {"0": [19], "0/?": [5]}


@pytest.mark.slow
def test_the_worker_takes_no_signals_and_is_gone_while_a_process_forks(tmp_path: Path) -> None:
    training = Trailed(tmp_path)
    outcome = training.run(SCRIPT + "threads()")
    assert_well(outcome)
    blocked, *counts = outcome.output.split()
    assert int(blocked, 16) | 1 << 8 | 1 << 18 == (1 << 64) - 1  # all that can be: not SIGKILL and SIGSTOP
    assert counts == ["0", "0", "1", "1"]


def test_digests_that_come_late_find_their_step(tmp_path: Path) -> None:
    from reprokit.agent.core import trail_library as trail

    library = trail.Library(str(trail_path()))
    handle = library.open(str(tmp_path), "0")
    series = library.series(handle, "optimizer#0", "SGD", [("a", "float32", [2], 8), ("b", "float32", [1], 4)], 0)
    facts, address = library.buffer(trail.FACTS)
    for number in range(70):
        facts[:2] = [trail.BATCH, trail.LATER]
        facts[2] = number
        assert library.step(series, address, 0) == 0
        if number >= 8:
            digests, place = library.buffer(4)
            digests[:] = [number, 2, 3, 4]
            library.given(series, number - 8, 1000 + number, place)
    library.close(handle, series)
    (path,) = (tmp_path / "trail").iterdir()
    (found,) = Trail(path, os.open(path, os.O_RDONLY)).series
    steps = list(found.steps())
    assert [step.batch for step in steps] == list(range(70))
    assert [step.loss for step in steps] == [*range(1008, 1070), *[None] * 8]
    assert [step.gradients for step in steps[:62]] == [trails.list_digest([n + 8, 2]) for n in range(62)]
    assert [step.parameters for step in steps[62:]] == [None] * 8
    kept = found.digests(61)
    assert kept is not None
    assert (list(kept.gradients), list(kept.parameters)) == ([69, 2], [3, 4])


@pytest.mark.slow
def test_a_full_disk_or_no_right_to_write_ends_the_trail_and_not_the_training(tmp_path: Path) -> None:
    training = Trailed(tmp_path)
    training.run_directory.mkdir()
    (training.run_directory / "trail").write_text("in the way")
    outcome = training.run(SCRIPT + "train(20); print('done')")
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert "no further step is kept in the trail" in outcome.one("warning")["text"]


def test_a_file_size_limit_ends_the_trail_and_says_so(cases: Cases) -> None:
    trail = cases.trail("limit")
    assert (cases.status("limit"), trail.gave_up, trail.lost) == (0, "the file size limit was reached", 20)
    assert [series.count for series in trail.series] == [0]


@pytest.mark.extended
def test_deterministic_names_of_threads_are_not_moved_by_the_worker(tmp_path: Path) -> None:
    from tests.support import Reprokit

    reprokit = Reprokit(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT + "thread_name()")
    said = {}
    for name, options in (("with", []), ("without", ["--no-trail"])):
        done = reprokit.run("record", *options, "-o", name, "--", sys.executable, "train.py")
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout
    assert said["with"] == said["without"] != "\n"
    assert reprokit.facts("with")["trails"]["size"] > 0
    assert reprokit.facts("without")["trails"] is None
    assert not (tmp_path / "without" / "trail").exists()
    replayed = reprokit.run("replay", "with", "-o", "again")
    assert replayed.returncode == 0, replayed.stderr
    contents = [sorted((tmp_path / name / "trail").iterdir()) for name in ("with", "again")]
    assert [path.name for path in contents[0]] == [path.name for path in contents[1]]
    reads = [list(Trail(paths[0], os.open(paths[0], os.O_RDONLY)).series[0].steps()) for paths in contents]
    assert reads[0] == reads[1]


GRAPHS = training_text("pytorch_graphs.py")


def test_no_graph_outlives_a_backward_that_keeps_or_fails(cases: Cases) -> None:
    assert cases.status("graphs") == 0, cases.outcome.errors
