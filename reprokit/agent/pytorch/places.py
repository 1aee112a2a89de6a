"""Finds the places in the user's code, and the phases of a step, in which PyTorch's operators are called.

An operator of a backward pass gets the place of the forward operator whose gradient it computes. Autograd numbers the
graph's nodes by thread: the next number at the time of a call reveals the nodes created by the previous call.
"""

from __future__ import annotations

import sys

from ..core.user_frames import is_own, is_users
from ..events.operators import BACKWARD, FORWARD, UPDATE
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from ..core.user_frames import Place

OURS = "ours"  # phase of calls that the agent makes for itself
MAX_PLACES = 3
MAX_DEPTH = 200
MAX_STACKS = 2_000  # that are kept by their keys
MAX_NODES = 200_000  # whose places are kept
MAX_AT_ONCE = 64  # nodes created since the last operator
_LIBRARY, _USER, _ENGINE, _OPTIMIZER, _OPTIMIZERS = range(5)
_KINDS = {
    "torch/autograd/graph.py": _ENGINE,
    "torch/autograd/__init__.py": _ENGINE,
    "torch/optim/optimizer.py": _OPTIMIZER,
}
_PASSING = frozenset(["__torch_dispatch__", "__torch_function__"])  # hooks of modes, ours too, and of subclasses
_ENGINE_CALLS = frozenset(["_engine_run_backward", "backward", "grad"])
_kinds: dict[str, int] = {}


def _kind(file: str) -> int:
    if is_users(file):
        return _USER
    for end, kind in _KINDS.items():
        if file.endswith(end):
            return kind
    return _OPTIMIZERS if "/torch/optim/" in file else _LIBRARY


def _calls_for_itself(frame: FrameType | None) -> bool:
    """Return whether the agent made a call, as for a digest, and did not only pass on one of the script's."""
    while frame is not None and frame.f_code.co_name in _PASSING:
        frame = frame.f_back
    return frame is not None and is_own(frame.f_code.co_filename)


class CallStack:
    """The places and phase derived from a thread's stack."""

    __slots__ = ("codes", "inner", "is_ours", "outer", "updates")

    def __init__(self, frame: FrameType | None, in_backward: bool) -> None:
        self.inner: list[Place] = []  # the user's frames called by the autograd engine, as hooks
        self.outer: list[Place] = []  # the user's frames that called the engine
        self.updates = False
        self.codes: list[CodeType] = []  # kept alive, as the key of a stack has only their addresses
        self.is_ours = _calls_for_itself(frame)
        places = self.inner
        depth = 0
        while frame is not None and depth < MAX_DEPTH:
            code = frame.f_code
            file = code.co_filename
            kind = _kinds.get(file)
            if kind is None:
                kind = _kinds[file] = _kind(file)
            if kind == _USER and code.co_name not in _PASSING:
                places.append((file, frame.f_lineno, code.co_name))
                if len(places) == MAX_PLACES:
                    return
            elif kind >= _OPTIMIZER:
                # A user's own optimizer is called directly by the optimizer's step wrapper; a closure has a step of
                # torch in between.
                self.updates = self.updates or not places or kind == _OPTIMIZER
                if places and kind == _OPTIMIZERS and not self.updates:
                    return
            elif kind == _ENGINE and in_backward and places is self.inner and code.co_name in _ENGINE_CALLS:
                if places:
                    return
                places = self.outer
            frame = frame.f_back
            depth += 1


class Places:
    """The places of a thread's calls, and of the graph nodes that they created."""

    def __init__(self, torch: Any, compiled: Any = None) -> None:
        self._key_of_stack = getattr(compiled, "stack_key", None)
        self._stacks: dict[tuple[bytes, bool], CallStack] = {}
        self._next_node = private_api.next_node(torch)
        self._node = private_api.current_node(torch)
        self._backward_pass = private_api.engine_task(torch)
        self._nodes: dict[int, list[Place]] = {}
        self._seen = self._next_node()
        self.operator = ""  # that is being called

    def forget(self) -> None:
        """Drop the nodes at the end of a step, as most graphs end with it."""
        self._nodes.clear()
        self._seen = self._next_node()

    def made_node(self) -> bool:
        """Return whether the thread has created nodes since the last noted call."""
        return bool(self._next_node() != self._seen)

    def of_call(self, depth: int) -> tuple[list[Place], str]:
        """Return places and phase of the call that is being dispatched."""
        in_backward = self._backward_pass() != private_api.NO_TASK
        key = None if self._key_of_stack is None else self._key_of_stack(depth + 1)
        stack = None if key is None else self._stacks.get((key, in_backward))
        stack = stack or self._new_stack(key, sys._getframe(depth).f_back, in_backward)
        if stack.is_ours:
            return [], OURS
        if not in_backward:
            places, phase = stack.inner, UPDATE if stack.updates else FORWARD
        else:
            places, phase = stack.inner or self._places_of_node() or stack.outer, BACKWARD
        self._note(places)
        return places, phase

    def _new_stack(self, key: bytes | None, frame: FrameType | None, in_backward: bool) -> CallStack:
        """Return the CallStack of a frame, and store it under the key of its stack, if that is known."""
        stack = CallStack(frame, in_backward)
        if key is None:
            return stack
        if len(self._stacks) >= MAX_STACKS:
            self._stacks.clear()
        self._stacks[key, in_backward] = stack
        while frame is not None and len(stack.codes) < MAX_DEPTH:
            stack.codes.append(frame.f_code)
            frame = frame.f_back
        return stack

    def node_name(self) -> str:
        """Return the name of the graph node being evaluated; empty if there is none."""
        node = self._node()
        return "" if node is None else str(node.name())

    def _places_of_node(self) -> list[Place] | None:
        node = self._node()
        return None if node is None else self._nodes.get(private_api.node_number(node))

    def _note(self, places: list[Place]) -> None:
        """Assign the nodes created since the last call to these places."""
        number = self._next_node()
        if number != self._seen:
            if len(self._nodes) > MAX_NODES:
                self._nodes.clear()
            for node in range(max(self._seen, number - MAX_AT_ONCE), number):
                self._nodes[node] = places
            self._seen = number
