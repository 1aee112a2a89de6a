"""Captures the steps of JAX whose loss, gradients or new state are not finite, and ends the training there.

A step is a call of a jitted function that computes gradients. Its arguments are the state before it, and nothing of
its results has come to the script when it is rejected.
"""

from __future__ import annotations

from ..core.user_frames import where
from .header import in_words
from .jax_calls import JitWatch, StepCall, is_array
from .jax_state import FiniteTest, StepContents, triggers
from .settings import NEEDS_CAPTURE, NEEDS_ONE_DEVICE, NEEDS_OTHER_FRAMEWORK, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from . import CaptureSession
    from .header import Trigger

NO_CONDITIONS = "warning: --capture-when is not looked at in steps of jax: only what is not finite is captured"


class StepTests:
    """Finds the outputs of steps that went wrong in them."""

    def __init__(self, watch: JitWatch) -> None:
        self._watch = watch
        self._finite: FiniteTest | None = None

    def triggers(self, step: StepCall) -> list[Trigger]:
        """Wait for a step's outputs, and return triggers for what began to be not finite in it."""
        if self._finite is None:
            self._finite = FiniteTest(self._watch.jit)
        positions = self._finite.positions(step.leaves)
        return triggers(step, positions, self._watch) if positions else []


class JaxCapture:
    """Captures steps of JAX trainings on one device."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._watch = JitWatch(capture, self._step_done)
        self._tests = StepTests(self._watch)
        self._is_off = False

    def begin(self, _name: str, module: ModuleType) -> None:
        """Watch calls of jitted functions from now on; where steps cannot be captured, only say so once one comes."""
        settings = self._capture.settings
        self._watch.begin(module, captures=settings.action == STOP and settings.take is None)

    def _step_done(self, step: StepCall) -> None:
        if self._is_off or (step.number == 0 and not self._can_capture(step)):
            return
        found = self._tests.triggers(step)
        if not found:
            return
        found = [found[0].with_(where=tuple(where(2))), *found[1:]]
        contents = StepContents(step)
        header = self._capture.attempt(contents.header, found)
        path = None if header is None else self._capture.save(header.line(), contents.parts)
        self._capture.captured(step.number, in_words(found[0]), path)

    def _can_capture(self, step: StepCall) -> bool:
        """Return whether steps like this one can be captured; report it if not."""
        settings = self._capture.settings
        if settings.conditions.words:
            self._capture.say_once(NO_CONDITIONS)
        reason = (
            NEEDS_CAPTURE if settings.action != STOP else NEEDS_OTHER_FRAMEWORK if settings.take is not None else ""
        )
        if any(is_array(leaf) and len(leaf.sharding.device_set) > 1 for _, leaf in step.inputs):
            reason = NEEDS_ONE_DEVICE
        if reason:
            self._is_off = True
            self._watch.unavailable(reason)
        return not reason

    def forget(self) -> None:
        """Drop the parent's calls, in a forked child."""
        self._watch.forget()
