"""Patches of TensorFlow: its deterministic operations, and its pools of threads."""

from __future__ import annotations

import os

from ..core.patching import all_of, swap
from ..tensorflow import private_api
from . import PatchUnfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Tell

_SETTERS = ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")


def tf_deterministic(module: Any, value: str, tell: Tell) -> None:
    """Deterministic operations, and a seed for random ones, which raise without any; the script's own replaces it."""
    module.config.experimental.enable_op_determinism()
    module.random.set_seed(int.from_bytes(os.urandom(4), "little"))
    tell.undo_by(private_api.module("config").disable_op_determinism)


def tf_threads(module: Any, value: str, tell: Tell) -> None:
    """So many threads inside of operations, and so many for operations; what the script asks for is ignored."""
    count = int(value or "1")
    undos = []
    threading = getattr(module.config, "threading", None)
    if threading is not None:
        undos += [_fixed(threading, name, count) for name in _SETTERS]
    session = private_api.module("session")
    if session is not None:
        undos.append(swap(session.BaseSession, "__init__", _with_threads(module, count)))
    if not undos:
        raise PatchUnfit("this TensorFlow has no setting for its threads")
    tell.undo_by(all_of(undos))


def _fixed(threading: Any, name: str, count: int) -> Callable[[], None]:
    """Set a count now, while nothing runs, and let nothing change it."""
    getattr(threading, name)(count)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_threads(num_threads: Any) -> None:
            original(count)

        return set_threads

    return swap(threading, name, make)


def _with_threads(module: Any, count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A session's constructor that takes its configuration with these counts."""
    make_config = getattr(module, "compat", module).v1.ConfigProto

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
            ours = make_config()
            if isinstance(config, make_config):
                ours.CopyFrom(config)
            ours.intra_op_parallelism_threads = ours.inter_op_parallelism_threads = count
            original(self, target, graph, ours)

        return create

    return make
