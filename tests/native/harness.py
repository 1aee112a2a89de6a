"""Starts programs under the shim alone, without launcher and agent."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from reprokit import entropy
from reprokit.core import native
from reprokit.core.errors import RunError
from reprokit.model.plan import Plan
from tests.support import LIMIT

SOURCES = Path(__file__).parent
KEY = bytes(range(32))


@dataclass(frozen=True)
class Shim:
    """A place for run directories; ``record`` and ``replay`` return what subprocess.run returns."""

    directory: Path

    @property
    def library(self) -> Path:
        """The shim by a path that fits into LD_PRELOAD: the checkout may lie below one with spaces."""
        link = self.directory / "shim.so"
        if not link.exists():
            self.directory.mkdir(exist_ok=True)
            link.symlink_to(native.shim_path())
        return link

    def environment(
        self, name: str, mode: str, *, profile: str | None = None, policy: str = "derive", **plan: Any
    ) -> dict[str, str]:
        """Make the run directory and the variables that bring the shim into a program."""
        run = self.directory / name
        shutil.rmtree(run, ignore_errors=True)
        (run / "entropy").mkdir(parents=True, mode=0o700)
        recorded, recorded_at = None if profile is None else self.entropy(profile), 0
        with suppress(RunError):  # of a damaged profile
            recorded_at = 0 if recorded is None else entropy.started_at(recorded)
        fields = {"key": KEY, "calendar": False, "profile": recorded, "recorded_at": recorded_at, **plan}
        wanted = Plan(mode=mode, policy=policy, command=(), working_directory=self.directory, **fields)
        native.write_shim_plan(run / "shim.plan", wanted, self.library, self.directory / "no-agent")
        return self.variables(name)

    def variables(self, name: str) -> dict[str, str]:
        run = os.fspath(self.directory / name).rjust(512, "/")
        kept = {key: value for key, value in os.environ.items() if key not in ("REPROKIT_PAD", "LD_PRELOAD")}
        return kept | {"LD_PRELOAD": str(self.library), "REPROKIT_RUN": run, "REPROKIT_ID": "0"}

    def entropy(self, name: str) -> Path:
        return self.directory / name / "entropy"

    def record(
        self, command: Sequence[str], name: str = "recorded", plan: Mapping[str, Any] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        return run(command, self.environment(name, "record", **(plan or {})), **options)

    def replay(
        self,
        command: Sequence[str],
        name: str = "replayed",
        profile: str = "recorded",
        policy: str = "derive",
        plan: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        environment = self.environment(name, "replay", profile=profile, policy=policy, **(plan or {}))
        return run(command, environment, **options)

    def fidelity(self, name: str = "replayed", profile: str = "recorded") -> Any:
        return entropy.fidelity(self.entropy(name), self.entropy(profile))

    def events(self, name: str = "recorded") -> list[tuple[str, Any]]:
        """(process identity, record) of everything in a profile."""
        found = []
        for file in entropy.processes(self.entropy(name)):
            found += [(file.head.identity, record) for record in file.records()]
        return found


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    variables = dict(os.environ if environment is None else environment) | dict(extra or {})
    return subprocess.run(
        command, env=variables, stdin=stdin, capture_output=True, timeout=LIMIT, check=False, **options
    )
