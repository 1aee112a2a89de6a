"""Fast-forwards a replay of a PyTorch training to a keyframe: the script runs, and all that is costly is left out.

The first step is made as it is. Until the keyframe models give their first results again, backward passes and updates
do nothing, and each update puts in the states that the generators had after it, so that loops and loaders go the
recording's way. At the keyframe all of its state is put in, at the same place in the script, and the training goes on
truly: the trail proves the steps from there.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns, sleep

from ..capture.random_states import put_back_packed
from ..capture.torch_state import SnapshotReader, put_random
from ..core import trail_library
from ..core.json_text import to_json
from ..core.patching import replace, replace_method
from ..core.signal_errors import pass_on
from ..core.state_entries import StateKind
from ..events.steps import ScalerMade, UpdateDone
from ..listeners.metrics import Metrics
from ..operators.files import append
from ..pytorch import private_api, tensors
from ..pytorch.events import recording_hooks
from ..pytorch.tensor_names import parameters_of
from ..pytorch.trail import StepTrail
from .earlier_files import put_back_closed, put_back_opened
from .first_results import FirstResults
from .generator_log import states_in
from .keyframe_files import KeyframeFile
from .printed import printed
from .pytorch_view import KINDS, LOADER, VARIABLES, TrainingView
from .unheld_variables import UnheldVariables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events, Handler, TrainingEvent

    Function = Callable[..., Any]

ANSWER = "keyframe"  # a file of the answers: RESTORED, or why the keyframe could not be put in
POSITION = "position"  # another: for each process a line, what was written until then and the monotonic time
RESTORED = b"restored"
MARK = "_reprokit_fast_forward"
TRAINERS = {  # modules that the script has imported
    "lightning.pytorch.trainer.trainer": "Lightning",
    "pytorch_lightning.trainer.trainer": "Lightning",
    "transformers.trainer": "transformers' Trainer",
}
TICK = 0.02  # seconds, of the clock that stamps files: so the script's next ones are younger than the list of positions
PATIENCE = 300 * 10**9  # nanoseconds for other ranks to come to the keyframe


def listener(agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> EventListener | None:
    """Return the listener that fast-forwards this framework's training; None for other frameworks than PyTorch."""
    asked = dict(question["from_keyframe"])
    if asked.get("ranks"):
        own = [rank for rank in asked["ranks"] if rank["process"] == agent.journal.identity]
        if not own:  # a process beside the ranks
            return None
        asked.update(own[0])
    if question.get("debug"):
        agent.shared[UnheldVariables] = UnheldVariables()
    return FastForward(agent, asked, events) if framework == "torch" and agent.generation == 0 else None


def open_keyframe(agent: Agent, asked: Mapping[str, Any]) -> KeyframeFile:
    """Return the keyframe that is to be put in."""
    path = trail_library.path_of(agent.run)
    if path is None:
        raise RuntimeError("the library that checks keyframes is not there")
    return KeyframeFile(asked["directory"], asked["key"], int(asked["step"]), trail_library.Library(path))


def refuse(agent: Agent, why: str) -> None:
    """Say why the keyframe could not be put in, which ends the replay."""
    append(f"{agent.run}/answers/{ANSWER}", " ".join(why.split())[:500].encode("utf-8", "backslashreplace"))
    append(f"{agent.run}/answers/answered", b".")


def restored(agent: Agent, asked: Mapping[str, Any], file: KeyframeFile) -> None:
    """Say that this process is at the keyframe; the first rank puts files back once all are, as they write them."""
    answers, ranks = f"{agent.run}/answers", asked.get("ranks") or [asked]
    moment, journal, held = monotonic_ns(), agent.journal, file.state.get("files", {})
    agent.attempt(put_back_opened, agent.run, held, file.library.of_bytes)
    position = [journal.identity, asked["key"], *journal.position(), printed(agent.run), moment]
    append(f"{answers}/{POSITION}", to_json(position).encode() + b"\n")
    for trainer in sorted({name for module, name in TRAINERS.items() if module in sys.modules}):
        kept = f"what {trainer} keeps in memory to log it later, such as means and histories"
        agent.warn(f"{kept}, is of the fast-forward until step {int(asked['step']):,}", "log-of-fast-forward")
    if asked["key"] == ranks[0]["key"]:
        _await(answers, lambda: _read(f"{answers}/{POSITION}").count(b"\n") >= len(ranks))
        agent.attempt(put_back_closed, agent.run)
        sleep(TICK)
        append(f"{answers}/{ANSWER}", RESTORED)
    else:
        _await(answers, lambda: _read(f"{answers}/{ANSWER}") == RESTORED)


def _await(answers: str, has_come: Callable[[], bool]) -> None:
    """Wait for the other ranks; raises where one of them is refused, or does not come."""
    deadline = moment = monotonic_ns()
    deadline += PATIENCE
    while not has_come():
        answer = _read(f"{answers}/{ANSWER}")
        if (answer and answer != RESTORED) or moment > deadline:
            raise ValueError("another rank did not come to the keyframe")
        sleep(0.01)
        moment = monotonic_ns()


class AllNames:
    """Contains every name: all variables that a keyframe has are put back."""

    def __contains__(self, _name: object) -> bool:
        return True


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


class FastForward:
    """Leaves out what is costly until the keyframe, and puts its state in."""

    def __init__(self, agent: Agent, asked: Mapping[str, Any], events: Events) -> None:
        self._agent, self._events = agent, events
        self._torch: Any = sys.modules["torch"]
        self._asked, self._updates, self._count = asked, int(asked["updates"]), 0
        self._results = FirstResults(self._torch)
        self._unheld: UnheldVariables | None = agent.shared.get(UnheldVariables)
        self._view = TrainingView(self._torch, lambda: recording_hooks(agent).modules, tensors.compiled)  # type: ignore[union-attr]
        self._view.stand_apart()
        self.is_skipping = False
        self._is_scaling = False  # within a step of a gradient scaler that is made
        self._has_left_out = False  # whether the last step of a gradient scaler was not made
        self._has_ended = False
        try:
            self._file = open_keyframe(agent, asked)
            self._states = states_in(self._file.draws)
            self._next = next(self._states, None)
        except Exception as error:
            self._refuse(str(error))
            raise
        os.register_at_fork(after_in_child=self._end)
        self._leave_out()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {**self._view.handlers(), ScalerMade: self._scaler_made, UpdateDone: self._updated}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the replay: nothing after a state that was put in by half is an answer."""
        self._refuse(f"{type(error).__name__}: {error}")

    def _refuse(self, why: str) -> None:
        self._has_ended = True
        refuse(self._agent, why)

    # What is left out

    def _leave_out(self) -> None:
        """Wrap what is costly. The wrappers that report events come outside of these, so that all steps are counted."""
        torch = self._torch
        replace(torch.nn.Module, "__call__", self._make_call, MARK)
        replace(torch.autograd, "backward", self._make_nothing, MARK)
        replace(torch.autograd, "grad", self._make_zeros, MARK)
        replace(torch.nn.Module, "zero_grad", self._make_nothing, MARK)
        optimizer = sys.modules["torch.optim.optimizer"].Optimizer
        replace(optimizer, "zero_grad", self._make_nothing, MARK)
        replace(optimizer, "__init__", self._make_initializer, MARK)

    def _make_call(self, original: Function) -> Function:
        alone = private_api.without_other_ranks(original)

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.is_skipping:
                return self._results.of(alone, module, arguments, keywords)
            return original(module, *arguments, **keywords)

        return call

    def _make_nothing(self, original: Function) -> Function:
        return lambda *arguments, **keywords: None if self.is_skipping else original(*arguments, **keywords)

    def _make_zeros(self, original: Function) -> Function:
        def grad(outputs: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self.is_skipping:
                return original(outputs, inputs, *arguments, **keywords)
            return tuple([each.detach() * 0 for each in ([inputs] if tensors.is_tensor(inputs) else inputs)])

        return grad

    def _make_initializer(self, original: Function) -> Function:
        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            replace_method(type(optimizer), "step", self._make_step, MARK)
            original(optimizer, *arguments, **keywords)

        return initialize

    def _make_step(self, original: Function) -> Function:
        def step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self.is_skipping:
                return original(optimizer, *arguments, **keywords)
            closure = arguments[0] if arguments else keywords.get("closure")
            with self._torch.enable_grad():
                return None if closure is None else closure()

        return step

    # Gradient scalers

    def _scaler_made(self, event: ScalerMade) -> None:
        self._view.objects.scalers.add(event.scaler)
        makers = {"step": self._make_scaler_step, "unscale_": self._make_unscale, "update": self._make_update}
        for name, make in makers.items():
            replace_method(type(event.scaler), name, make, MARK)

    def _make_unscale(self, original: Function) -> Function:
        return lambda *arguments: None if self.is_skipping and not self._is_scaling else original(*arguments)

    def _make_update(self, original: Function) -> Function:
        return lambda *arguments, **keywords: None if self._has_left_out else original(*arguments, **keywords)

    def _make_scaler_step(self, original: Function) -> Function:
        """Let a scaler update where the recording did; where it skipped, only draw as the recording did."""

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            before = self._count
            is_skipped = self._next is not None and self._next[1]
            self._has_left_out = self.is_skipping and (is_skipped or before + 1 < self._updates)
            if not self._has_left_out:
                result = self._scale_truly(original, scaler, optimizer, arguments, keywords)
            else:
                result = None if is_skipped else optimizer.step(*arguments, **keywords)
            if self._count == before and not self._has_ended and before < self._updates:
                try:
                    self._put_back_next(is_skipped=True)
                except Exception as error:
                    self.failed(error, self._scaler_made)
                    pass_on(error)
            return result

        return step

    def _scale_truly(
        self, original: Function, scaler: Any, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Make a scaler's step; in the keyframe's its update needs gradients that overflow if the recording's did."""
        value = float("inf") if self._file.state.get("overflow") else 0.0
        for parameter in parameters_of(optimizer) if self.is_skipping else ():
            parameter.grad = self._torch.full_like(parameter, value)
        self._is_scaling = True
        try:
            return original(scaler, optimizer, *arguments, **keywords)
        finally:
            self._is_scaling = False

    # Steps

    def _updated(self, _event: UpdateDone) -> None:
        if self._has_ended or self._count >= self._updates:
            return
        self._count += 1
        if self._count == 1:
            self._view.search()
            self._begin()
        self._put_back_next(is_skipped=False)
        if self._count == self._updates:
            self._end()
            self._put_in()
            restored(self._agent, self._asked, self._file)

    def _begin(self) -> None:
        self.is_skipping = True
        if self._unheld is not None:
            self._unheld.note(sys._getframe())
        trail = self._agent.shared.get(StepTrail)
        if trail is not None:
            trail.suspend()
            self._events.arrange()

    def _end(self) -> None:
        self.is_skipping = False
        self._results.clear()
        trail = self._agent.shared.get(StepTrail)
        if trail is not None:
            trail.resume()
            self._events.arrange()

    def _put_back_next(self, *, is_skipped: bool) -> None:
        """Put the states in that the generators had after the next update, or after the next that was skipped."""
        if self._next is None:
            raise ValueError("the log of the generators ends before the keyframe")
        states, was_skipped = self._next
        if was_skipped is not is_skipped:
            raise ValueError("the gradient scaler skips other updates than the recording's")
        self._next = next(self._states, None)
        self._put_back_states(states)

    def _put_back_states(self, states: Mapping[str, bytes]) -> None:
        self._view.random.keep()
        now = self._view.random.packed()
        put_back_packed({name: states[name] for name in states if now.get(name) != states[name]}, self._torch)

    def _put_in(self) -> None:
        """Put all of the keyframe's state in."""
        self._view.search()
        state, view = self._file.state, self._view
        if self._unheld is not None:
            self._unheld.look(state[VARIABLES], sys._getframe())
        reader = SnapshotReader(self._torch, self._file.tensors)
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            entries = view.entries(are_named=False)
            for kind in KINDS:
                if kind is not StateKind.GRADIENTS:
                    view.put_back_entries(kind, entries, state["entries"][kind.value], reader)
            of_loader = state["random"].get(LOADER, state.get(f"{LOADER} random"))  # apart in format 11
            put_random(view.generators(), {LOADER: of_loader}, reader)
            view.put_back_variables(state[VARIABLES], reader, AllNames())
        metrics = self._agent.shared.get(Metrics)
        if metrics is not None:
            metrics.put_back_losses(state.get("losses", {}))
