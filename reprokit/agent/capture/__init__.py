"""Captures the training's state as it was at the start of a step whose gradients or loss are not finite.

A framework's part is a class in a module here (PARTS), created with the CaptureSession when the first module that it
waits for was imported. Its `begin(name, module)` is called for each of them; it watches the training, and passes
what it saved to CaptureSession.save. In a forked child, `forget()` drops the parent's state. A run that re-executes a
captured step uses REDO in their place.
"""

from __future__ import annotations

import os
import sys

from ..core.signal_errors import pass_on
from ..core.stderr_lines import say
from .settings import STOP, UNAVAILABLE, CaptureSettings
from .store import Part, SnapshotContents, Store, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, NoReturn

    from ..core.agent import Agent


__all__ = [
    "EXIT_CAPTURED",
    "CaptureExit",
    "CaptureSession",
    "CaptureSettings",
    "Part",
    "SnapshotContents",
    "Store",
    "StoreError",
    "start",
]

EXIT_CAPTURED = 123
MAX_REPORTED = 20  # captures without a snapshot that are reported on stderr
MAX_VARIABLES = 100
# Environment variables that can affect a step's result, and are saved unless their name suggests a secret.
_PREFIXES = "CUBLAS_", "CUDA_", "JAX_", "KERAS_", "MKL_", "NCCL_", "OMP_", "PYTORCH_", "TF_", "TORCH_", "XLA_"
_SECRETS = ("AUTH", "COOKIE", "CREDENTIAL", "KEY", "LICENSE", "PASS", "PRIVATE", "SECRET", "SIGNATURE", "TOKEN")

running: CaptureSession | None = None  # the session that the launcher asked for

_LIBRARIES = ("torch", "tensorflow", "keras", "tf_keras", "numpy", "jax", "jaxlib", "flax", "equinox", "optax")

# Where Keras 3, and Keras 2 under its names, trains and applies gradients.
_KERAS_2 = (
    "engine.training",
    "engine.base_layer",
    "optimizers.optimizer",
    "optimizers.optimizer_experimental.optimizer",
    "optimizers.legacy.optimizer_v2",
    "optimizers.optimizer_v2.optimizer_v2",
    "mixed_precision.loss_scale_optimizer",
)
_KERAS = (
    "keras",
    "keras.src.backend.tensorflow.trainer",
    "keras.src.layers.layer",
    "keras.src.optimizers.base_optimizer",
    "keras.src.optimizers.loss_scale_optimizer",
    *[f"{package}.{name}" for package in ("keras", "keras.src", "tf_keras.src") for name in _KERAS_2],
)
_TORCH = (
    "torch",
    "torch.utils.data.dataloader",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch._dynamo.eval_frame",
)
# Framework parts by the modules that they wait for: file here, and class.
PARTS = {
    **dict.fromkeys(_TORCH, "torch_capture.TorchCapture"),
    **dict.fromkeys(("tensorflow", *_KERAS), "tensorflow_capture.TensorFlowCapture"),
    "jax._src.api": "jax_capture.JaxCapture",
}
REDO = {  # their replacements in a run that re-executes a captured step
    "torch_capture.TorchCapture": "torch_redo.TorchRedo",
    "tensorflow_capture.TensorFlowCapture": "tensorflow_redo.TensorFlowRedo",
    "jax_capture.JaxCapture": "jax_redo.JaxRedo",
}
IN_PLACE = {  # likewise in a replay that explains the step where it comes to it
    "tensorflow_capture.TensorFlowCapture": "tensorflow_in_place.TensorFlowInPlace",
    "jax_capture.JaxCapture": "jax_redo.JaxRedo",
}


class CaptureExit(SystemExit):
    """Ends the training after a captured step, with exit status EXIT_CAPTURED."""

    def __init__(self) -> None:
        super().__init__(EXIT_CAPTURED)


class CaptureSession:
    """What the frameworks' parts share: settings, store, messages. Has no agent if a script's guard created it."""

    def __init__(self, settings: CaptureSettings, agent: Agent | None = None) -> None:
        self.settings = settings
        self.agent = agent
        self.store = Store(settings.directory, settings.max_snapshots, settings.max_bytes, settings.fallback)
        self._parts: dict[str, Any] = {}
        self._messages: set[str] = set()
        self._capture_count = 0

    # What the parts of the frameworks call

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call an internal function; report an Exception and return None. CaptureExit passes, as it is none."""
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(function, error)
            pass_on(error)
            return None

    def failed(self, function: Callable[..., Any], error: Exception) -> None:
        """Report that an internal function has failed."""
        if self.agent is not None:
            self.agent.failed(function, error)
        else:
            self.say(f"warning: {getattr(function, '__qualname__', function)}: {type(error).__name__}: {error}")

    def say(self, text: str) -> None:
        """Write a line to stderr."""
        say(text)

    def say_once(self, text: str) -> None:
        """Write a line to stderr unless it was written before."""
        if text not in self._messages and len(self._messages) < 100:
            self._messages.add(text)
            self.say(text)

    def save(self, header: Mapping[str, Any], parts: list[Part]) -> str | None:
        """Write a snapshot, with facts about the process; return its path, or None after a warning."""
        try:
            process_facts = self.about_process()
            environment = {**process_facts["environment"], **(header.get("environment") or {})}
            path = self.store.save(SnapshotContents({**process_facts, **header, "environment": environment}, parts))
        except StoreError as error:
            self.say_once(f"warning: no snapshot: {error}")
        except Exception as error:
            self.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
            pass_on(error)
        else:
            return path
        return None

    def captured(self, step: int, trigger_text: str, path: str | None) -> None:
        """Report a captured step and its snapshot; raise CaptureExit if the training is to stop."""
        self._capture_count += 1
        if self._capture_count <= MAX_REPORTED or path:
            where = f"snapshot: {path}" if path else "there is no snapshot of it"
            self.say(f"captured: step {step}: {trigger_text}; {where}; the step was not applied")
        else:
            self.say_once(f"further captures are not reported (limit {MAX_REPORTED})")
        if self.settings.action == STOP:
            raise CaptureExit

    def unavailable(self, framework: str, version: str, reason: str) -> None:
        """Report and record, once, that steps of this framework are not captured; the training continues."""
        text = f"warning: steps of {framework} {version} are not captured: {UNAVAILABLE[reason]}"
        is_new = text not in self._messages
        self.say_once(text)
        if is_new and self.agent is not None:
            fields = {"framework": framework, "version": version, "reason": reason}
            self.agent.journal.write("capture_unavailable", fields, aside=True)

    def end_process(self) -> NoReturn:
        """End a process that has re-executed a captured step, after its result was written."""
        raise SystemExit(0)

    def about_process(self) -> dict[str, Any]:
        """Return the facts about this process that a snapshot's header holds."""
        return {
            "versions": {n: str(getattr(sys.modules[n], "__version__", "")) for n in _LIBRARIES if n in sys.modules},
            "process": "" if self.agent is None else self.agent.journal.identity,
            "rank": numeric_variable("RANK"),
            "world": numeric_variable("WORLD_SIZE"),
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "directory": _current_directory(),
            "command": _command(),
            "environment": _environment(),
        }

    # What the agent calls

    def loaded(self, name: str, module: ModuleType) -> None:
        """Pass a module that was just imported to the part that waits for it."""
        self.part(name).begin(name, module)

    def part(self, name: str) -> Any:
        """Return the part that waits for this module; create it at the first use."""
        from importlib import import_module

        place, redo = PARTS[name], self.settings.redo
        place = place if redo is None else (IN_PLACE if redo.in_place else REDO).get(place, place)
        if place not in self._parts:
            file, _, kind = place.partition(".")
            self._parts[place] = getattr(import_module(f"{__name__}.{file}"), kind)(self)
        return self._parts[place]

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        for part in self._parts.values():
            self.attempt(part.forget)


def start(agent: Agent, plan: Mapping[str, Any]) -> CaptureSession:
    """Start the captures that plan.json asks for."""
    global running
    running = capture = CaptureSession(CaptureSettings.of_plan(plan), agent)
    agent.listeners.append((set(PARTS), capture.loaded))
    os.register_at_fork(after_in_child=capture.forget)
    return capture


def numeric_variable(name: str) -> int | None:
    """Return the number in an environment variable of a distributed launcher, such as RANK; None if there is none."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _command() -> list[str]:
    return [str(word)[:4096] for word in list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", []))[:256]]


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _environment() -> dict[str, object]:
    """Return facts about the environment that can affect a step's result."""
    names = [name for name in sorted(os.environ) if name.startswith(_PREFIXES)]
    reported = [name for name in names if not any(word in name for word in _SECRETS)][:MAX_VARIABLES]
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "platform": sys.platform,
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "processors": len(os.sched_getaffinity(0)),
        "variables": {name: os.environ[name][:1000] for name in reported},
    }
