"""ONNX's models: initializers, attributes and versions that differ are named, wherever the bytes stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprokit.core.difference import Verdict
from reprokit.diff.files import diff as diff_files
from reprokit.diff.formats import messages
from reprokit.diff.formats.onnx import SCHEMA, read
from tests.diff.objects import leaves, meaning, named, same, shown

onnx = pytest.importorskip("onnx")
NAME = "model.onnx"
Change = Callable[[Any], None]


def model(change: Change = lambda model: None, weight: np.ndarray[Any, Any] | None = None) -> Any:
    """One layer with an attribute, and an initializer of each way to keep elements."""
    helper, types = onnx.helper, onnx.TensorProto
    array = np.arange(12, dtype=np.float32).reshape(3, 4) if weight is None else weight
    initializers = [
        onnx.numpy_helper.from_array(array, "weight"),
        helper.make_tensor("floats", types.FLOAT, (100,), [0.5] * 100),
        helper.make_tensor("halves", types.FLOAT16, (3,), [1.0, -2.0, 0.5]),
        helper.make_tensor("brain", types.BFLOAT16, (3,), [1.0, -2.0, 0.5]),
        helper.make_tensor("eight", types.FLOAT8E4M3FN, (3,), [1.0, -2.0, 0.5]),
        helper.make_tensor("four", types.INT4, (5,), [1, -2, 3, -4, 5]),
        helper.make_tensor("complex", types.COMPLEX64, (2,), [1 + 2j, 3 - 4j]),
        helper.make_tensor("texts", types.STRING, (2,), [b"a", b"b"]),
        helper.make_tensor("longs", types.INT64, (2,), [-1, 1 << 40]),
    ]
    node = helper.make_node("Gemm", ["x", "weight"], ["y"], alpha=0.5, transB=1)
    value = [helper.make_tensor_value_info(name, types.FLOAT, ("n", 4)) for name in ("x", "y")]
    graph = helper.make_graph([node], "graph", value[:1], value[1:], initializers)
    found = helper.make_model(graph, producer_name="test", producer_version="1")
    change(found)
    return found


def changed(change: Change) -> dict[str, str]:
    return named(model().SerializeToString(), model(change).SerializeToString(), NAME)


def test_one_ulp_in_an_initializer() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    weight.view(np.uint32)[1, 2] ^= 1
    found = named(model().SerializeToString(), model(weight=weight).SerializeToString(), NAME)
    assert found.keys() == {"graph/initializer/weight"}
    assert "first at [1, 2]" in found["graph/initializer/weight"]
    assert "1 ULP" in found["graph/initializer/weight"]


def set_attribute(changed: Any) -> None:
    changed.graph.node[0].attribute[0].f = 0.25


def set_opset(changed: Any) -> None:
    changed.opset_import[0].version = 9


def set_producer(changed: Any) -> None:
    changed.producer_version = "2"


def set_float(changed: Any) -> None:
    changed.graph.initializer[1].float_data[70] = -0.5


def set_brain(changed: Any) -> None:
    changed.graph.initializer[3].int32_data[1] ^= 1


def set_four(changed: Any) -> None:
    changed.graph.initializer[5].CopyFrom(onnx.helper.make_tensor("four", 22, (5,), [1, -2, 3, -4, 6]))


def set_text(changed: Any) -> None:
    changed.graph.initializer[7].string_data[1] = b"c"


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (set_attribute, "graph/node/y/attribute/alpha/f", "0.25"),
        (set_opset, "opset_import/0/version", "9"),
        (set_producer, "producer_version", "'2'"),
        (set_float, "graph/initializer/floats", "first at [70]"),
        (set_brain, "graph/initializer/brain", "bfloat16 [3]"),
        (set_four, "graph/initializer/four", "first at [4]"),
        (set_text, "graph/initializer/texts/1", "b'c'"),
    ],
)
def test_what_differs_is_named(change: Change, name: str, said: str) -> None:
    [(found, text)] = changed(change).items()
    assert found == name
    assert said in text


def test_the_same_numbers_in_raw_bytes_and_in_a_list_are_the_same() -> None:
    def raw(changed: Any) -> None:
        array = onnx.numpy_helper.to_array(changed.graph.initializer[1])
        changed.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(array, "floats"))

    assert model(raw).SerializeToString() != model().SerializeToString()
    assert changed(raw) == {}


def saved(directory: Path, weight: float, place: str = "weights.bin") -> Path:
    directory.mkdir()
    array = np.full((30, 40), weight, np.float32)
    found = model(weight=array)
    onnx.save_model(found, directory / NAME, save_as_external_data=True, location=place, size_threshold=0)
    return directory


def test_external_data_is_compared_by_tensor(tmp_path: Path) -> None:
    left, right = saved(tmp_path / "a", 1.0), saved(tmp_path / "b", 2.0)
    assert (left / NAME).read_bytes() == (right / NAME).read_bytes()
    for one, other in ((left, right), (left / NAME, right / NAME)):
        found = {leaf.name: leaf.detail for leaf in leaves(diff_files(one, other))}
        [(name, text)] = found.items()
        assert name == "model.onnx/graph/initializer/weight"
        assert "1200 of 1200 elements" in text
    same_again = saved(tmp_path / "c", 1.0)
    assert diff_files(left, same_again).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("place", ["../outside.bin", "/etc/passwd", "missing.bin", "link.bin"])
def test_nothing_outside_of_the_directory_is_read(tmp_path: Path, place: str) -> None:
    (tmp_path / "outside.bin").write_bytes(bytes(4800))

    def outside(changed: Any) -> None:
        tensor = changed.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        tensor.external_data.add(key="location", value=place)

    (tmp_path / "link.bin").symlink_to(tmp_path / "outside.bin")
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(model(outside).SerializeToString())
    assert "which is not there" in shown(read, model(outside).SerializeToString())["graph/initializer/weight"]
    assert diff_files(tmp_path / "a.onnx", tmp_path / "b.onnx").verdict is Verdict.IDENTICAL


def read_by_onnx(data: bytes) -> list[list[object]]:
    found = onnx.ModelProto.FromString(data)
    return [onnx.numpy_helper.to_array(tensor).tolist() for tensor in found.graph.initializer]


@pytest.mark.slow
def test_no_flipped_bit_is_missed() -> None:
    data = model().SerializeToString()
    generator = random.Random(1)
    for place in {generator.randrange(8 * len(data)) for _ in range(400)}:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        if same(data, bytes(damaged), NAME):  # bits behind the last of several that share bytes
            assert read_by_onnx(bytes(damaged)) == read_by_onnx(data), f"bit {place % 8} of byte {place // 8}"


def test_every_cut_is_found() -> None:
    data = model().SerializeToString()
    right = shown(read, data)
    for length in range(len(data)):
        assert meaning(read, data[:length]) != right


@pytest.mark.torch
def test_what_torch_exports(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    files: list[Path] = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        files.append(tmp_path / f"{len(files)}.onnx")
        layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        torch.onnx.export(layers, (torch.ones(1, 4),), files[-1], dynamo=False)
    assert diff_files(files[0], files[1]).verdict is Verdict.IDENTICAL
    found = [leaf.name for leaf in leaves(diff_files(files[0], files[2]))]
    assert found == ["0.onnx/graph/initializer/0.weight", "0.onnx/graph/initializer/0.bias"]


def test_the_schema_is_that_of_onnx() -> None:
    theirs = set()
    waiting, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            theirs.add((message.full_name.removeprefix("onnx."), field.number, field.name))
            if field.message_type:
                waiting.append(field.message_type)
    schema = SCHEMA
    ours = {(name, number, kind.name) for name, kinds in schema.items() for number, kind in kinds.items()}
    assert theirs <= ours
    types = {kind.type for kinds in schema.values() for kind in kinds.values()}
    assert types <= {*messages.NUMBERS, "string", "bytes", *schema}
