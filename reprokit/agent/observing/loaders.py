"""How batches are made: the workers and generators of DataLoaders, the parallelism of tf.data, and where it is set."""

from __future__ import annotations

from ..core.user_frames import where
from ..pytorch import private_api
from .call_watch import argument, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Observer

MAX_LOADERS = 200

# Methods of tf.data's Dataset: where the number of parallel calls stands among the arguments, itself the first.
_PARALLEL = {"map": 2, "interleave": 4, "batch": 3, "padded_batch": None, "shuffle": None, "filter": None}


class Loaders:
    """The loaders of this process, by kind and place."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[object, dict[str, Any]] = {}
        observer.in_child(self._lines.clear)

    def note(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """One more loader of this name, made where the user's code is now."""
        places = where(2)
        key = (name, tuple(places[:1]), tuple(sorted((fact, str(facts[fact])) for fact in facts)))
        line = self._lines.get(key)
        if line is None:
            line = {"name": name, **facts, "calls": 0, "where": places}
            if len(self._lines) < MAX_LOADERS:
                self._lines[key] = line
                self._observer.write("loader", key, line)
        line["calls"] += 1
        return line


def observe(module: Any, observer: Observer) -> None:
    """PyTorch, or the module of DataLoader or of tf.data's Dataset, has been imported."""
    loaders = observer.parts.get("loaders") or Loaders(observer)
    observer.parts["loaders"] = loaders
    if module.__name__ == "torch":  # what follows eval() is no step like those before
        watch(observer, module.nn.Module, "eval", lambda *_: observer.resume())
    elif module.__name__ == "torch.utils.data.dataloader":
        _observe_torch(observer, loaders)
    else:
        _observe_tensorflow(module, observer, loaders)


def _observe_torch(observer: Observer, loaders: Loaders) -> None:
    def begin_pass(loader: Any) -> None:
        observer.resume()
        loaders.note("torch.utils.data.DataLoader", _facts_of_torch(loader))

    observer.each_pass(begin_pass)


def _facts_of_torch(loader: Any) -> dict[str, Any]:
    generator, sampler = loader.generator, getattr(loader, "sampler", None)
    return {
        "workers": int(loader.num_workers),
        "generator": "default" if generator is None else "given",
        "worker_init_fn": loader.worker_init_fn is not None,
        "sampler": type(sampler).__name__,
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "in_order": bool(getattr(loader, "in_order", True)),
        "start_method": private_api.start_method(loader),
    }


def _observe_tensorflow(module: Any, observer: Observer, loaders: Loaders) -> None:
    for name in ("DatasetV2", "DatasetV1"):
        owner = getattr(module, name, None)
        for method, position in _PARALLEL.items() if owner is not None else ():
            watch(observer, owner, method, _note_of(loaders, method, position))
        if owner is not None:
            watch(observer, owner, "with_options", _note_options(loaders))


def _note_of(loaders: Loaders, method: str, position: int | None) -> Any:
    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        facts: dict[str, Any] = {}
        if method != "shuffle":
            parallel = keywords.get("num_parallel_calls")
            if parallel is None and position is not None:
                parallel = argument(arguments, keywords, position, "num_parallel_calls")
            facts = {"workers": _number(parallel), "deterministic": _flag(keywords.get("deterministic"))}
        else:
            seed = argument(arguments, keywords, 2, "seed")
            facts = {"seeded": seed is not None}
        if method == "shuffle" or facts["workers"] is not None or facts["deterministic"] is not None:
            loaders.note(f"tf.data.Dataset.{method}", facts)

    return note


def _note_options(loaders: Loaders) -> Any:
    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        options = argument(arguments, keywords, 1, "options")
        name = "deterministic" if hasattr(type(options), "deterministic") else "experimental_deterministic"
        loaders.note("tf.data.Dataset.with_options", {"deterministic": _flag(getattr(options, name, None))})

    return note


def _number(value: Any) -> int | str | None:
    """A number of parallel calls; -1 is tf.data's AUTOTUNE, what else is computed is not asked for."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int) or type(value).__module__ == "numpy":
        return "autotune" if int(value) == -1 else int(value)
    return "computed"


def _flag(value: Any) -> bool | str | None:
    return value if value is None or isinstance(value, bool) else str(value)[:100]
