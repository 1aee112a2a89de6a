"""Signals, forks and errors that a training gets over: the agent is no reason for it not to."""

from __future__ import annotations

import ast
import functools
import gc
import json
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import reprokit.agent
from reprokit.agent.capture import variables
from reprokit.agent.capture.tensorflow_snapshot import _variable_ids
from reprokit.agent.capture.tensorflow_state import TensorCollector
from reprokit.agent.capture.tensorflow_steps import iterations
from reprokit.agent.core.agent import Agent
from reprokit.agent.core.journal import Journal
from reprokit.agent.core.signal_errors import pass_on
from reprokit.agent.core.user_frames import variables_of
from reprokit.agent.events.steps import TrainingEvent, tell
from reprokit.agent.patches.torch_operators import DeterministicMode
from reprokit.agent.tensors.tensor_writer import TensorWriter
from reprokit.run_files import unflushed as pending_lines
from tests.agent.training import Training
from tests.interpreters import available
from tests.support import Reprokit, training_text

NEWEST = next(reversed(available().values()))


class Enough(Exception):
    pass


class Handlers:
    def method(self, _number: int, _frame: object) -> None:
        raise Enough

    def with_more(self, *_: object) -> None:
        raise Enough


def taken_away(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise Enough


def forgetful(number: int, frame: object) -> None:
    del number, frame
    raise Enough


def in_part(_more: object, _number: int, _frame: object) -> None:
    raise Enough


@pytest.mark.parametrize(
    "handler",
    [Handlers().method, Handlers().with_more, taken_away, forgetful, functools.partial(in_part, "more")],
    ids=["method", "arguments", "taken away", "forgetful", "partial"],
)
def test_what_a_handler_raises_is_the_scripts(tmp_path: Path, handler: Callable[..., object]) -> None:
    agent = Agent(str(tmp_path), Journal(str(tmp_path), "0"))

    def interrupted(_event: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    failures: list[str] = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Enough):
            agent.attempt(interrupted, None)
        signal.signal(signal.SIGUSR1, handler)
        with pytest.raises(Enough):
            tell((((lambda error, _handler: failures.append(type(error).__name__)), interrupted),), TrainingEvent())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert failures == ["Enough"]


def test_what_the_agent_and_the_users_objects_raise_is_not(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path), Journal(str(tmp_path), "0"))

    def fails(frame: object, number: int = 3) -> None:
        raise Enough(frame, number)

    assert agent.attempt(lambda: fails(sys._getframe())) is None
    assert agent.attempt(fails, sys._getframe()) is None
    pass_on(Enough())
    assert "Enough" in (tmp_path / "metrics.jsonl").read_text()


class Interrupted(list[object]):
    """Is interrupted by a signal wherever it is looked at."""

    def __getattr__(self, name: str) -> object:
        signal.raise_signal(signal.SIGUSR1)
        raise AttributeError(name)

    def __len__(self) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 0


def frames_interrupted() -> Iterator[Any]:
    signal.raise_signal(signal.SIGUSR1)
    yield


@pytest.mark.parametrize(
    "look",
    [
        lambda: TensorCollector().tensor("x", Interrupted()),
        lambda: iterations(Interrupted()),
        lambda: _variable_ids(Interrupted()),
        lambda: variables.tensors_of(Interrupted()),
        lambda: variables.lines_that_made(frames_interrupted(), bool),
    ],
    ids=["tensor", "iterations", "optimizer", "variable", "lines"],
)
def test_what_a_handler_raises_in_a_capture_is_the_scripts(look: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGUSR1, Handlers().method)
    try:
        with pytest.raises(Enough):
            look()
    finally:
        signal.signal(signal.SIGUSR1, before)


# Where no handler of the script is, or nobody would get what it raised.
BEYOND_THE_SCRIPT = {"bootstrap/sitecustomize.py", "capture/redo.py", "core/journal.py", "operators/repeat_process.py"}


def test_the_agent_swallows_no_error_without_asking_whose_it_is() -> None:
    agent, swallowed = Path(reprokit.agent.__file__).parent, set()
    for file in agent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ExceptHandler) and node.type and ast.unparse(node.type) == "Exception":
                passing = ("pass_on", "handler_failed")  # the second one calls the first
                inside = [type(part) is ast.Raise or getattr(part, "id", "") in passing for part in ast.walk(node)]
                swallowed |= set() if any(inside) else {str(file.relative_to(agent))}
    assert swallowed == BEYOND_THE_SCRIPT


@pytest.mark.parametrize("python", sorted({sys.executable, NEWEST}))
def test_a_script_that_is_interrupted_again_and_again_goes_on(tmp_path: Path, python: str) -> None:
    outcome = Training(tmp_path, python=python).run(training_text("interrupted.py"))
    assert outcome.output == "(True, True) (True, 0)\n(1, 'a name', True, True) {'a': 1} [False]\n", outcome.errors
    assert (outcome.status, outcome.errors) == (0, "")


def kept_from(function: Callable[[], object]) -> list[Any]:
    """What a function raises, as far as it is not gone when it was handled."""
    kept = []
    gc.disable()
    try:
        function()
    except Enough as error:
        kept.append(weakref.ref(error))
    finally:
        gc.enable()
    return [reference() for reference in kept]


def test_what_was_passed_on_does_not_live_on(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path), Journal(str(tmp_path), "0"))
    before = signal.signal(signal.SIGUSR1, Handlers().method)
    try:
        assert kept_from(lambda: agent.attempt(signal.raise_signal, signal.SIGUSR1)) == [None]
    finally:
        signal.signal(signal.SIGUSR1, before)


class Large:
    pass


def test_variables_that_were_asked_for_die_with_the_function_that_drops_them() -> None:
    large = Large()
    reference = weakref.ref(large)
    assert variables_of(sys._getframe())["large"] is large
    del large
    assert reference() is None
    known = locals()
    assert variables_of(sys._getframe())["known"] is known
    assert "reference" in known


@pytest.mark.slow
@pytest.mark.torch
def test_a_training_gets_over_interrupts_and_errors(tmp_path: Path) -> None:
    """A worker that read what the interrupted step had left to it ended the process."""
    runs = Reprokit(tmp_path)
    (tmp_path / "train.py").write_text(training_text("interrupted_steps.py"))
    done = runs.run("record", "-o", "run", "--on-nan", "skip", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted in a step: True\nlost: 0\nkept after errors: 0\nkept after a capture: False\n"


def child_ends(work: Callable[[], object]) -> bool:
    """Whether a forked child gets through this."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.torch
def test_what_another_thread_held_at_a_fork_does_not_hold_up_the_child(tmp_path: Path) -> None:
    import torch

    agent: Any = SimpleNamespace(run=str(tmp_path), journal=None, warn=print)
    mode, writer = DeterministicMode(torch), TensorWriter(agent, "torch", 1 << 20)
    os.register_at_fork(after_in_child=writer.forget)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mode._lock, writer._lock:
            held.set()
            over.wait()

    def use() -> None:
        mode.enter()
        mode.leave()
        writer.drop(0, "train", "x", "unreadable")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert child_ends(use)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("line", range(1, 40))
def test_an_interrupt_while_lines_are_written_damages_none(tmp_path: Path, line: int) -> None:
    """A handler's exception comes at each line of Python in turn."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        is_ours = frame.f_code.co_filename.endswith(("core/journal.py", "core/buffered_lines.py"))
        left -= is_ours and event == "line"
        if is_ours and event == "line" and left == 0:
            raise Enough
        return trace

    journal = Journal(str(tmp_path), "0")
    for number in range(20):
        journal.write("loss", {"name": "loss", "step": number})
    sys.settrace(trace)
    try:
        journal.write("log", {"name": "value"})
    except Enough:
        pass
    finally:
        sys.settrace(None)
    journal.write("loss", {"name": "loss", "step": 20})
    journal.write("end", {})
    journal.close()
    pending_lines.gather(tmp_path, tmp_path / "metrics.jsonl")
    lines = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    numbers = [one["n"] for one in lines]
    assert len(numbers) == len(set(numbers))
    assert sorted(one["step"] for one in lines if one["k"] == "loss") == list(range(21))
