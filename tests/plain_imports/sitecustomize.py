"""Leaves out what a framework imports only because it is installed, and no training of the tests needs.

TensorFlow and Keras import JAX, Matplotlib, pandas and scikit-learn where they find them, and PyTorch's first optimizer
imports the compiler: half of the time that a small training takes. A script that uses one of these has it all the same.
"""

import functools
import sys
from importlib.machinery import PathFinder, SourceFileLoader

BESIDE = {  # a package, and the modules that do without it
    "jax": ("tensorflow.", "keras.src.callbacks."),
    "matplotlib": ("keras.", "lightgbm."),
    "pandas": ("keras.", "xgboost.", "lightgbm."),
    "sklearn": ("keras.",),
}


class PlainImports:
    """Stands at the front of sys.meta_path."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in BESIDE and _importer().startswith(BESIDE[name]):
            raise ModuleNotFoundError(f"left out by the tests: {name}", name=name)
        if name != "torch._compile":
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = CompilerNames(name, spec.origin)
        return spec


class CompilerNames(SourceFileLoader):
    """Loads the module by which PyTorch's functions leave themselves out of what is compiled."""

    def exec_module(self, module):
        super().exec_module(module)
        module._disable_dynamo = functools.partial(_disable, module._disable_dynamo)


def _disable(original, function=None, recursive=True):
    if function is None:
        return functools.partial(_disable, original, recursive=recursive)
    disabled = original(function, recursive)

    @functools.wraps(function)
    def either(*arguments, **keywords):
        return (disabled if "torch._dynamo" in sys.modules else function)(*arguments, **keywords)

    return either


def _importer():
    """Return the name of the module whose import statement this is."""
    frame, name = sys._getframe(2), "importlib"
    while frame is not None and name.startswith(("importlib", "_reprokit_agent")):
        name, frame = frame.f_globals.get("__name__", ""), frame.f_back
    return name


sys.meta_path.insert(0, PlainImports)
