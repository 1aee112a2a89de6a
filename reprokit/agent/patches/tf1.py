"""Patches of TensorFlow before it had deterministic operations of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import os

from ..core.patching import all_of, swap
from ..tensorflow import private_api
from . import PatchUnfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Tell

_ADVICE = "install tensorflow-determinism==0.3.0 in the training's Python"
_WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}


def tf1_determinism(module: Any, value: str, tell: Tell) -> None:
    """`from tfdeterminism import patch; patch()`; what it prints is told instead."""
    said = io.StringIO()
    before = os.environ.get("TF_CUDNN_DETERMINISTIC")
    places = [module.nn, private_api.module("nn"), private_api.module("nn_ops")]
    replaced = [(place, place.bias_add) for place in places]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        _patch_function()()
    tell(" ".join(said.getvalue().split())[:300])

    def undo() -> None:
        for place, function in replaced:
            place.bias_add = function
        if before is None:
            os.environ.pop("TF_CUDNN_DETERMINISTIC", None)

    tell.undo_by(undo)


def _patch_function() -> Callable[[], None]:
    try:
        found = importlib.import_module("tfdeterminism")
    except ImportError as error:
        raise PatchUnfit(f"there is no tfdeterminism ({error}); {_ADVICE}") from None
    patch: Callable[[], None] | None = getattr(found, "patch", None)
    if patch is None:
        raise PatchUnfit(f"the tfdeterminism that is installed has no patch(), as none has from 0.4 on; {_ADVICE}")
    return patch


def tf_segment_sum(module: Any, value: str, tell: Tell) -> None:
    """Sums of segments in a wider type, rounded once, as NVIDIA's framework-reproducibility has them.

    What is added in another order then differs, mostly, where the rounding takes it away; float64 has no wider type.
    """
    undos = []
    for name in ("segment_sum", "unsorted_segment_sum"):
        for place in (module.math, private_api.module("math")):
            if hasattr(place, name):
                undos.append(swap(place, name, _widened(module)))
    tell.undo_by(all_of(undos))


def _widened(module: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def segment_sum(data: Any, *arguments: Any, **keywords: Any) -> Any:
            data = module.convert_to_tensor(data)
            wider = _WIDER.get(data.dtype.base_dtype.name)
            if wider is None:
                return original(data, *arguments, **keywords)
            return module.cast(original(module.cast(data, wider), *arguments, **keywords), data.dtype)

        return segment_sum

    return make
