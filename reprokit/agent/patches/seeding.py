"""The patch that seeds generators from outside, as each module is imported: seeding that a script could have done."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Tell


def seed_python(module: Any, value: str, tell: Tell) -> None:
    """random.seed(N)"""
    module.seed(int(value))


def seed_numpy(module: Any, value: str, tell: Tell) -> None:
    """numpy.random.seed(N): the global generator; default_rng() without a seed keeps its own entropy."""
    module.seed(int(value))


def seed_torch(module: Any, value: str, tell: Tell) -> None:
    """torch.manual_seed(N), which seeds GPUs too once they are used."""
    module.manual_seed(int(value))


def seed_tensorflow(module: Any, value: str, tell: Tell) -> None:
    """tf.random.set_seed(N), before TensorFlow 2 tf.set_random_seed(N), which is of the default graph."""
    version = str(getattr(module, "__version__", "2"))
    if version.startswith("1."):
        module.compat.v1.set_random_seed(int(value))
    else:
        module.random.set_seed(int(value))
