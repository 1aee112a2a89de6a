"""Lets graphs that capture be saved by tf.saved_model, which refuses those with variables that nobody has saved."""

from __future__ import annotations

import sys

from .tensorflow_steps import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MODULE = "tensorflow.python.saved_model.save"


def watch_saving(attempt: Callable[..., Any], ours: Callable[[], Iterable[Any]]) -> None:
    """Have variables of ours saved as what is saved had them, for the time of that."""
    view = getattr(sys.modules.get(MODULE), "_AugmentedGraphView", None)
    if view is None:
        return

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def list_children(view: Any, saved: Any) -> Any:
            if saved is view.root:
                attempt(add, view, original)
            return original(view, saved)

        return list_children

    def add(view: Any, original: Callable[..., Any]) -> None:
        list(original(view, view.root))  # has graphs built, for which there may be variables since
        for number, variable in enumerate(ours()):
            view._children_cache[view.root][f"_reprokit_{number}"] = variable

    put(view, "list_children", make)
