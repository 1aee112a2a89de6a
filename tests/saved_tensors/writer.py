"""Writes tensors/ of a run directory from NumPy arrays, by the words of docs/format.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from reprokit.model.run import FINISHED, RunFile
from reprokit.run_files.rundir import write_json

KEY = "0123456789abcdef-1"
NAMES = {"bool": "BOOL", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64"}
NAMES |= {f"{name}{bits}": f"{name[0].upper()}{bits}" for name in ("int", "uint") for bits in (8, 16, 32, 64)}


def run_directory(path: Path, **facts: Any) -> Path:
    """A run directory that holds nothing yet; by default of a run that has ended."""
    path.mkdir()
    facts = {"kind": "record", "status": FINISHED, "exit_code": 0, "command": ["python", "train.py"], **facts}
    write_json(
        path / "run.json",
        RunFile(run_id=path.name, reprokit="0", working_directory=str(path), **facts),
    )
    return path


class TensorWriter:
    """The saving process: an index that grows, and shards."""

    def __init__(self, run: Path, key: str = KEY, **first: Any) -> None:
        self._directory = run / "tensors"
        self._directory.mkdir(exist_ok=True)
        self._key = key
        self._shards = 0
        self._named: set[str] = set()
        self.line(**{"format": 1, "process": "0", "rank": "", "framework": "torch", **first})

    def line(self, **facts: Any) -> None:
        facts = {"class" if name == "layer" else name: value for name, value in facts.items()}
        with open(self._directory / f"{self._key}.jsonl", "a") as file:
            file.write(json.dumps(facts) + "\n")

    def name(self, name: str, *collections: str, **facts: Any) -> None:
        """Describe a tensor once."""
        if name not in self._named:
            self._named.add(name)
            self.line(tensor=name, collections=list(collections), **facts)

    def save(self, step: int, values: Mapping[str, Any], mode: str = "train", dtype: str = "", **facts: Any) -> None:
        """Save tensors of a step in a shard of their own."""
        arrays = {str(number): numpy.asarray(value) for number, value in enumerate(values.values())}
        header: dict[str, Any] = {}
        offset = 0
        for key, array in arrays.items():
            ends = [offset, offset + array.nbytes]
            header[key] = {"dtype": NAMES[dtype or array.dtype.name], "shape": array.shape, "data_offsets": ends}
            offset = ends[1]
        text = json.dumps(header).encode()
        path = self._directory / f"{self._key}-{self._shards:06d}.safetensors"
        data = b"".join([len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())])
        path.with_suffix(".new").write_bytes(data)
        os.rename(path.with_suffix(".new"), path)
        for (key, array), name in zip(arrays.items(), values, strict=True):
            about = {"dtype": dtype or array.dtype.name, "shape": array.shape, "call": 0}
            about["digest"] = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            self.line(step=step, mode=mode, name=name, shard=self._shards, key=key, **{**about, **facts})
        self._shards += 1

    def reduce(self, step: int, name: str, mode: str = "train", **reductions: float) -> None:
        """Save reductions of a tensor only."""
        about = {"call": 0, "dtype": "float32", "shape": [4]}
        self.line(step=step, mode=mode, name=name, reductions=reductions, **about)

    def pass_step(self, step: int, mode: str = "train") -> None:
        self.line(passed=step, mode=mode)

    def end(self) -> None:
        self.line(end=True)
