"""Re-executes a captured step of JAX: in the script's first call of that function, or where a replay comes to it.

The function's arguments are all that its step depends on, but for its static ones, which are the script's.
"""

from __future__ import annotations

from ..operators.jax.explain import PrimitiveWatcher
from .header import LOSS
from .jax_calls import JitWatch, StepCall
from .jax_state import as_array, digest, has_values, non_finite_count, restored_inputs, seen_again, step_with
from .redo import MINIMIZE, RedoDriver, StepOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from . import CaptureSession

NOT_CUT = "steps of JAX cannot be minimized: which axis of an argument has the samples is not known"
BY_ITSELF = "executed primitive by primitive, the step is finite: what began it is how XLA fused it"


class JaxRedo:
    """Executes the captured step, or compares the replay's own with it."""

    def __init__(self, capture: CaptureSession) -> None:
        self._driver = RedoDriver(capture)
        redo = capture.settings.redo
        self._is_in_place = redo is not None and redo.in_place
        self._watch = JitWatch(capture, self._step_done)

    def begin(self, _name: str, module: ModuleType) -> None:
        """Watch calls of jitted functions."""
        self._watch.begin(module)

    def forget(self) -> None:
        """Drop the parent's calls, in a forked child."""
        self._watch.forget()

    def _step_done(self, step: StepCall) -> None:
        driver = self._driver
        driver.require_end()
        if driver.attempt(lambda: self._is_captured_step(step)):
            if driver.mode == MINIMIZE:
                driver.give_up(NOT_CUT)
            driver.attempt(lambda: self._execute(step))

    def _is_captured_step(self, step: StepCall) -> bool:
        header = self._driver.header
        names = [model.get("class") for model in header.models]
        return step.jitted.name in names and (not self._is_in_place or step.number == header.step)

    def _execute(self, step: StepCall) -> None:
        driver, jitted = self._driver, step.jitted
        if not self._is_in_place:
            leaves, notes = restored_inputs(driver.file, step)
            for note in notes:
                driver.problem(note)
            arguments, keywords = step_with(jitted, step, leaves)
            names = [name for name, _ in step.inputs]
            step = StepCall(jitted, arguments, keywords, jitted.jitted(*arguments, **keywords), names)
        outcome = self._outcome(step)
        driver.conclude_trial((), 0, outcome, explain=lambda: driver.attempt(lambda: self._explain(step)))

    def _outcome(self, step: StepCall) -> StepOutcome:
        header = self._driver.header
        captured = [header.trigger, *header.also]
        outputs = {name: leaf for name, leaf in step.outputs if has_values(leaf)}
        digests = {name: digest(leaf) for name, leaf in outputs.items()}
        bad = {name for name, leaf in outputs.items() if non_finite_count(leaf)[0]}
        place = next((trigger.place for trigger in captured if trigger.kind == LOSS), None)
        loss: tuple[float | None, str] = (None, "")
        if place is not None and place < len(step.outputs) and has_values(step.outputs[place][1]):
            leaf = step.outputs[place][1]
            loss = (float(as_array(leaf)) if leaf.size == 1 else None), digest(leaf)
        return StepOutcome(seen_again(captured, step.outputs), digests, loss, bad=bad)

    def _explain(self, step: StepCall) -> dict[str, Any]:
        """Execute the step primitive by primitive, and find what began to be not finite."""
        header, jitted = self._driver.header, step.jitted
        places = [trigger.place for trigger in (header.trigger, *header.also) if trigger.place is not None]
        traced = jitted.jitted.trace(*step.arguments, **step.keywords)  # type: ignore[attr-defined]
        watcher = PrimitiveWatcher(self._watch.jit)
        cause = watcher.cause(traced.jaxpr, step.inputs, [place for place in places if place < len(step.outputs)])
        if cause is None:
            self._driver.problem(BY_ITSELF)
            return {}
        return cause
