"""Stores goldens: recordings that later runs must equal, by machine, as other machines compute other bits.

A golden is a run directory below DIRECTORY/TRAINING/MACHINE. It is compared with a replay of it by the current code,
which uses the golden's randomness.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from reprokit.core.errors import CannotWriteReport
from reprokit.core.untrusted_json import object_in

KEY = 16  # characters


def machine_key(environment: dict[str, Any]) -> str:
    """Return a key of the machine: a digest of hardware and versions of the imported packages."""
    cpu, system = object_in(environment, "cpu"), object_in(environment, "system")
    facts = {
        "cpu": [cpu.get(name) for name in ("model", "flags", "usable")],
        "machine": system.get("machine"),
        "libc": system.get("libc"),
        "gpus": environment.get("gpus"),
        "accelerator": environment.get("accelerator"),
        "python": object_in(environment, "python").get("build"),
        "frameworks": environment.get("frameworks"),
        "packages": _imported(environment),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY]


def _imported(environment: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of the packages that the training imported."""
    packages, imported = object_in(environment, "packages"), environment.get("imported")
    return {name: packages.get(name) for name in imported} if isinstance(imported, list) else {}


def store(recording: Path, target: Path) -> None:
    """Make a recording the golden; an earlier one is replaced completely or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        shutil.copytree(recording, partial, symlinks=True)
        before = target.with_name(f".{target.name}.{os.getpid()}.before")
        if target.exists():
            os.rename(target, before)
        os.rename(partial, target)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise CannotWriteReport(f"{target}: {error.strerror}; the golden was not changed") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def others(directory: Path, training: str) -> list[str]:
    """Return the machines for which a golden exists."""
    return sorted(path.name for path in (directory / training).glob("[!.]*"))
