"""Executes kept calls of PyTorch's operators in a process of its own, and prints a digest of what each gives.

It is started as a script; what it needs to know comes as JSON on standard input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FEW = 2  # repeats, all of which must agree


def main() -> None:
    """Do what standard input says."""
    sys.dont_write_bytecode = True
    order = json.load(sys.stdin)
    _load_agent()
    package = "_reprokit_agent.observing."
    calls, inputs = (importlib.import_module(package + name) for name in ("torch_calls", "torch_inputs"))
    sys.path[:] = order["path"]
    torch: Any = importlib.import_module("torch")

    torch.use_deterministic_algorithms(order["deterministic"], warn_only=True)
    torch.set_float32_matmul_precision(order["precision"])
    torch.backends.mkldnn.enabled = order["onednn"]
    for path in order["files"]:
        try:
            digests = {_digest(torch, calls, inputs, path) for _ in range(FEW)}
        except Exception as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        if len(digests) == 1:
            print(path, digests.pop().hex(), flush=True)


def _load_agent() -> None:
    """The agent's package under the name that it has in a training, from where this file lies."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location("_reprokit_agent", os.path.join(folder, "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _digest(torch: Any, calls: Any, inputs: Any, path: str) -> bytes:
    call = torch.load(path, weights_only=True)
    args, kwargs = decoded(torch, call["args"]), decoded(torch, call["kwargs"])
    namespace, _, name = call["name"].partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), call["overload"])
    torch.set_num_threads(call["threads"])
    torch.default_generator.set_state(call["state"])
    with torch.no_grad():
        result = function(*args, **kwargs)
        values = inputs.compared(torch, calls.Operator(function), result, args)
        digest: bytes = inputs.Digester(torch).of([values, args, kwargs] if call["changes"] else values)
        return digest


def decoded(torch: Any, value: Any) -> Any:
    """What `encoded` of torch_kept_calls was given."""
    if type(value) is list:
        return [decoded(torch, item) for item in value]
    if type(value) is dict and list(value) == ["torch"]:
        return getattr(torch, value["torch"])
    if type(value) is dict and list(value) == ["device"]:
        return torch.device(value["device"])
    if type(value) is dict:
        return {key: decoded(torch, item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    main()
