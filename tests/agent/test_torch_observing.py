"""Operators of PyTorch: what is noted of each, what executing it again finds, and that trainings stay the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from reprokit.agent.pytorch import private_api
from reprokit.agent.pytorch.places import Places
from reprokit.core import native
from tests.agent.training import BOOTSTRAP, Line, Outcome, Training
from tests.support import training_text

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Observed:
    """How a training ended, and what was observed in it."""

    outcome: Outcome
    lines: list[Line]
    script: str

    def of(self, kind: str, **fields: object) -> list[Line]:
        found = [line for line in self.lines if line["kind"] == kind]
        return [line for line in found if all(line[key] == value for key, value in fields.items())]

    def one(self, kind: str, **fields: object) -> Line:
        (line,) = self.of(kind, **fields)
        return line

    def places(self, kind: str, **fields: object) -> set[str]:
        """The text of the innermost line of the user's, of all these lines."""
        lines = self.script.splitlines()
        return {lines[line["where"][0][1] - 1].strip() for line in self.of(kind, **fields)}


def observe(training: Training, script: str, *, confirm: int = 0, **variables: str) -> Observed:
    """Run a script under the agent with a plan that asks for its operators."""
    profiling = {"functions": False, "operators": True, "steps": None, "seconds": None, "confirm": confirm}
    training = replace(training, profiling=profiling)
    training.write("train.py", script)
    outcome = training.command([training.python, "train.py"], training.environment((), **variables))
    return Observed(outcome, training.observed(), script)


NET = training_text("pytorch_net.py")


# No other capabilities of the CPU are tried where they are capped already: a process each is saved.
ALL_ISA = {"ONEDNN_MAX_CPU_ISA": "ALL"}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """A training of 200 steps."""
    return observe(Training(tmp_path_factory.mktemp("net")), NET)


@pytest.mark.slow
def test_each_phase_has_its_operators_and_places(net: Observed) -> None:
    assert (net.outcome.status, net.outcome.errors) == (0, "")
    assert not net.outcome.of("warning")
    places = {
        ("aten::convolution", "forward"): "image = self.convolve(x).mean((1, 2, 3))",
        ("aten::convolution_backward", "backward"): "image = self.convolve(x).mean((1, 2, 3))",
        ("aten::embedding", "forward"): "rows = self.embed(words)",
        ("aten::embedding_dense_backward", "backward"): "rows = self.embed(words)",
        ("aten::index_put", "backward"): "rows = rows[torch.tensor([0, 0, 1, 2])]",
        ("aten::sqrt", "update"): "optimizer.step()",
    }
    for (name, phase), place in places.items():
        assert net.places("operator", name=name, phase=phase) == {place}
    own = net.places("operator", name="aten::mul", phase="backward")
    assert own == {"return 2 * x * gradient", "return self.last(self.drop(rows)).sum(1) + image"}


def test_an_operator_is_described(net: Observed) -> None:
    line = net.one("operator", name="aten::index_put")
    assert (line["framework"], line["device"], line["overload"]) == ("pytorch", "cpu", "")
    assert (line["dtypes"], line["shapes"]) == (["float32", "int64", "float32"], [[4, 8], [4], [4, 8]])
    assert line["attributes"] == {"accumulate": True}
    assert [place[2] for place in line["where"]] == ["forward", "train", "<module>"]
    forward = net.one("operator", name="aten::convolution")
    assert forward["attributes"]["stride"] == [1, 1]
    assert forward["attributes"]["transposed"] is False


def test_later_steps_are_sampled(net: Observed) -> None:
    sampling = net.one("sampling")
    assert sampling["steps"] == 200
    assert 8 <= sampling["observed"] <= 20
    assert net.one("operator", name="aten::convolution")["calls"] == sampling["observed"]


@pytest.mark.slow
def test_the_numbers_are_those_of_a_bare_run(net: Observed, training: Training) -> None:
    assert net.outcome.output == training.run_bare(net.script).output


BESIDE = training_text("pytorch_hooks.py")


@pytest.mark.extended
def test_what_else_hooks_in_goes_on_as_it_did(training: Training) -> None:
    bare = training.run_bare(BESIDE)
    # With all that PyTorch imports: what leaves some of it out stands between the script and its modes.
    observed = observe(training, BESIDE, confirm=2, PYTHONPATH=str(BOOTSTRAP), **ALL_ISA)
    assert observed.outcome.output == bare.output
    assert (observed.outcome.status, observed.outcome.errors) == (0, bare.errors)
    assert not observed.outcome.of("warning")
    phases = {
        "tan": "forward",  # below a mode of the user's
        "tanh": "forward",
        "atan": "forward",  # in vmap
        "exp": "forward",  # of a subclass
        "erfinv": "forward",  # on a thread
        "copysign_": "update",  # in an optimizer of the user's
        "sigmoid": "forward",  # in a closure of a step
        "sigmoid_backward": "backward",
    }
    for name, phase in phases.items():
        assert [line["phase"] for line in observed.of("operator", name=f"aten::{name}")] == [phase], name
    (place,) = observed.places("operator", name="aten::erfinv")
    assert place.startswith("thread = threading.Thread")
    assert observed.places("operator", name="aten::tan") == {"torch.ones(3).tan()"}
    (recomputed,) = observed.places("operator", name="aten::cos", phase="backward")
    assert recomputed.startswith("checkpoint")


@pytest.mark.slow
def test_other_processes_have_operators_of_their_own(training: Training) -> None:
    script = training_text("pytorch_processes.py")
    observed = observe(training, script, confirm=2, **ALL_ISA)
    assert (observed.outcome.status, observed.outcome.output) == (0, "done\n")
    assert len(observed.of("operator", name="aten::lgamma")) == 2
    (place,) = observed.places("operator", name="aten::lgamma")
    assert place.startswith("return torch.full")
    collective = observed.of("confirmed", name="c10d::allreduce_")
    assert {(line["repeats"], line["problem"]) for line in collective} == {(0, "it is not one to be executed again")}


# Executed again


@pytest.mark.extended
def test_what_repeats_is_cleared_and_what_does_not_is_counted(training: Training) -> None:
    script = training_text("pytorch_repeated.py")
    bare = training.run_bare(script)
    observed = observe(training, script, confirm=6)
    assert observed.outcome.output == bare.output
    assert not observed.outcome.of("warning")
    cleared = ["scatter_add", "embedding_dense_backward", "convolution", "convolution_backward", "randn", "bernoulli_"]
    for name in [*(f"aten::{name}" for name in cleared), "mine::calm"]:
        lines = observed.of("confirmed", name=name)
        assert lines, name
        for line in lines:
            assert (line["results"], line["problem"]) == (1, ""), line
            assert line["repeats"] >= 6
    assert observed.one("confirmed", name="mine::noisy")["results"] == 6
    assert observed.of("confirmed", problem="its result is memory as it was found", name="aten::empty")
    assert_other_machines_were_tried(observed)
    assert not list((training.run_directory / "profile").glob("captured*"))


def assert_other_machines_were_tried(observed: Observed) -> None:
    import torch

    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        draws = observed.of("confirmed", name="aten::randn", attributes={**draw_of(1000)})
        assert [line["capabilities"]["default"] for line in draws] == ["different"]
        assert observed.one("confirmed", name="aten::scatter_add")["capabilities"]["default"] == "same"


def draw_of(length: int) -> dict[str, Any]:
    return {"dtype": None, "layout": None, "device": "cpu", "pin_memory": False, "size": [length]}


RACES = training_text("pytorch_races.py", "two_threads")


@pytest.mark.slow
def test_races_of_two_threads_are_caught(training: Training) -> None:
    observed = observe(training, RACES, confirm=30, **ALL_ISA)
    for name, phase in (("index_put", "backward"), ("index_put_", "forward")):
        line = observed.one("confirmed", name=f"aten::{name}", phase=phase)
        assert line["results"] > 1
        assert line["threads"]["1"] == "repeats"
    assert observed.one("confirmed", name="aten::index_add_")["results"] == 1
    assert not list((training.run_directory / "profile").glob("captured*"))


COMPILED = training_text("pytorch_compiled_sums.py")


@pytest.mark.extended
def test_compiled_code_stays_compiled_and_its_races_are_caught(training: Training) -> None:
    # With all that PyTorch imports: without some of it, the compiler takes a frame more.
    observed = observe(training, COMPILED, confirm=30, PYTHONPATH=str(BOOTSTRAP), **ALL_ISA)
    assert observed.outcome.output == "{'total': 1, 'ok': 1}\n"
    line = observed.one("compiled", phase="forward")
    assert (line["name"], line["function"], line["calls"], line["device"]) == ("torch.compile", "add_rows", 8, "cpu")
    assert "aten::index_put_" in line["operators"]
    backward = observed.one("compiled", phase="backward")
    assert backward["where"] == line["where"]
    assert "aten::index" in backward["operators"]
    confirmed = observed.one("confirmed", name="torch.compile", phase="forward")
    assert confirmed["results"] > 1
    assert confirmed["operators"] == line["operators"]


@pytest.mark.gpu
def test_races_on_a_gpu_are_caught(training: Training) -> None:
    script = training_text("pytorch_races.py", "gpu")
    observed = observe(training, script, confirm=30, CUDA_VISIBLE_DEVICES="0")
    for name in ("index_add_", "scatter_add_", "cumsum", "upsample_bilinear2d_backward"):
        (line,) = [line for line in observed.of("confirmed", name=f"aten::{name}") if line["device"] == "cuda"]
        assert line["results"] > 1, name


LIBRARY = "def twice(ask):\n    return ask(), ask()\n\ndef again(ask):\n    while True:\n        yield ask()\n"


@pytest.mark.parametrize("library_path", ["", str(native.trail_path())], ids=["plain", "compiled"])
def test_a_generator_of_a_library_is_resumed_from_other_lines(library_path: str) -> None:
    places = Places(torch, private_api.compiled(torch, library_path))
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, "/lib/site-packages/library.py", "exec"), library)

    def line() -> int:
        return places.of_call(1)[0][0][1]

    first, second = library["twice"](line)
    resumed = library["again"](line)
    lines = [next(resumed)]
    lines.append(next(resumed))
    assert (first, lines) == (second, [first + 2, first + 3])
