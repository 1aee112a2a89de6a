"""The features that the agent starts in a process. A row names a module, which is imported when the row applies.

A new feature adds its row here; neither start.py nor core/ knows it by name. Rows of one table apply in their order.
"""

from __future__ import annotations

from .core.agent import ORDERS, TRAINING
from .frameworks import WATCHED, load

__all__ = ["EACH_PROCESS", "LAST_FACTS", "MODULES", "PLANNED", "SCRIPT", "WATCHED", "load"]

# By key of plan.json: started only if the plan has it, by start(agent, VALUE).
PLANNED = {
    "patches": "patches",
    "profiling": "operators",
    "question": "questions",
    "capture": "capture",
}
# Imported in each process, and started by start(agent) if all of this is kept of the training.
EACH_PROCESS: tuple[tuple[str, frozenset[str]], ...] = (
    ("surroundings.call_sites", frozenset()),
    ("orders.children", frozenset([TRAINING, ORDERS])),
    ("core.import_hooks", frozenset()),
    ("surroundings.import_listing", frozenset([TRAINING])),
    ("surroundings.directory_proxies", frozenset([TRAINING])),
    ("surroundings.environ", frozenset([TRAINING])),
)
# Called if a training is recorded: after the import of one of these modules by FUNCTION(agent, NAME, MODULE).
MODULES = ((("numpy", "sklearn", "torch"), "surroundings.compute_settings.restore_pools"),)
# Likewise, at the end of a process that has imported one of these modules: FUNCTION(agent).
LAST_FACTS = ((("ctypes", "numpy", "tensorflow", "torch"), "surroundings.compute_settings.write_facts"),)
# Calls by the script of reprokit's functions, which core/ does not answer itself: FUNCTION(agent, ARGUMENTS).
SCRIPT = {"log_predictions": "predictions.log_predictions"}
