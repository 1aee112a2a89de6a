"""Keeps inputs of operators for the end of the process, and has them executed with capped capabilities of the CPU."""

from __future__ import annotations

import os
import sys

from .torch_inputs import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_confirm import Repeats
    from .torch_operators import CallRecord

MAX_CALLS = 200
MAX_BYTES = 256 << 20
MAX_BYTES_OF_ONE = 16 << 20
MAX_SECONDS = 120.0  # of each process
_CAPPED = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


class CapturedCalls:
    """The calls of this process whose inputs were kept."""

    def __init__(self, run: str, torch: Any, helper: Callable[[int], object]) -> None:
        self._torch = torch
        self._helper = helper  # told of each process that is started here
        self._directory = f"{run}/profile/captured"
        self._lines: dict[str, list[dict[str, Any]]] = {}  # by name of the file
        self._digests: dict[str, str] = {}
        self._files: dict[object, str] = {}
        self._bytes = 0

    def keep(self, record: CallRecord, repeats: Repeats, digest: bytes) -> None:
        """Write the inputs of one call to a file, once for calls that differ only in their places."""
        if not record.operator.built_in:
            return
        function, _, _, signature = record.key
        key = (function, signature, repr(record.line["attributes"]))
        name = self._files.get(key)
        if name is None:
            name = self._save(record, repeats)
            if name is None:
                return
            self._files[key] = name
            self._digests[name] = digest.hex()
        lines = self._lines.setdefault(name, [])
        if not any(line is record.confirmed for line in lines):
            lines.append(record.confirmed)

    def _save(self, record: CallRecord, repeats: Repeats) -> str | None:
        bytes_ = size(self._torch, (repeats.args, repeats.kwargs))
        if bytes_ > MAX_BYTES_OF_ONE or bytes_ + self._bytes > MAX_BYTES or len(self._files) >= MAX_CALLS:
            return None
        operator = record.operator
        content = {
            "name": operator.name,
            "overload": operator.overload or "default",
            "args": encoded(self._torch, list(repeats.args)),
            "kwargs": encoded(self._torch, repeats.kwargs),
            "state": repeats.states.processor,
            "threads": self._torch.get_num_threads(),
            "changes": operator.changes,
        }
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{len(self._files)}.pt"
        descriptor = os.open(f"{self._directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            self._torch.save(content, file)
        self._bytes += bytes_
        return name

    def compare(self) -> None:
        """Execute all that was kept in processes with fewer capabilities, and remove it."""
        names, self._files = list(self._digests), {}
        if not names:
            return
        try:
            self._compare(names)
        finally:
            for name in names:
                os.unlink(f"{self._directory}/{name}")
            self._digests = {}
            try:
                os.rmdir(self._directory)
            except OSError:  # another process has files of its own there
                pass

    def _compare(self, names: list[str]) -> None:
        capped = self._capped()
        if not capped:
            return
        present = self._digests_of(names, {})
        alike = [name for name in names if present.get(name) == self._digests[name]]
        for label, variables in capped.items():
            if not alike:
                return
            found = self._digests_of(alike, variables)
            for name in found:
                for line in self._lines[name]:
                    line["capabilities"][label] = "same" if found[name] == present[name] else "different"

    def _capped(self) -> dict[str, dict[str, str]]:
        """The capabilities below the present one."""
        present = getattr(self._torch.backends.cpu, "get_cpu_capability", str)()
        return {
            label: variables
            for label, variables in _CAPPED.items()
            if label.upper() != present and not any(name in os.environ for name in variables)
        }

    def _digests_of(self, names: list[str], variables: dict[str, str]) -> dict[str, str]:
        """What a process with these variables makes of the calls."""
        import json
        import subprocess

        torch = self._torch
        order = {
            "path": [place for place in sys.path if type(place) is str],
            "files": [f"{self._directory}/{name}" for name in names],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "precision": torch.get_float32_matmul_precision(),
            "onednn": torch.backends.mkldnn.enabled,
        }
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_capped_process.py")
        child = subprocess.Popen(
            [sys.executable, "-I", script],
            env={**_bare_environment(), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._helper(child.pid)
        try:
            output, _ = child.communicate(json.dumps(order).encode(), timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        lines = [line.split() for line in output.decode().splitlines()]
        return {os.path.basename(line[0]): line[1] for line in lines if len(line) == 2}


def _bare_environment() -> dict[str, str]:
    """The environment without reprokit, whose shim lets a child be that is told of another run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPROKIT_")}
    preloaded = [path for path in kept.pop("LD_PRELOAD", "").split(":") if path and "liburandom_hook" not in path]
    if preloaded:
        kept["LD_PRELOAD"] = ":".join(preloaded)
    return {**kept, "REPROKIT_RUN": "none"}


def encoded(torch: Any, value: Any) -> Any:
    """With words in the place of what is neither tensor nor number, so that it is read without unpickling objects."""
    if type(value) in (list, tuple):
        return [encoded(torch, item) for item in value]
    if type(value) is dict:
        return {key: encoded(torch, item) for key, item in value.items()}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).partition("torch.")[2]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    return None if isinstance(value, torch.Generator) else value
