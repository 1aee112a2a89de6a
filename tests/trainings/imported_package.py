"""Imports a package through a finder that asks all others, or through a loader that takes no attributes."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

CASE = "asking"


class Asking:
    asking = False

    def find_spec(self, name, path=None, target=None):
        if self.asking:
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asking = False


class Loader:
    __slots__ = ()

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__version__ = "9.8"


class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Loader()) if name == "xgboost" else None


if CASE == "asking":
    sys.meta_path.insert(0, Asking())
else:
    sys.meta_path.insert(1, Finder())
import xgboost  # noqa: E402

print(xgboost.__version__)
