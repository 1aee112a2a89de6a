"""Lets graphs that capture be saved by tf.saved_model, which refuses those with variables that nobody has saved."""

from __future__ import annotations

from ..tensorflow import private_api
from .tensorflow_steps import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Function = Callable[..., Any]

OURS = "reprokit_"  # begins the name of each variable of ours


def watch_saving(variables: Callable[[], Iterable[Any]]) -> None:
    """Have variables of ours saved as if what is saved had them, where its graphs cannot be saved without."""
    module, view = private_api.saving()
    if view is not None and hasattr(module, "save_and_return_nodes"):
        saving = SavedModelWatch(variables)
        put(module, "save_and_return_nodes", saving.make_save)
        put(view, "list_children", saving.make_list_children)


class SavedModelWatch:
    def __init__(self, variables: Callable[[], Iterable[Any]]) -> None:
        self._variables = variables
        self._are_needed = False

    def make_save(self, original: Function) -> Function:
        """Once more with them, where TensorFlow names one of them; it has written nothing then."""

        def save(*arguments: Any, **keywords: Any) -> Any:
            try:
                return original(*arguments, **keywords)
            except AssertionError as error:
                if OURS not in str(error):
                    raise
            self._are_needed = True
            try:
                return original(*arguments, **keywords)
            finally:
                self._are_needed = False

        return save

    def make_list_children(self, original: Function) -> Function:
        """They are children of what is saved."""

        def list_children(view: Any, saved: Any) -> Any:
            if self._are_needed and saved is view.root:
                list(original(view, saved))  # has graphs built, for which there may be variables since
                children = private_api.children(view)[saved]
                children.update({f"_{OURS}{place}": one for place, one in enumerate(self._variables())})
            return original(view, saved)

        return list_children
