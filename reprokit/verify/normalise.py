"""Volatile facts: what is rewritten or left out before two runs are compared, and the list of it."""

from __future__ import annotations

import re

TEMPORARY_NAMES = "names that tempfile made up"
ADDRESSES = "memory addresses in the arguments of seeding calls"
INTERPRETER = "the directory of the Python interpreter in the command"
WORKING_DIRECTORY = "the working directory in the command"
EVENT_FILES = "time, host and process id in the names of TensorBoard event files"
CONTAINERS = "time stamps inside zip containers"
CONTENTS = "what formats of files add by themselves: time stamps, the order of members, spaces"
ORDER = "the order in which threads wrote their lines"
SEED_LINES = "the lines of the script that seeding calls stand in"
PROCESS_IDS = "process ids"
RUN_IDS = "run ids"
HOSTS = "host names"
TIMES = "start times and durations"

_TEMPORARY = re.compile(r"(?<![A-Za-z0-9])(tmp|pymp-|torchelastic_)[a-z0-9_]{8}(?![A-Za-z0-9_])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_EVENTS = re.compile(r"events\.out\.tfevents\.\d+\.[^/]*?\.\d+\.(\d+)(?=[./]|$)")


class Normalisations:
    """Collects the names of the normalisations that made a difference somewhere."""

    def __init__(self) -> None:
        self._applied: dict[str, None] = {}

    @property
    def applied(self) -> tuple[str, ...]:
        """In the order in which they were first needed."""
        return tuple(self._applied)

    def add(self, *names: str) -> None:
        """Note that these were needed."""
        self._applied.update(dict.fromkeys(names))

    def ignore(self, name: str, left: object, right: object) -> None:
        """Note that two facts which are never compared were not the same."""
        if left != right:
            self.add(name)

    def path(self, path: str) -> str:
        """The path of an output without what is another in every run."""
        path = self._rewrite(_TEMPORARY, r"\1????????", path, TEMPORARY_NAMES)
        return self._rewrite(_EVENTS, r"events.out.tfevents.TIME.HOST.PID.\1", path, EVENT_FILES)

    def argument(self, text: str) -> str:
        """The argument of a seeding call without addresses of objects."""
        return self._rewrite(_ADDRESS, "0x...", text, ADDRESSES)

    def _rewrite(self, pattern: re.Pattern[str], replacement: str, text: str, name: str) -> str:
        changed = pattern.sub(replacement, text)
        if changed != text:
            self.add(name)
        return changed
