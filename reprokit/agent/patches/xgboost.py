"""The patch of XGBoost: its linear booster, whose usual updater changes weights from several threads without a lock."""

from __future__ import annotations

from ..core.patching import swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Tell

LINEAR, VARYING, REPEATING = "gblinear", "shotgun", "coord_descent"


def xgboost_linear(module: Any, value: str, tell: Tell) -> None:
    """gblinear by coord_descent in the place of shotgun; another updater that the script names stays."""
    tell.undo_by(swap(module.Booster, "set_param", _set_param))


def _set_param(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_param(self: Any, params: Any, value: Any = None) -> None:
        named = {params: value} if isinstance(params, str) else dict(params)
        original(self, named)
        if _varies(named):
            original(self, "updater", REPEATING)

    return set_param


def _varies(named: dict[Any, Any]) -> bool:
    """Whether these parameters choose the updater that does not repeat, by name or by none."""
    updater = named.get("updater")
    return updater == VARYING or (named.get("booster") == LINEAR and updater is None)
