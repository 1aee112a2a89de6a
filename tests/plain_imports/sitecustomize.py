"""Leaves out what a framework imports only because it is installed, and no training of the tests needs.

TensorFlow and Keras import JAX, Matplotlib, pandas, SciPy and scikit-learn where they find them, PyTorch what its
compiler needs, and its first optimizer the compiler: more than half of the time that a small training takes. A script
that uses one of these has it all the same.

Each Python of the tests starts with this, thousands of them with no framework: importlib and functools, for which most
of their start would go, are imported once a framework is.
"""

import gc
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import PathFinder, SourceFileLoader

BESIDE = {  # a package, and the modules that do without it
    "jax": ("tensorflow.", "keras.src.callbacks."),
    "matplotlib": ("keras.", "lightgbm."),
    "pandas": ("keras.", "lightgbm.", "sklearn.utils.fixes", "xgboost."),
    "scipy": ("tensorflow.python.keras.",),
    "sklearn": ("keras.",),
}
COMPILER = "torch._dynamo"


class PlainImports:
    """Stands in sys.meta_path before what finds files."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in BESIDE and _importer().startswith(BESIDE[name]):
            raise ModuleNotFoundError(f"left out by the tests: {name}", name=name)
        if name == COMPILER and _importer().startswith("torch.optim."):
            return ModuleSpec(name, CompilerLater())
        if name == COMPILER:
            _load_metas()
        if name not in LOADERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = LOADERS[name](name, spec.origin)
        return spec


class CompilerLater:
    """Makes what stands for PyTorch's compiler until something of it is asked for."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.graph_break = lambda *_arguments, **_keywords: None  # as it does where nothing is compiled
        module.__getattr__ = lambda name: _of_compiler(module, name)


def _of_compiler(stand_in, name):
    import importlib

    if name == "__file__":  # inspect asks every module, also while PyTorch is being imported
        raise AttributeError(name)
    if sys.modules.get(COMPILER) is stand_in:
        del sys.modules[COMPILER]
    return getattr(importlib.import_module(COMPILER), name)


class CompilerNames(SourceFileLoader):
    """Loads the module by which PyTorch's functions leave themselves out of what is compiled."""

    def exec_module(self, module):
        super().exec_module(module)
        original = module._disable_dynamo
        module._disable_dynamo = lambda *arguments, **keywords: _disable(original, *arguments, **keywords)


def _disable(original, function=None, recursive=True):
    import functools

    if function is None:
        return functools.partial(_disable, original, recursive=recursive)
    disabled = original(function, recursive)

    @functools.wraps(function)
    def either(*arguments, **keywords):
        is_there = "torch._dynamo.eval_frame" in sys.modules
        return (disabled if is_there else function)(*arguments, **keywords)

    return either


class WithoutCollections(SourceFileLoader):
    """Loads a framework without a look for garbage meanwhile, which takes a tenth of the time and finds none."""

    def exec_module(self, module):
        before = gc.isenabled()
        gc.disable()
        try:
            super().exec_module(module)
        finally:
            if before:
                gc.enable()


class Later(SourceFileLoader):
    """Loads a module once something of it is asked for."""

    def exec_module(self, module):
        def load(name):
            del module.__getattr__
            super(Later, self).exec_module(module)
            return getattr(module, name)

        module.__getattr__ = load


class Metas(Later):
    """Loads operators on tensors without content later, and at once what generators need of that."""

    def exec_module(self, module):
        super().exec_module(module)
        torch = sys.modules["torch"]
        if hasattr(torch._C, "_set_generator_metaclass"):
            from torch._opaque_base import OpaqueBaseMeta

            torch._C._set_generator_metaclass(OpaqueBaseMeta)


class PlainSources(SourceFileLoader):
    """Loads what tells where an operator is registered; to quote that line, it would look at all modules' files."""

    def exec_module(self, module):
        super().exec_module(module)
        module.get_source = _source


def _source(depth):
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class OwnModules(SourceFileLoader):
    """Loads what registers operators; to name the module that does so, it would look at all modules' files."""

    def exec_module(self, module):
        super().exec_module(module)
        names = dict(vars(module.inspect), getmodule=lambda frame: sys.modules.get(frame.f_globals["__name__"]))
        module.inspect = type(sys)("inspect")
        vars(module.inspect).update(names)


class Decompositions(SourceFileLoader):
    """Loads what PyTorch's compiler and functions like vmap take operators apart by, and then what belongs to it."""

    def exec_module(self, module):
        super().exec_module(module)
        _load_metas()


def _load_metas():
    hasattr(sys.modules.get(META), "activate_meta")


META = "torch._meta_registrations"
PARTS_OF_PYTORCH = (
    *("distributions", "export", "hub", "masked", "quantization"),
    *("nn.intrinsic", "nn.qat", "nn.quantizable", "nn.quantized"),
)
PARTS_OF_TENSORFLOW = ("__internal__.feature_column", "compat.v1", "compat.v2", "feature_column")
LOADERS = {
    **dict.fromkeys(("jax", "keras", "tensorflow", "torch"), WithoutCollections),
    "torch._compile": CompilerNames,
    "torch._decomp": Decompositions,
    META: Metas,
    "torch._library.utils": PlainSources,
    "torch.library": OwnModules,
    **dict.fromkeys((f"torch.{name}" for name in PARTS_OF_PYTORCH), Later),
    **dict.fromkeys((f"tensorflow._api.v2.{name}" for name in PARTS_OF_TENSORFLOW), Later),
}


def _importer():
    """Return the name of the module whose import statement this is."""
    frame, name = sys._getframe(2), "importlib"
    while frame is not None and name.startswith(("importlib", "_reprokit_agent")):
        name, frame = frame.f_globals.get("__name__", ""), frame.f_back
    return name


sys.meta_path.insert(sys.meta_path.index(PathFinder), PlainImports())
