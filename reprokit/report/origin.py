"""On which machine and from which source tree a run was executed, as its environment.json says."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from reprokit.report.facts import SourceState
from reprokit.untrusted_json import object_in


def machine(environment: dict[str, Any]) -> str:
    """Name processor, accelerators and system in a line."""
    cpu, system, gpus = object_in(environment, "cpu"), object_in(environment, "system"), environment.get("gpus")
    parts = [cpu.get("model"), f"{cpu['count']} processors" if cpu.get("count") else ""]
    parts += gpus if isinstance(gpus, list) else []
    parts += [system.get(key) for key in ("os", "kernel", "libc")]
    return "; ".join(str(part) for part in parts if part)


def source(environment: dict[str, Any]) -> SourceState:
    """Describe the git checkout; what the commit does not say is in the digest of changes."""
    git = object_in(environment, "git")
    commit = str(git.get("commit") or "")
    if git.get("dirty") is None:  # no checkout, or git did not answer in time
        return SourceState(commit=commit)
    beyond = {key: git[key] for key in ("changes", "untracked", "more_untracked") if git.get(key)}
    if not beyond:
        return SourceState(state="clean", commit=commit)
    text = json.dumps(beyond, sort_keys=True, separators=(",", ":"))
    return SourceState(state="changed", commit=commit, changes=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
