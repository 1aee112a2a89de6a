"""Reads plan.json, by which the launcher tells the agent what to do: once in a process."""

from __future__ import annotations

from .json_text import from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_plans: dict[str, Mapping[str, Any]] = {}


def read_plan(run: str) -> Mapping[str, Any]:
    """Return the plan of a run directory; a key that it lacks was not asked for."""
    plan = _plans.get(run)
    if plan is None:
        with open(run + "/plan.json", encoding="utf-8") as file:
            decoded = from_json(file.read())
        plan = _plans[run] = decoded if isinstance(decoded, dict) else {}
    return plan
