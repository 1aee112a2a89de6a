"""The adapters, and the modules that each patches. An adapter is imported with the first of its modules."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.agent import Adapter, Agent

# Keras' modules that train and apply gradients, from 2.2 to 3, in all its packages.
_KERAS_2 = (
    "engine.training",
    "engine.training_v1",
    "engine.base_layer",
    "engine.compile_utils",
    "losses",
    "utils.tf_utils",
    "optimizer_v2.optimizer_v2",
    "optimizers.optimizer_v2.optimizer_v2",
    "optimizers.legacy.optimizer_v2",
    "optimizers.optimizer_experimental.optimizer",
    "optimizers.optimizer",
)
_KERAS_3 = (
    "trainers.trainer",
    "trainers.data_adapters.array_data_adapter",
    "backend.tensorflow.trainer",
    "backend.torch.trainer",
    "backend.jax.trainer",
    "optimizers.base_optimizer",
    "utils.rng_utils",
    "random.seed_generator",
    "layers.layer",
    "losses.loss",
)
_KERAS = (
    ["keras", "tf_keras"]
    + [f"{package}.{name}" for package in ("keras", "keras.src", "tf_keras.src") for name in _KERAS_2]
    + [f"tensorflow.python.keras.{name}" for name in _KERAS_2]
    + [f"keras.src.{name}" for name in _KERAS_3]
)
_MODULES = {
    "python": ["random", "tempfile"],
    "numpy": ["numpy", "numpy.random"],
    "jax": ["jax", "jax.random", "jax._src.distributed"],
    "pytorch": [
        "torch",
        "torch.random",
        "torch.cuda.random",
        "torch.distributed.distributed_c10d",
        "torch.nn.parallel.distributed",
        "torch.utils.data.dataloader",
        "torch._dynamo.eval_frame",
        "accelerate.data_loader",
        "torchdata.stateful_dataloader.stateful_dataloader",
    ],
    "tensorflow": ["tensorflow"]
    + [
        f"tensorflow.python.{name}"
        for name in (
            "framework.random_seed",
            "ops.stateful_random_ops",
            "training.optimizer",
            "client.session",
            "distribute.collective_all_reduce_strategy",
        )
    ]
    + _KERAS,
    "sklearn": ["sklearn", "sklearn.base", "sklearn.model_selection._validation"]
    + [f"sklearn.metrics.{under}{name}" for name in ("classification", "ranking", "regression") for under in ("_", "")],
    "xgboost": ["xgboost", "xgboost.core", "xgboost.sklearn", "xgboost.training"],
    "catboost": ["catboost", "catboost.core"],
    "lightgbm": ["lightgbm", "lightgbm.basic", "lightgbm.engine"],
    "mpi": ["mpi4py", "mpi4py.MPI"],
    "torchmetrics": ["torchmetrics", "torchmetrics.metric"],
    "orders": [
        "threading",
        "queue",
        "asyncio.base_events",
        "asyncio.selector_events",
        "asyncio.timeouts",
        "asyncio.unix_events",
        "dask.sizeof",
        "distributed.scheduler",
        "distributed.stealing",
        "joblib._parallel_backends",
        "joblib.parallel",
        "ray._private.worker",
    ]
    + [f"concurrent.futures.{name}" for name in ("_base", "process", "thread")]
    + [f"multiprocessing.{name}" for name in ("connection", "context", "managers", "pool", "process", "queues")]
    + [f"multiprocessing.{name}" for name in ("shared_memory", "synchronize")],
    "objects": [
        "botocore.client",
        "fsspec.spec",
        "obstore",
        "pyarrow.fs",
        "s3torchconnector._s3client._s3client",
        "tensorflow.python.lib.io.file_io",
    ],
    "datasets": ["datasets", "datasets.iterable_dataset"],
    "grain": ["grain._src.python.data_loader", "grain._src.python.dataset.dataset"],
    "streaming": ["streaming.base.dataset"],
    "trackers": [
        "mlflow",
        "mlflow.tracking.fluent",
        "mlflow.tracking.client",
        "mlflow.store.tracking.file_store",
        "mlflow.store.tracking.sqlalchemy_store",
        "wandb",
        "wandb.sdk.wandb_init",
        "wandb.sdk.lib.runid",
    ],
}
_FOLDERS = frozenset(["orders", "pytorch", "tensorflow"])  # adapters in folders beside this one
WATCHED = {module: adapter for adapter, modules in _MODULES.items() for module in modules}


def load(name: str) -> Callable[[Agent], Adapter]:
    """Return the adapter class of a framework: PythonAdapter for python."""
    from importlib import import_module

    module = f"{__name__.rpartition('.')[0]}.{name}.adapter" if name in _FOLDERS else f"{__name__}.{name}"
    adapter: Callable[[Agent], Adapter] = getattr(import_module(module), name.capitalize() + "Adapter")
    return adapter
