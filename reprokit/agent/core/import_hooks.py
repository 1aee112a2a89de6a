"""Import hooks: one reports when a watched module was imported, one finds reprokit if it is not installed."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

from .agent import TRAINING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import ModuleType

    from .agent import Agent

_MARK = "_reprokit_listens"  # attribute of an exec_module that is wrapped already
_PACKAGE = os.path.abspath(__file__).rpartition("/agent/core/")[0]  # where reprokit itself lies


def start(agent: Agent) -> None:
    """Report the modules that adapters patch, and those that features wait for; some may be imported already."""
    adapted = agent.adapters.watched if TRAINING in agent.keeps else ()
    watched = sorted(set(adapted).union(*[names for names, _ in agent.listeners]))
    watcher = ImportWatcher(frozenset(watched), agent.loaded, agent.warn)
    watcher.finding, watcher.importing = agent.imports.searched, agent.imports.executed
    sys.meta_path.insert(0, watcher)
    sys.meta_path.append(FallbackFinder())
    for name in watched:
        module = sys.modules.get(name)
        if module is not None:
            agent.loaded(name, module)


class ImportWatcher:
    """A finder at the front of sys.meta_path that lets the others find a module, and wraps its loader."""

    def __init__(
        self, names: Collection[str], loaded: Callable[[str, ModuleType], None], warn: Callable[[str, str], None]
    ) -> None:
        self._names = names
        self._loaded = loaded
        self._warn = warn
        self._in_progress: set[str] = set()
        self.finding: Sequence[Callable[[str], object]] = ()  # called with the name of each module that is searched for
        self.importing: Callable[[str, bool], object] | None = None  # called before and after each execution

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of a watched module, with its loader wrapped; None for other modules."""
        for listener in self.finding:
            listener(name)
        if name not in self._names or name in self._in_progress:
            return None
        self._in_progress.add(name)  # some finders search all of sys.meta_path themselves
        try:
            spec = self._find_by_others(name, path, target)
        finally:
            self._in_progress.discard(name)
        if spec is not None and spec.loader is not None:
            self._wrap_loader(spec)
        return spec

    def _find_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _wrap_loader(self, spec: ModuleSpec) -> None:
        """Wrap the exec_module of this one loader object, which otherwise stays unchanged."""
        name, loader, loaded = spec.name, spec.loader, self._loaded
        previous = getattr(loader, "exec_module", None)
        if previous is None or isinstance(loader, type):
            self._warn(f"{name} comes from a loader that cannot be listened to: {loader!r}", "loader-unknown")
            return
        if hasattr(previous, _MARK):
            return

        def exec_module(module: ModuleType) -> None:
            is_watched = getattr(module.__spec__, "name", name) == name  # a loader may serve several modules
            if is_watched:
                vars(loader).pop("exec_module", None)
            self._execute(previous, module)
            if is_watched:
                loaded(name, module)

        try:
            setattr(exec_module, _MARK, True)
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:
            self._warn(f"{name} comes from a loader that cannot be listened to: {loader!r}", "loader-unknown")

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        if self.importing is None:
            execute(module)
            return
        name = module.__name__  # which the module may change
        self.importing(name, True)
        try:
            execute(module)
        finally:
            self.importing(name, False)


class FallbackFinder:
    """A finder at the end of sys.meta_path, so that `import reprokit` works in a run without it installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of the package that this agent belongs to."""
        if name != "reprokit":
            return None
        loader = SourceFileLoader(name, os.path.join(_PACKAGE, "__init__.py"))
        spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
        spec.has_location = True
        spec.submodule_search_locations = [_PACKAGE]
        return spec
