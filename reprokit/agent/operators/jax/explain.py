"""Executes a jaxpr primitive by primitive, and finds the one that first gave a non-finite value.

What is finite as a whole is not looked into: a loop's iterations and called functions are compiled, and executed
primitive by primitive only where a result of theirs is not finite.
"""

from __future__ import annotations

import re
import sys

from ...capture.jax_state import as_array, is_key
from ...capture.tensorflow_state import is_finite, limits_of, numbers
from ...core import user_frames
from ...events.operators import BACKWARD, FORWARD, UPDATE
from ..explain import MAX_TENSORS, CallOrigin, OperandStatistics, OperatorEvent, OperatorTrace, cause, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

MAX_ITERATIONS = 100  # of a loop, that are executed primitive by primitive
CONSTANT = "a constant of the function"
# Primitives that only call a function, whose inputs are theirs, and where they have it.
_CALLS = {"checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_CALLS |= {"jit", "pjit", "remat", "remat2"}
_FUNCTIONS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_TRANSFORMATIONS = re.compile(r"\b(?:jvp|transpose|vmap|remat|checkpoint|rematted_computation)\b|[()]")


class PrimitiveWatcher:
    """Executes jaxprs, and records the primitives whose results are not finite."""

    def __init__(self, jit: Any) -> None:
        self._jit = jit
        self._trace = OperatorTrace()
        self._alive: list[Any] = []  # what is not finite, so that no other array gets its id
        self._names: dict[int, str] = {}  # of inputs and constants that are not finite, by id
        self._loops: list[str] = []  # iterations that are being executed, the outermost first
        self._iterations: dict[int, str] = {}  # by the number of an event
        self._updates: set[int] = set()

    def cause(self, jaxpr: Any, inputs: Sequence[tuple[str, Any]], places: Sequence[int]) -> dict[str, Any] | None:
        """Return result.json's entry for what made these results not finite; None if they are finite this time."""
        for name, leaf in inputs:
            if not _is_finite(leaf):
                self._name(leaf, name)
        results = self._closed(jaxpr, [leaf for _, leaf in inputs])
        bad = [results[place] for place in places if place < len(results) and not _is_finite(results[place])]
        if not bad:
            return None
        event = cause(self._trace.ancestors(*map(id, bad)))
        if event is None:
            name = next((self._names[id(leaf)] for leaf in bad if id(leaf) in self._names), "")
            return {"words": f"{name} was not finite before the step, and was returned"} if name else None
        entry = line(event, None)
        if event.number in self._updates:
            entry["phase"] = UPDATE
        if event.number in self._iterations:
            entry["words"] = f"{entry['words']}; {self._iterations[event.number]}"
        return entry

    # Execution

    def _closed(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
        return self._execute(closed.jaxpr, closed.consts, inputs)

    def _execute(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Return the results of a jaxpr; values are dropped after their last use."""
        for constant in constants:
            if not _is_finite(constant):
                self._name(constant, CONSTANT)
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs]))
        last = {id(each): n for n, equation in enumerate(jaxpr.eqns) for each in equation.invars}
        last.update({id(each): len(jaxpr.eqns) for each in jaxpr.outvars})
        for number, equation in enumerate(jaxpr.eqns):
            results = self._equation(equation, [_value(each, values) for each in equation.invars])
            values.update(zip(equation.outvars, results))
            for each in [*equation.invars, *equation.outvars]:
                if last.get(id(each), -1) <= number and not hasattr(each, "val"):
                    values.pop(each, None)
        return [_value(each, values) for each in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        results = _bound(equation, inputs)
        self._trace.count += 1
        if all(map(_is_finite, results)):
            return results
        inner = self._looked_into(equation, inputs)
        if inner is not None and not all(map(_is_finite, inner)):
            return inner
        self._record(equation, inputs, results)
        return results

    def _looked_into(self, equation: Any, inputs: Sequence[Any]) -> list[Any] | None:
        """Execute the functions within an equation; return its results, or None if it has none that are known."""
        name, params = equation.primitive.name, equation.params
        if name == "scan" and params["length"]:
            return self._scan(equation, inputs)
        if name == "while":
            return self._while(equation, inputs)
        if name == "cond":
            index = int(as_array(inputs[0]))
            return self._closed(params["branches"][max(0, min(index, len(params["branches"]) - 1))], inputs[1:])
        function = next((params[key] for key in _FUNCTIONS if key in params), None) if name in _CALLS else None
        if function is None or len(_open(function).invars) != len(inputs):
            return None
        return self._execute(_open(function), getattr(function, "consts", ()), inputs)

    def _scan(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        params, jnp = equation.params, sys.modules["jax"].numpy
        constants, state = params["num_consts"], params["num_consts"] + params["num_carry"]
        carry, rows, length = list(inputs[constants:state]), inputs[state:], int(params["length"])
        body = self._loop_body(equation, params["jaxpr"], length)
        stacks: dict[int, list[Any]] = {}
        for number in reversed(range(length)) if params["reverse"] else range(length):
            slices = [self._same_origin(row, row[number]) for row in rows]
            results = body([*inputs[:constants], *carry, *slices], number)
            carry, stacks[number] = results[: params["num_carry"]], results[params["num_carry"] :]
        columns = [[stacks[number][n] for number in range(length)] for n in range(len(equation.outvars) - len(carry))]
        stacked = [jnp.stack(column) for column in columns]
        for column, whole in zip(columns, stacked):
            for part in column:
                self._same_origin(part, whole)
        return [*carry, *stacked]

    def _while(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        params = equation.params
        of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
        body, test = self._loop_body(equation, params["body_jaxpr"]), self._compiled(params["cond_jaxpr"])
        carry, number = list(inputs[of_test + of_body :]), 0
        while bool(as_array(test(*inputs[:of_test], *carry)[0])):
            carry = body([*inputs[of_test : of_test + of_body], *carry], number)
            number += 1
        return carry

    def _loop_body(self, equation: Any, closed: Any, length: int | None = None) -> Any:
        """Return a function that executes an iteration, compiled unless something in it is not finite."""
        compiled, looked_into = self._compiled(closed), 0
        place = next(iter(_places(equation)), None)
        where = "" if place is None else f" at {place[0]}:{place[1]}"

        def iterate(values: list[Any], number: int) -> list[Any]:
            nonlocal looked_into
            results = compiled(*values)
            if all(map(_is_finite, results)):
                return list(results)
            if looked_into >= MAX_ITERATIONS:
                for result in results:
                    for value in values:
                        self._same_origin(value, result)
                return list(results)
            looked_into += 1
            of = "" if length is None else f" of {length:,}"
            self._loops.append(f"in iteration {number:,}{of} (from 0) of the {equation.primitive.name}{where}")
            inner = self._closed(closed, values)
            self._loops.pop()
            return inner

        return iterate

    def _compiled(self, closed: Any) -> Any:
        evaluate = sys.modules["jax"].core.eval_jaxpr
        return self._jit(lambda *values: evaluate(closed.jaxpr, closed.consts, *values))

    # What is recorded

    def _record(self, equation: Any, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        where, names = _places(equation), str(equation.source_info.name_stack)
        phase = BACKWARD if "transpose(" in names else FORWARD
        event = OperatorEvent(self._trace.count, equation.primitive.name, phase, CallOrigin(where, _layer(names)))
        if "jvp(" not in names and _is_of_optimizer(equation):
            self._updates.add(event.number)
        if self._loops:
            self._iterations[event.number] = ", ".join(reversed(self._loops))
        for atom, value in zip(equation.invars, inputs):
            self._note_input(event, value, is_literal=hasattr(atom, "val"))
        if not inputs:
            event.is_intended = True
        bad = [result for result in results if not _is_finite(result)]
        arrays = [as_array(result) for result in bad]
        outputs = [_statistics("", array) for array in arrays[:MAX_TENSORS]]
        event.introduces_nan = any(each.nans for each in outputs) and not any(each.nans for each in event.inputs)
        operands = [numbers(as_array(value)) for value in inputs if _has_numbers(value)]
        event.describe(sys.modules["numpy"], event.inputs, outputs, numbers(arrays[0]), operands)
        self._alive += bad
        self._trace.add(event, map(id, bad))

    def _note_input(self, event: OperatorEvent, value: Any, *, is_literal: bool) -> None:
        if not _has_numbers(value):
            return
        statistics = _statistics("", as_array(value))
        event.inputs.append(statistics)
        producer = self._trace.producer([id(value)])
        if not statistics.nonfinite:
            return
        name = self._names.get(id(value), "")
        if producer is not None:
            event.parents.append(producer)
        elif not statistics.nans and (is_literal or name == CONSTANT):
            event.is_intended = True  # an infinite number of the script's, such as a mask's
        else:
            event.foreign_inputs.append((name, statistics))

    def _name(self, value: Any, name: str) -> None:
        self._alive.append(value)
        self._names[id(value)] = name

    def _same_origin(self, value: Any, other: Any) -> Any:
        """Record that what is not finite in ``other`` comes from where ``value`` does; return ``other``."""
        if value is other or _is_finite(value) or _is_finite(other):
            return other
        self._alive.append(other)
        self._trace.assign(self._trace.producer([id(value)]), id(other))
        if id(value) in self._names:
            self._names[id(other)] = self._names[id(value)]
        return other


def _value(atom: Any, values: dict[Any, Any]) -> Any:
    return atom.val if hasattr(atom, "val") else values[atom]


def _open(function: Any) -> Any:
    return getattr(function, "jaxpr", function)


def _bound(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Execute an equation as it is."""
    primitive, bound = equation.primitive, equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # functions before 0.10
    with equation.ctx.manager:
        results = primitive.bind(*functions, *inputs, **params)
    return list(results) if primitive.multiple_results else [results]


def _has_numbers(value: Any) -> bool:
    return hasattr(value, "dtype") and not is_key(value) and as_array(value).dtype.kind in "biufcV"


def _is_finite(value: Any) -> bool:
    return not _has_numbers(value) or is_finite(as_array(value))


def _statistics(name: str, array: Any) -> OperandStatistics:
    return OperandStatistics(
        sys.modules["numpy"], numbers(array), name, array.dtype.name, array.shape, limits_of(array)
    )


def _frames(equation: Any) -> Iterator[Any]:
    traceback = equation.source_info.traceback
    return iter(() if traceback is None else traceback.frames)


def _places(equation: Any) -> list[user_frames.Place]:
    """Return the places in the user's code that led to an equation, the innermost first."""
    places = [(frame.file_name, frame.line_num, frame.function_name) for frame in _frames(equation)]
    return [place for place in places if user_frames.is_users(place[0])][: user_frames.MAX_PLACES]


def _is_of_optimizer(equation: Any) -> bool:
    """Return whether optax called what led to an equation."""
    for frame in _frames(equation):
        if user_frames.is_users(frame.file_name):
            return False
        if user_frames.installed_package(frame.file_name) == "optax":
            return True
    return False


def _layer(names: str) -> str:
    """Return the module that a stack of names leads to, without transformations: Dense_0 of jvp(Net)/Dense_0."""
    words = [_TRANSFORMATIONS.sub("", word) for word in names.split("/")]
    return "/".join([word for word in words if word])
