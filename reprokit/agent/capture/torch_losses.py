"""Losses that backward() is called of, and gradients that are clipped after it."""

from __future__ import annotations

from .torch_held import Held
from .torch_steps import Steps
from .torch_watched import drop_gradients, graph_parameters, loss_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]


class Losses(Steps):
    """Tests losses, and gradients before clipping spreads what is not finite."""

    def _make_backward(self, original: Function) -> Function:
        is_compiling, attempt, lost, after = self._is_compiling, self._capture.attempt, self._lost, self._after_backward
        arm, records = self._arm, self._watched.records
        task: Function = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.backwards or task() != -1:
                return original(tensors, *arguments, **keywords)
            try:
                lost(held, tensors)
            except Exception as error:
                self._warn("_lost", error)
            held.backwards = True  # checkpointing calls backward within backward
            try:
                result = original(tensors, *arguments, **keywords)
            finally:
                held.backwards = False
            held.round += 1
            held.root = None
            if held.triggers or held.compiled:
                attempt(after, held)
            elif held.began and not held.armed and held.closure is None and records:
                arm(held)  # the step may go on with another batch
            return result

        return backward

    def _lost(self, held: Held, tensors: Any) -> None:
        """backward() is called of this."""
        if not self._watched.records:
            return
        if held.clean:
            held.clean = {}
        if not self._is_plain_loss(held, tensors):
            loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
            if loss is None or loss.numel() == 0:
                return
            held.loss = loss.detach()
            if not held.is_scaled:  # with what a GradScaler multiplies, it may well overflow
                self._judge(held, loss)
        if self._ranks.are_several:
            self._ranks.watch(self._parameters_of_all())
        if held.triggers and len(self._watched.records) > 1:
            held.reached = graph_parameters(tensors)
        if held.triggers or held.far or held.counts:
            self._tell_ranks(held, tensors)
        if not (held.saw_loader or held.batches.earlier or held.closure):
            target = loss_target(tensors)
            if target is not None:
                held.batches.add("loss", {"target": target[1]}, target[0])

    def _is_plain_loss(self, held: Held, loss: Any) -> bool:
        """Whether it is a finite number on the CPU, as in most steps; then it is kept as such."""
        if held.is_scaled or self._above is not None:
            return False
        value, shape = None if self._compiled is None else self._compiled.finite_number(loss), ()
        if value is None:
            if type(loss) is not self._tensor or not loss.is_cpu:
                return False
            shape = loss.shape
            value = loss.item() if loss.numel() == 1 else None
            if type(value) is not float or value - value != 0:
                return False
        held.losses.append(value)
        held.loss = value, loss.dtype, shape
        return True

    def _tell_ranks(self, held: Held, tensors: Any) -> None:
        """What other processes cannot see in the gradients goes with them."""
        if not self._ranks.are_several:
            return
        if held.triggers:
            self._ranks.tell(held.triggers[0], self._parameters().values())
        elif hasattr(tensors, "register_hook"):
            signals = self._signals(held)
            if self._above is not None:
                signals = [*signals, *[(self._above - loss).sqrt() for loss in held.far]]
            self._ranks.tell_from_device(tensors, signals)

    def _after_backward(self, held: Held) -> None:
        if held.closure is not None or not self._watched.records:
            return
        if held.compiled and not held.triggers:
            self._test_compiled(held)
        if held.phase is not None and held.phase.copy is None:
            held.triggers = []  # the step is refused already, and its other backward passes are nobody's
        if held.triggers and self._ranks.have_heard(held.began_at[1]):
            records = self._due(held)
            triggers = self._snapshooter.gradient_triggers(self._models(), records)
            self._alarm(held, records, held.triggers + triggers)
            if held.compiled:
                drop_gradients(self._watched.alive())
        if held.began and not held.armed:
            self._rearm(held)

    def _rearm(self, held: Held) -> None:
        """The step may go on with another batch."""
        if held.closure is None and self._watched.records:
            self._arm(held)

    def _test_compiled(self, held: Held) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        held.tested = held.round
        if not held.is_scaled:
            held.triggers += self._triggers(held, self._with_gradients(), is_scaled=False)

    def _make_clip(self, original: Function) -> Function:
        is_compiling, attempt, test, tested = self._is_compiling, self._capture.attempt, self._clip, self._clipped

        def clip_grad_norm_(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or not self._watched.records:
                return original(parameters, *arguments, **keywords)
            if not hasattr(parameters, "data_ptr"):
                parameters = list(parameters)  # it may be a generator
            gradients = attempt(test, held, parameters)
            if gradients is None and held.skipped:
                keywords.pop("error_if_nonfinite", None)
                return original(parameters, *arguments[:2], **keywords)
            result = original(parameters, *arguments, **keywords)
            if gradients:
                attempt(tested, held, gradients)
            return result

        return clip_grad_norm_

    def _clip(self, held: Held, parameters: Any) -> list[Any] | None:
        """Test gradients before clipping spreads what is not finite to all of them; None where they must go."""
        if held.is_scaled:  # a GradScaler has found out by itself
            return []
        if held.skipped:
            return None
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        wanted = set(map(id, parameters))
        records = [one for one in self._watched.alive() if any(id(p) in wanted for p in one.parameters())]
        if (
            not gradients
            or not records
            or self._gradients.are_finite(self._watched.clipped, gradients, self._signals(held))
        ):
            held.clean_for = set(map(id, records))
            return gradients if records else []
        held.triggers += self._far_triggers(held) + self._snapshooter.gradient_triggers(self._models(), records)
        if not held.triggers or held.closure is not None:  # whose evaluation is judged when it is over
            return []
        self._alarm(held, records, held.triggers)
        return None

    def _clipped(self, held: Held, gradients: list[Any]) -> None:
        held.note_clean(gradients, held.clean_for)
        held.far, held.counts = [], []
