"""Import hooks: one tells when a watched module has been executed, one finds reprokit where it is not installed."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import ModuleType

_MARK = "_reprokit_listens"  # an exec_module that tells of the module it executed
_PACKAGE = os.path.abspath(__file__).rpartition("/agent/core/")[0]  # where reprokit itself lies


class Watcher:
    """Stands at the front of sys.meta_path, lets the others find a module, and listens to its loader."""

    def __init__(
        self, names: Collection[str], loaded: Callable[[str, ModuleType], None], warn: Callable[[str], None]
    ) -> None:
        self._names = names
        self._loaded = loaded
        self._warn = warn
        self._asking: set[str] = set()
        self.importing: Callable[[str, bool], object] | None = None  # told the name before and after

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, listened to; None for a module that nobody waits for."""
        if name not in self._names or name in self._asking:
            return None
        self._asking.add(name)  # some finders ask all of sys.meta_path themselves
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            self._listen(spec)
        return spec

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _listen(self, spec: ModuleSpec) -> None:
        """Put an exec_module on this one loader object, which stays what and where it was."""
        name, loader, loaded = spec.name, spec.loader, self._loaded
        previous = getattr(loader, "exec_module", None)
        if previous is None or isinstance(loader, type):
            self._warn(f"{name} comes from a loader that cannot be listened to: {loader!r}")
            return
        if hasattr(previous, _MARK):
            return

        def exec_module(module: ModuleType) -> None:
            ours = getattr(module.__spec__, "name", name) == name  # a loader may serve several modules
            if ours:
                vars(loader).pop("exec_module", None)
            self._execute(previous, module)
            if ours:
                loaded(name, module)

        try:
            setattr(exec_module, _MARK, True)
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:
            self._warn(f"{name} comes from a loader that cannot be listened to: {loader!r}")

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


class Fallback:
    """Stands at the end of sys.meta_path, so that `import reprokit` works in a run where it is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of the package that this agent belongs to."""
        if name != "reprokit":
            return None
        loader = SourceFileLoader(name, os.path.join(_PACKAGE, "__init__.py"))
        spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
        spec.has_location = True
        spec.submodule_search_locations = [_PACKAGE]
        return spec
