"""Files of llama.cpp, Flax and Arrow, written by their own libraries."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.files import diff as compare_paths
from reprokit.diff.formats import gguf as gguf_format
from reprokit.diff.formats import msgpack as msgpack_format
from reprokit.diff.sources import BytesSource
from tests.diff.samples import diff
from tests.evidence.report.test_trackers import PYTHON, ROOT

pytestmark = pytest.mark.slow
WEIGHTS = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)


def gguf_file(place: Path, weights: Any = WEIGHTS, name: str = "blk.0.w") -> bytes:
    import gguf

    writer = gguf.GGUFWriter(place, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.tokens", ["a", "b"])
    writer.add_array("tokenizer.scores", [0.5] * 300)
    writer.add_tensor(name, weights)
    writer.add_tensor("half", np.ones(6, np.float16))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("quantized", gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return place.read_bytes()


def leaves(left: bytes, right: bytes, name: str) -> dict[str, str]:
    return {leaf.name.removeprefix(f"{name}/"): leaf.detail for leaf in diff(left, right, name).leaves()}


def flax_file(weights: Any = WEIGHTS, step: int = 3) -> bytes:
    from flax import serialization

    state = {
        "params": {"dense": {"kernel": weights}},
        "step": step,
        "rate": np.float32(0.5),
        "phase": 1 + 2j,
        "names": ["a/b", None, True, 2.5, b"x" * 100],
    }
    return bytes(serialization.to_bytes(state))


def test_models_of_llama_cpp(tmp_path: Path) -> None:
    left, other = gguf_file(tmp_path / "m.gguf"), WEIGHTS.copy()
    other[2, 3] = np.nextafter(other[2, 3], np.float32(9))
    found = leaves(left, gguf_file(tmp_path / "n.gguf", other), "m.gguf")
    assert set(found) == {"blk.0.w"}
    assert "1 ULP" in found["blk.0.w"]
    assert list(leaves(left, gguf_file(tmp_path / "n.gguf", name="w.0"), "m.gguf").values()) == [
        "renamed: w.0 in the right file has equal content"
    ]
    parts = {part.name: part for part in gguf_format.read(BytesSource(left), Limits())}
    quantized: Any = parts["quantized"]
    assert (quantized.dtype, quantized.shape) == ("raw34", (4, 2))
    plain: Any = parts["blk.0.w"]
    assert plain.source.read(plain.offset, WEIGHTS.nbytes) == WEIGHTS.tobytes()


def test_states_of_flax() -> None:
    left, other = flax_file(), WEIGHTS.copy()
    other[0, 0] = np.nextafter(other[0, 0], np.float32(9))
    found = leaves(left, flax_file(other, 4), "state.msgpack")
    assert set(found) == {"params/dense/kernel", "step"}
    assert "1 ULP" in found["params/dense/kernel"]
    assert diff(left, flax_file(), "state.msgpack").verdict.value == "identical"


def differences(left: Path, right: Path) -> dict[str, str]:
    """What diff says, in an environment that has Arrow: others would see it."""
    done = subprocess.run(
        [PYTHON, "-m", "reprokit", "diff", "--json", left, right],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, str] = {}

    def walk(node: dict[str, Any]) -> None:
        if not node.get("children") and node["verdict"] not in ("identical",):
            found[node["name"].partition("/")[2]] = node["detail"]
        for child in node.get("children", ()):
            walk(child)

    walk(json.loads(done.stdout)["tree"])
    return found


@pytest.mark.extended
@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_tables(tmp_path: Path, ending: str) -> None:
    script = ROOT / "tests/trainings/arrow_tables.py"
    subprocess.run([PYTHON, script, ending, tmp_path], check=True)
    left, right, packed, cut = (tmp_path / f"{name}.{ending}" for name in ("left", "right", "packed", "cut"))
    assert set(differences(left, right)) == {"loss", "loss/missing", "name/2"}
    assert differences(left, packed) == {}
    assert "cannot be read as arrow" in next(iter(differences(left, cut).values()))
    assert differences(left, tmp_path / f"about.{ending}")
    if ending != "parquet":
        flipped = tmp_path / f"flipped.{ending}"
        assert "cannot be read as arrow" in next(iter(differences(left, flipped).values()))
        assert differences(left, tmp_path / f"unmarked.{ending}") == {}
        flipped = tmp_path / f"unmarked-flipped.{ending}"
        assert "cannot be read as arrow" in next(iter(differences(left, flipped).values()))


def test_checkpoints_of_orbax(tmp_path: Path) -> None:
    import orbax.checkpoint

    def saved(name: str, first: float) -> Path:
        weights = WEIGHTS.copy()
        weights[0, 0] = first
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, {"params": {"kernel": weights, "bias": np.ones(3)}, "step": 3})
        return tmp_path / name

    left = saved("one", 0.5)
    same = compare_paths(left, saved("two", 0.5))
    assert same.verdict.value == "identical"
    found = compare_paths(left, saved("three", 0.25))
    assert [leaf.name for leaf in found.leaves() if leaf.verdict.differs] == ["manifest.ocdbt/params.kernel"]
    for path in left.rglob("d/*"):
        path.write_bytes(path.read_bytes()[:-9])
    damaged = {leaf.name: leaf.detail for leaf in compare_paths(left, tmp_path / "two").leaves()}
    assert "its files are compared one by one" in damaged["manifest.ocdbt"]


@pytest.mark.parametrize("kind", ["gguf", "msgpack"])
def test_damaged_files_are_refused_and_never_crash(tmp_path: Path, kind: str) -> None:
    data = gguf_file(tmp_path / "m.gguf") if kind == "gguf" else flax_file()
    read = gguf_format.read if kind == "gguf" else msgpack_format.read
    generator = random.Random(kind)
    for number in range(400):
        damaged = bytearray(data)
        for place in [generator.randrange(8 * min(len(data), 600)) for _ in range(1 + number % 3)]:
            damaged[place // 8] ^= 1 << place % 8
        cut = bytes(damaged[: len(data) - number % 2 * generator.randrange(200)])
        try:
            for _ in read(BytesSource(cut), Limits()):
                pass
        except ArtifactDamaged:
            pass


def test_sizes_that_lie_are_refused() -> None:
    huge = struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1 << 60)
    with pytest.raises(ArtifactDamaged, match="said to have"):
        list(gguf_format.read(BytesSource(huge), Limits()))
    with pytest.raises(ArtifactDamaged):
        list(msgpack_format.read(BytesSource(b"\xdd\xff\xff\xff\xff" * 300), Limits()))
    with pytest.raises(ArtifactDamaged, match="nested too deep"):
        list(msgpack_format.read(BytesSource(b"\x91" * 1000), Limits()))
