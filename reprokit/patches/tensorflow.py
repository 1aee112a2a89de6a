"""The patches of TensorFlow."""

from __future__ import annotations

from reprokit.patches.patch import Patch

_IN_PROCESS = "in the process too"

PATCHES = (
    Patch(
        id="tf-deterministic",
        title="tf.config.experimental.enable_op_determinism(), with a seed from the recorded entropy",
        framework="tensorflow",
        versions=">=2.8",
        agent=True,
        warning="an operation that has no deterministic code raises UnimplementedError while the training runs",
        cost="LeNet-5 in Keras on the CPU 3 % slower; tf.data calls functions with state one after another",
        measured=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="tf-deterministic-ops",
        title="TF_DETERMINISTIC_OPS=1, what enable_op_determinism was before 2.8",
        framework="tensorflow",
        versions=">=2.1,<2.8",
        variables={"TF_DETERMINISTIC_OPS": "1"},
        warning="from 2.5 on, an operation that has no deterministic code raises UnimplementedError on a GPU",
        cost="not measured; on the CPU little changes",
    ),
    Patch(
        id="tf-cudnn",
        title="TF_CUDNN_DETERMINISTIC=1: deterministic convolutions and pooling of cuDNN",
        framework="tensorflow",
        versions=">=1.14",
        variables={"TF_CUDNN_DETERMINISTIC": "1"},
        cost="nothing on the CPU; on a GPU slower convolutions, not measured",
    ),
    Patch(
        id="tf1-determinism",
        title="from tfdeterminism import patch; patch()",
        framework="tensorflow",
        versions=">=1.14,<2.1",
        agent=True,
        needs={"tensorflow-determinism": "<0.4"},
        remedy="install tensorflow-determinism==0.3.0 there: later ones hold no code",
        cost="LeNet-5 in TensorFlow 1.14 on the CPU 6 % slower; on a GPU also slower convolutions",
        measured=True,
        automatic=True,
        undo=_IN_PROCESS,
    ),
    Patch(
        id="tf-segment-sum",
        title="segment_sum and unsorted_segment_sum in a wider type, as framework-reproducibility has them",
        framework="tensorflow",
        versions=">=1.14,<2.7",
        variables={"TF_DISABLE_SEGMENT_REDUCTION_OP_DETERMINISM_EXCEPTIONS": "1"},
        agent=True,
        warning="changes numbers: float32 is added in float64 and rounded once; float64 is left as it is",
        cost="twice the memory of what is added",
        undo=_IN_PROCESS,
    ),
    Patch(
        id="tf-data",
        title="tf.data: elements in order, functions with state (random ones, Python's) called one after another",
        framework="tensorflow",
        versions=">=1.14",
        agent=True,
        cost="what is called one after another uses one processor; other functions stay parallel",
        undo=_IN_PROCESS,
    ),
    Patch(
        id="tf-threads",
        title="one thread inside of TensorFlow's operations and one for operations",
        framework="tensorflow",
        versions=">=1.14",
        variables={"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
        agent=True,
        conflicts=("threads",),
        cost="the use of all processors but one",
        undo=_IN_PROCESS,
    ),
)
