"""Keeps calls of operators with their inputs, so that other processes can repeat them under other circumstances."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .tensorflow_repeat import RepeatableCall

    Circumstance = tuple[str, int, dict[str, str]]  # what is told of it, the number of threads, variables

DIRECTORY = "profile/captured"
MAX_CALLS = 4000
MAX_BYTES = 256 << 20  # of all inputs
MAX_CALL = 64 << 20  # of one call's
SECONDS = 300.0  # for the other processes, which run side by side
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tensorflow_repeat.py")
# Less than the processor can: without oneDNN's kernels, or with those of older processors.
_WITHOUT, _LESS = "TF_ENABLE_ONEDNN_OPTS=0", "ONEDNN_MAX_CPU_ISA=AVX2"


class KeptCalls:
    """The calls of this process that can be repeated elsewhere."""

    def __init__(self, run: str, helper: Callable[[int], object]) -> None:
        self._helper = helper  # told of each process that is started here
        self._directory = f"{run}/{DIRECTORY}"
        self._path = f"{self._directory}/{os.getpid()}"
        self._size = 0
        self._calls: list[dict[str, Any]] = []
        self._results: list[tuple[list[str], dict[str, Any]]] = []  # what came out here, and the line to go on with

    def keep(self, call: RepeatableCall, found: list[str], line: dict[str, Any]) -> None:
        """Keep a call, as far as there is room."""
        parts = [tensor.numpy().tobytes() for tensor in call.inputs]
        size = sum(map(len, parts))
        if len(self._calls) >= MAX_CALLS or size > MAX_CALL or self._size + size > MAX_BYTES:
            return
        inputs = []
        for tensor, part in zip(call.inputs, parts):
            inputs.append([tensor.dtype.as_datatype_enum, [int(length) for length in tensor.shape], len(part)])
        self._append(parts)
        self._size += size
        self._calls.append(
            {
                "name": call.name,
                "inputs": inputs,
                "variables": list(call.variables),
                "attributes": [_attribute(value) for value in call.attributes],
                "outputs": call.outputs,
            }
        )
        self._results.append((found, line))

    def _append(self, parts: list[bytes]) -> None:
        if not self._calls:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        flags = _FLAGS if not self._calls else (_FLAGS | os.O_APPEND) & ~(os.O_EXCL | os.O_CREAT)
        with open(os.open(self._path + ".data", flags, 0o600), "wb") as file:
            file.writelines(parts)

    def repeat_elsewhere(self, repeats: int, threads: int) -> None:
        """Repeat all calls in processes that differ in one thing each, and complete the lines by what came out."""
        if not self._calls:
            return
        try:
            none: dict[str, str] = {}
            counts = [(f"threads {count}", count, none) for count in (1, 2, 4) if count != threads][:2]
            capped = [] if _has_no_onednn() else [(f"capabilities {_LESS}", threads, dict([_LESS.split("=")]))]
            running = [self._start(0, repeats, {}, counts + capped)]
            if capped:
                without = dict([_WITHOUT.split("=")])  # which TensorFlow reads when it is imported
                running.append(self._start(1, repeats, without, [(f"capabilities {_WITHOUT}", threads, {})]))
            end = time.monotonic() + SECONDS
            for process in running:
                for circumstance, number, there in _lines(process, end):
                    self._compare(circumstance, number, there)
        finally:
            self._remove()

    def _start(
        self, number: int, repeats: int, variables: dict[str, str], circumstances: list[Circumstance]
    ) -> subprocess.Popen[bytes]:
        path = f"{self._path}-{number}.json"
        content = {"path": sys.path, "data": self._path + ".data", "repeats": repeats, "calls": self._calls}
        with open(os.open(path, _FLAGS, 0o600), "w", encoding="utf-8") as file:
            json.dump({**content, "variables": variables, "circumstances": circumstances}, file)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-I", _PROGRAM, path]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, env=environment)
        self._helper(process.pid)
        return process

    def _compare(self, circumstance: str, number: int, there: Any) -> None:
        field, _, name = circumstance.partition(" ")
        here, line = self._results[number]
        if isinstance(there, list):
            line[field][name] = _verdict(here, there, field)

    def _remove(self) -> None:
        for path in [self._path + end for end in (".data", "-0.json", "-1.json")]:
            if os.path.exists(path):
                os.unlink(path)
        self._calls.clear()
        try:
            os.rmdir(self._directory)
        except OSError:  # another process's are there
            pass


def _verdict(here: list[str], there: list[str], field: str) -> str:
    if len(there) > 1:
        return "varies"
    if len(here) > 1 and field == "threads":
        return "repeats"
    return "same" if there[0] in here else "different"


def _has_no_onednn() -> bool:
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"


def _lines(process: subprocess.Popen[bytes], end: float) -> Iterator[Any]:
    """What a process printed until its end, or until it takes too long."""
    try:
        output = process.communicate(timeout=max(end - time.monotonic(), 1.0))[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0]
    for line in output.splitlines():
        yield json.loads(line)


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_attribute(part) for part in value] if isinstance(value, (list, tuple)) else value
