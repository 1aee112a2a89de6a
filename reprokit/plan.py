"""The plan: what a run must do, as frozen data; the one thing handed to the child."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit.rundir import ReplayOf

RECORD, REPLAY = "record", "replay"
POLICIES = ("strict", "derive", "live")
AGENT_PLAN_FORMAT = 1
WITHOUT_SUPERVISOR = "off: --no-supervisor"  # in run.json: the user's wish, which replays follow


def past_tense(mode: str) -> str:
    """What is done to entropy in this mode, in words."""
    return "replayed" if mode == REPLAY else "recorded"


def new_key() -> bytes:
    """A fresh profile's key, from which derived bytes come."""
    return os.urandom(32)


def key_of_seed(text: str) -> bytes:
    """The key that a user's text stands for: the same text gives the same entropy in every run."""
    return hashlib.sha256(b"reprokit-seed-1\0" + text.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run to be made: what to execute, where, and what shim and agent must do in it."""

    mode: str
    command: tuple[str, ...]
    working_directory: Path
    output: Path | None = None  # None: a directory of its own under .reprokit
    overwrite: bool = False
    policy: str = "derive"
    key: bytes = field(default_factory=new_key, repr=False)
    record_crypto: bool = False
    keyed: bool = False  # answer every request from the key, identity and a counter
    clock: bool = False  # record and replay the real-time clock, and stand in for process ids
    supervisor: bool = True  # answer what the shim cannot reach, by seccomp user notification
    hide_rdrand: bool = False  # hide RDRAND and RDSEED by CPUID faulting
    prove: bool = False  # run strace beside, and account for every request to the kernel
    profile: Path | None = None  # replay: the entropy directory of the recording
    replay_of: ReplayOf | None = None
    variables: Mapping[str, str] | None = None  # replay: the kept variables as they were
    processors: int | None = None  # replay: how many the command may use, where it may use more than it could
    pools: Mapping[str, int] = field(default_factory=dict)  # replay: sizes that only the agent can set
    environment_size: int | None = None  # replay: what the recording had
    changed: tuple[str, ...] = ()  # replay: what is known to be different before the start

    def for_agent(self, shim: Path) -> dict[str, Any]:
        """plan.json: all that the agent needs to know."""
        pools = {"pools": dict(self.pools)} if self.pools else {}
        return {"format": AGENT_PLAN_FORMAT, "mode": self.mode, "shim": str(shim), **pools}
