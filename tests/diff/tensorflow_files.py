"""Writes a file of each kind of TensorFlow and Keras into DIRECTORY..., and other ones into DIRECTORY=changed."""

from __future__ import annotations

import os
import sys
import traceback

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf


def model(changed: bool) -> keras.Model:
    """A small trained model, changed by one ULP in one weight."""
    keras.utils.set_random_seed(1)
    found = keras.Sequential(
        [keras.layers.Input((4,), name="inputs"), keras.layers.Dense(8, name="d1"), keras.layers.Dense(2, name="d2")],
        name="model",
    )
    found.compile(keras.optimizers.Adam(name="adam"), "mse")
    found.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
    kernel = found.layers[0].kernel.numpy()
    kernel.view(np.uint32)[1, 2] ^= changed
    found.layers[0].kernel.assign(kernel)
    return found


def checkpoint(trained: keras.Model) -> None:
    texts, half = tf.Variable(["x", "yy", "z" * 300], name="t"), tf.Variable(tf.cast([1.0, 2.0], tf.bfloat16), name="h")
    tf.train.Checkpoint(model=trained, texts=texts, half=half).write("ckpt/model")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(texts=texts), "manager", max_to_keep=2)
    manager.save()


def sliced(changed: bool) -> None:
    """A variable in two parts, as TensorFlow 1 saves them."""
    compat = tf.compat.v1
    with tf.Graph().as_default(), compat.Session() as session:
        with compat.variable_scope("v", partitioner=compat.fixed_size_partitioner(2), use_resource=False):
            variable = compat.get_variable("w", shape=(100, 3), initializer=compat.ones_initializer)
        session.run(compat.global_variables_initializer())
        values = np.ones((50, 3), np.float32)
        values[49, 1] += changed
        list(variable)[1].load(values, session)
        compat.train.Saver().save(session, "sliced/model", global_step=3)
        os.mkdir("first")
        compat.train.Saver(write_version=compat.train.SaverDef.V1).save(session, "first/model.ckpt", global_step=3)


class Scaled(tf.Module):  # type: ignore[misc]
    """What is saved with a graph: a constant and a variable."""

    def __init__(self, changed: bool):
        super().__init__()
        self.weight = tf.Variable(tf.range(6.0), name="weight")
        self.constant = np.arange(200, dtype=np.float32)
        self.constant[7] += changed

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])  # type: ignore[untyped-decorator]
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.weight) * x + tf.reduce_sum(tf.constant(self.constant))


def events(changed: bool) -> None:
    writer = tf.summary.create_file_writer("logs")
    with writer.as_default():
        for step in range(3):
            tf.summary.write("loss", tf.constant(step + 0.5 + (changed and step == 1) * 1e-6), step=step)
    writer.close()
    with tf.Graph().as_default():
        old = tf.compat.v1.summary.FileWriter("old_logs")
        summary = tf.compat.v1.Summary()
        summary.value.add(tag="accuracy", simple_value=0.5)
        histogram = summary.value.add(tag="weights").histo
        histogram.bucket.extend([float(i) for i in range(100)])
        histogram.bucket[70] += changed
        old.add_summary(summary, 4)
        old.close()


def records(changed: bool) -> None:
    def feature(number: int) -> tf.train.Features:
        numbers = tf.train.Feature(int64_list=tf.train.Int64List(value=[number, 2 + (changed and number == 1)]))
        floats = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * 100))
        return tf.train.Features(feature={"numbers": numbers, "floats": floats})

    with tf.io.TFRecordWriter("examples.tfrecord") as writer:
        for number in range(3):
            writer.write(tf.train.Example(features=feature(number)).SerializeToString())
    with tf.io.TFRecordWriter("packed.tfrecord", "GZIP") as writer:
        writer.write(b"changed" if changed else b"other")


def write_schema(path: str) -> None:
    """Every field of every message that is read: the message's name, the field's number and name."""
    from tensorflow.core.example import example_pb2
    from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2, tensor_bundle_pb2, trackable_object_graph_pb2
    from tensorflow.core.util import event_pb2

    roots = [example_pb2.Example, example_pb2.SequenceExample, fingerprint_pb2.FingerprintDef, event_pb2.Event]
    roots += [tensor_bundle_pb2.BundleHeaderProto, tensor_bundle_pb2.BundleEntryProto, saved_model_pb2.SavedModel]
    roots += [trackable_object_graph_pb2.TrackableObjectGraph]
    seen, waiting = set(), [root.DESCRIPTOR for root in roots]
    with open(path, "w", encoding="utf-8") as file:
        while waiting:
            message = waiting.pop()
            waiting += [field.message_type for field in message.fields if field.message_type]
            if message.full_name not in seen and not message.GetOptions().map_entry:
                name = message.full_name.removeprefix("google.protobuf.").removeprefix("tensorflow.")
                file.writelines(f"{name} {field.number} {field.name}\n" for field in message.fields)
            waiting = [one for one in waiting if one.full_name not in seen]
            seen.add(message.full_name)


def write(directory: str, changed: bool) -> None:
    write_schema(f"{directory}.schema")
    os.makedirs(directory, exist_ok=True)
    os.chdir(directory)
    trained = model(changed)
    checkpoint(trained)
    tf.saved_model.save(Scaled(changed), "saved")
    trained.save("model.keras")
    trained.save("model.h5")
    events(changed)
    records(changed)
    sliced(changed)


def main() -> None:
    """Write each directory in a process of its own, forked after the import of TensorFlow, which starts no thread."""
    for words in sys.argv[1:]:
        directory, _, kind = words.partition("=")
        process = os.fork()
        if process == 0:
            status = 1
            try:
                write(directory, kind == "changed")
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(process, 0)[1] != 0:
            sys.exit(f"{words} was not written")


if __name__ == "__main__":
    main()
