"""Executes the call that `reprokit locate --keep` kept beside this file, and prints a digest of each output.

reprokit profile --confirm -- python call.py    # executes it again and again, also with other numbers of threads
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def read_tensors() -> tuple[dict[str, Any], bytes]:
    """Return the header of the kept inputs, and their bytes."""
    content = (HERE / "inputs.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def tensor(node: dict[str, Any]) -> torch.Tensor:
    """Return an input as the call got it; one whose values do not matter is filled with zeros."""
    shape, dtype = node["shape"], getattr(torch, node["dtype"])
    values = torch.zeros(shape, dtype=dtype)
    begin, end = header[node["tensor"]]["data_offsets"] if node["tensor"] else (0, 0)
    if end > begin:
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(shape)
    repeated = [axis for axis, step in enumerate(node["stride"]) if step == 0]
    for axis in repeated:
        values = values.narrow(axis, 0, min(1, shape[axis]))
    if repeated:
        return values.to(node["device"]).expand(shape)
    return torch.empty_strided(shape, node["stride"], dtype=dtype, device=node["device"]).copy_(values)


def value(node: Any) -> Any:
    """Return an argument."""
    if isinstance(node, list):
        return [value(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "number" in node:
        return complex(node["number"]) if "j" in node["number"] else float(node["number"])
    if "torch" in node:
        kind, _, name = node["torch"].rpartition(".")
        return getattr(torch, name) if kind else torch.device(name)
    return tensor(node)


header, data = read_tensors()
call = json.loads((HERE / "call.json").read_text())
namespace, _, name = call["operator"].partition("::")
operator = getattr(getattr(getattr(torch.ops, namespace), name), call["overload"] or "default")
result = operator(*value(call["arguments"]), **{key: value(node) for key, node in call["keywords"].items()})
for output in result if isinstance(result, (list, tuple)) else [result]:
    if isinstance(output, torch.Tensor):
        content = output.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        print(list(output.shape), str(output.dtype), hashlib.sha256(bytes(content.tolist())).hexdigest())
