"""Every format that is understood, the more special ones first; their readers are imported when they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from reprokit.artifacts.elements import Blob, Format, Limits, Part, Reader, Source
from reprokit.artifacts.formats import detection
from reprokit.errors import ArtifactDamaged

HEAD = 4096  # bytes of a file by which its format is told


def _reader(module: str, function: str = "read") -> Reader:
    """A function of a module of this package."""

    def read(source: Source, limits: Limits) -> Iterator[Part]:
        yield from getattr(importlib.import_module(f"{__name__}.{module}"), function)(source, limits)

    return read


def _not_read(instead: str) -> Reader:
    """Refuses a format that is recognized only to say so."""

    def read(source: Source, limits: Limits) -> Iterator[Part]:
        raise ArtifactDamaged(f"this old format is not read; {instead}")

    return read


def _as_bytes(source: Source, limits: Limits) -> Iterator[Part]:
    """The whole file, of formats that are compared two at once."""
    yield Blob("content", source)


FORMATS: tuple[Format, ...] = (
    Format("npy", detection.is_npy, _reader("npy")),
    Format("npz", detection.is_npz, _reader("npz")),
    Format("torch", detection.is_torch, _reader("torch")),
    Format("tar of PyTorch before 0.1.10", detection.is_torch_tar, _not_read("save it again with a later PyTorch")),
    Format("xgboost", detection.is_xgboost, _reader("xgboost")),
    Format("joblib", detection.is_packed_joblib, _reader("joblib")),
    Format("pickle", detection.is_pickle, _reader("pickle")),
    Format("checkpoint", detection.is_checkpoint_index, _reader("checkpoint"), beside=True),
    Format("TensorFlow checkpoint V1", detection.is_old_checkpoint, _not_read("save it again as V2")),
    Format("checkpoint state", detection.is_checkpoint_state, _reader("checkpoint_state")),
    Format("saved model", detection.is_saved_model, _reader("tensorflow_graph", "saved_model")),
    Format("fingerprint", detection.is_fingerprint, _reader("tensorflow_graph", "fingerprint")),
    Format("graph", detection.is_meta_graph, _reader("tensorflow_graph", "meta_graph")),
    Format("onnx", detection.is_onnx, _reader("onnx"), beside=True),
    Format("tfrecord", detection.is_tfrecord, _reader("tfrecord")),
    Format("wandb", detection.is_wandb, _reader("wandb")),
    Format("hdf5", detection.is_hdf5, _reader("hdf5")),
    Format("safetensors", detection.is_safetensors, _reader("safetensors")),
    Format("keras", detection.is_keras, _reader("keras")),
    Format("zip", detection.is_zip, _reader("zip")),
    Format("gzip", detection.is_gzip, _reader("compressed", "gzip")),
    Format("bzip2", detection.is_bzip2, _reader("compressed", "bzip2")),
    Format("xz", detection.is_xz, _reader("compressed", "xz")),
    Format("tar", detection.is_tar, _reader("tar")),
    Format("json", detection.is_json, _reader("json")),
    Format("csv", detection.is_csv, _as_bytes, pairwise="csv"),
    Format("text", detection.is_text, _as_bytes, pairwise="text"),
)


def detect(name: str, head: bytes) -> Format | None:
    """The format of a file of this name that begins with these bytes."""
    return next((format_ for format_ in FORMATS if format_.matches(name, head)), None)


def refers(name: str) -> bool:
    """Whether a file of this name may have parts of it in other files beside it."""
    return name.lower().endswith(detection.REFERRING)
