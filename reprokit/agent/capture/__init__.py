"""Captures the training's state as it was at the start of a step whose gradients or loss are not finite.

A framework's part is a class in a module here (PARTS), made with the Capture when the first of the modules that it
waits for has been executed. Its `begin(name, module)` is called for each of them; it watches the training, and hands
what it kept to CaptureSession.save. In a forked child its `forget()` drops what the parent noted. A run that does a
captured step again has REDO in their place.
"""

from __future__ import annotations

import os
import sys

from ..core.signal_errors import pass_on
from .settings import STOP, UNAVAILABLE, CaptureSettings
from .store import Part, SnapshotContents, Store, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, NoReturn

    from ..agent import Agent


__all__ = [
    "EXIT_CAPTURED",
    "CaptureSession",
    "CaptureSettings",
    "Captured",
    "Part",
    "SnapshotContents",
    "Store",
    "StoreError",
    "start",
]

EXIT_CAPTURED = 123
MAX_TOLD = 20  # steps without a snapshot of which a line is said
MAX_VARIABLES = 100
# Of the environment: what can decide what a step comes to, and holds no secret.
_VARIABLES = ("CUBLAS_", "CUDA_", "JAX_", "KERAS_", "MKL_", "NCCL_", "OMP_", "PYTORCH_", "TF_", "TORCH_", "XLA_")
_SECRETS = ("AUTH", "COOKIE", "CREDENTIAL", "KEY", "LICENSE", "PASS", "PRIVATE", "SECRET", "SIGNATURE", "TOKEN")

running: CaptureSession | None = None  # the one that the launcher asked for

_LIBRARIES = ("torch", "tensorflow", "keras", "tf_keras", "numpy")

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
# Which part waits for a module: its file here and its class.
PARTS = {
    **dict.fromkeys(_TORCH, "torch_capture.TorchCapture"),
    **dict.fromkeys(("tensorflow", *_KERAS), "tensorflow_capture.TensorFlowCapture"),
    "jax._src.api": "jax_capture.JaxCapture",
}
REDO = {  # what is in the place of these where a captured step is done again
    "torch_capture.TorchCapture": "torch_redo.TorchRedo",
    "tensorflow_capture.TensorFlowCapture": "tensorflow_redo.TensorFlowRedo",
}


class Captured(SystemExit):
    """Ends a training whose step was captured, with a status of its own."""

    def __init__(self) -> None:
        super().__init__(EXIT_CAPTURED)


class CaptureSession:
    """What the parts of the frameworks share; without an agent where a script made it itself (guard)."""

    def __init__(self, settings: CaptureSettings, agent: Agent | None = None) -> None:
        self.settings = settings
        self.agent = agent
        self.store = Store(settings.directory, settings.max_snapshots, settings.max_bytes, settings.fallback)
        self._parts: dict[str, Any] = {}
        self._said: set[str] = set()
        self._captured = 0

    # What the parts of the frameworks call

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ours; what goes wrong is said, and None returned. Captured passes, being no Exception."""
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(function, error)
            pass_on(error)
            return None

    def failed(self, function: Callable[..., Any], error: Exception) -> None:
        """Say that a function of ours has failed."""
        if self.agent is not None:
            self.agent.failed(function, error)
        else:
            self.say(f"warning: {getattr(function, '__qualname__', function)}: {type(error).__name__}: {error}")

    def say(self, text: str) -> None:
        """One line on stderr; a stderr that is closed or full is no reason to fail."""
        text = "".join([character if character.isprintable() else ascii(character)[1:-1] for character in text])
        line = f"reprokit: {text[:4000]}\n"
        try:
            if not _said_aside(line):
                sys.stderr.write(line)
                sys.stderr.flush()
        except Exception as error:
            pass_on(error)

    def say_once(self, text: str) -> None:
        """The same, for what would be said at each step."""
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            self.say(text)

    def save(self, header: Mapping[str, Any], parts: list[Part]) -> str | None:
        """Write a snapshot, with what is known of the process; returns its path, or None having said why not."""
        try:
            known = self.about_process()
            environment = {**known["environment"], **(header.get("environment") or {})}
            path = self.store.save(SnapshotContents({**known, **header, "environment": environment}, parts))
        except StoreError as error:
            self.say_once(f"warning: no snapshot: {error}")
        except Exception as error:
            self.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
            pass_on(error)
        else:
            return path
        return None

    def captured(self, step: int, what: str, path: str | None) -> None:
        """Say what was captured and where; ends the training where it is to be stopped."""
        self._captured += 1
        if self._captured <= MAX_TOLD or path:
            where = f"snapshot: {path}" if path else "there is no snapshot of it"
            self.say(f"captured: step {step}: {what}; {where}; the step was not applied")
        else:
            self.say_once(f"further captures are not reported (limit {MAX_TOLD})")
        if self.settings.action == STOP:
            raise Captured

    def unavailable(self, framework: str, version: str, reason: str) -> None:
        """Say and write down, once, that steps of this framework are not captured; the training goes on."""
        text = f"warning: steps of {framework} {version} are not captured: {UNAVAILABLE[reason]}"
        is_new = text not in self._said
        self.say_once(text)
        if is_new and self.agent is not None:
            fields = {"framework": framework, "version": version, "reason": reason}
            self.agent.journal.write("capture_unavailable", fields, aside=True)

    def done(self) -> NoReturn:
        """End a process that has done a captured step again: its result is written."""
        raise SystemExit(0)

    def about_process(self) -> dict[str, Any]:
        """Return what a snapshot says about the process that wrote it."""
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
        """A module that a part waits for has been executed."""
        self.part(name).begin(name, module)

    def part(self, name: str) -> Any:
        """Return the part that waits for this module."""
        from importlib import import_module

        place, redo = PARTS[name], self.settings.redo
        place = place if redo is None or redo.in_place else REDO.get(place, place)
        if place not in self._parts:
            file, _, kind = place.partition(".")
            self._parts[place] = getattr(import_module(f"{__name__}.{file}"), kind)(self)
        return self._parts[place]

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        for part in self._parts.values():
            self.attempt(part.forget)


def start(agent: Agent, plan: bytes) -> CaptureSession:
    """Capture what this plan asks for."""
    import json

    global running
    running = capture = CaptureSession(CaptureSettings.of_plan(json.loads(plan)["capture"]), agent)
    agent.listeners.append((set(PARTS), capture.loaded))
    os.register_at_fork(after_in_child=capture.forget)
    return capture


def _said_aside(line: str) -> bool:
    """Write a line by a descriptor of its own, as it is nothing that the script prints; False where stderr has none."""
    try:
        sys.stderr.flush()
        own = os.dup(sys.stderr.fileno())
    except Exception as error:
        pass_on(error)
        return False
    try:
        os.write(own, line.encode(errors="backslashreplace"))
    finally:
        os.close(own)
    return True


def numeric_variable(name: str) -> int | None:
    """Return a number that a launcher of several processes gave by a variable."""
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
    """Facts that decide what a step comes to."""
    names = [name for name in sorted(os.environ) if name.startswith(_VARIABLES)]
    told = [name for name in names if not any(word in name for word in _SECRETS)][:MAX_VARIABLES]
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "platform": sys.platform,
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "processors": len(os.sched_getaffinity(0)),
        "variables": {name: os.environ[name][:1000] for name in told},
    }
