"""Fuzzes the readers of objects and of messages: anything but parts or a clear error is a finding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CORPUS = Path(__file__).parent / "objects_corpus"
MOST = 10_000  # parts of a small file, which may be many by sharing


def objects_reader() -> Callable[[bytes], None]:
    """Every reader on the same bytes; the tensors found must lie within them."""
    from reprokit.core.errors import ArtifactDamaged
    from reprokit.diff import tensors
    from reprokit.diff.elements import Limits, TensorPart
    from reprokit.diff.formats import checkpoint, onnx, pickle, tensorflow_messages, tfrecord, torch, xgboost
    from reprokit.diff.sources import BytesSource

    readers = [
        *(one.read for one in (pickle, torch, xgboost, onnx, checkpoint, tfrecord)),
        tensorflow_messages.saved_model,
    ]

    def read(data: bytes) -> None:
        for reader in readers:
            limits = Limits(header=1 << 20, parts=MOST)
            with suppress(ArtifactDamaged):
                for part in reader(BytesSource(data), limits):
                    if isinstance(part, TensorPart):
                        tensors.check(part, limits)

    return read


def write_seeds() -> None:
    """Write the corpus: one small file of each kind."""
    import collections
    import io
    import pickle as real

    import joblib
    import numpy as np
    import torch
    import xgboost

    item = {"x": np.arange(3.0), "o": collections.OrderedDict(a=(1, 2.5)), "s": {"t"}, "r": np.array([1, "a"], object)}
    CORPUS.mkdir(exist_ok=True)
    for protocol in range(6):
        (CORPUS / f"protocol-{protocol}.pkl").write_bytes(real.dumps(item, protocol))
    joblib.dump(item, CORPUS / "arrays.joblib")
    tensors = {"w": torch.arange(3.0), "v": torch.ones(2, 2)[1:], "p": torch.nn.Parameter(torch.ones(1))}
    tensors |= {"q": torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.quint8), "s": torch.eye(2).to_sparse()}
    for old in (False, True):
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=not old)
        (CORPUS / f"tensors-{'old' if old else 'new'}.pt").write_bytes(file.getvalue())
    matrix = xgboost.DMatrix(np.arange(8.0).reshape(4, 2), label=[0, 1, 0, 1])
    booster = xgboost.train({"max_depth": 1, "nthread": 1}, matrix, 1)
    for kind in ("json", "ubj"):
        booster.save_model(CORPUS / f"model.{kind}")
    write_messages()


def write_messages() -> None:
    """The seeds of ONNX, SavedModel, checkpoints and records."""
    import numpy as np
    import onnx
    import tensorflow as tf
    from onnx import helper
    from tensorflow.core.protobuf import saved_model_pb2

    tensors = [onnx.numpy_helper.from_array(np.arange(3.0), "w"), helper.make_tensor("v", 10, (2,), [1, 2])]
    graph = helper.make_graph([helper.make_node("Add", ["w", "v"], ["y"], a=[1, 2])], "g", [], [], tensors)
    (CORPUS / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with tf.Graph().as_default() as own:
        tf.constant([1.0, 2.0]) + tf.constant(3.0)
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    saved.meta_graphs.add().graph_def.CopyFrom(own.as_graph_def())
    (CORPUS / "saved_model.pb").write_bytes(saved.SerializeToString())
    tf.train.Checkpoint(v=tf.Variable([1.0])).write(str(CORPUS / "checkpoint"))
    (CORPUS / "checkpoint.data-00000-of-00001").unlink()
    with tf.io.TFRecordWriter(str(CORPUS / "examples.tfrecord")) as writer:
        value = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2]))
        writer.write(tf.train.Example(features=tf.train.Features(feature={"a": value})).SerializeToString())


if __name__ == "__main__":
    write_seeds()
