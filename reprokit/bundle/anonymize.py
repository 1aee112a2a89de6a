"""Takes names of people, places and machines out of what a run wrote down, and secrets."""

from __future__ import annotations

import re

from reprokit.redaction import Secrets
from reprokit.rundir import BUNDLED_DIRECTORY

USER, MACHINE = "/home/user", "host"
_HOMES = re.compile(r"/(?:home|Users)/([^/\s\"':;,]+)|/root(?![A-Za-z0-9._-])")
_OF_MACHINES = frozenset({"host", "hostname", "node"})  # keys whose value is a machine's name


class Normaliser(Secrets):
    """Replaces one run's working directory, home directories, its user's and its host's name too."""

    def __init__(self, working_directory: str, host: str = "", texts: str = "") -> None:
        self._directory = working_directory.rstrip("/")
        users = {name for name in _HOMES.findall(f"{working_directory} {texts}") if name not in ("", "user")}
        self._users = _alternatives(r"(?<=/)(?:{})(?=[/\s\"':;,]|$)", users)
        # A name like train would take the words of a text with it: such a host is replaced in its own places only.
        hosts = {host} if re.search("[0-9-]", host) else set()
        self._host = _alternatives(r"(?<![A-Za-z0-9._-])(?:{})(?![A-Za-z0-9_-])", hosts)

    def text(self, text: str) -> str:
        """A text with its paths and names replaced."""
        text = super().text(text)
        if len(self._directory) > 1:
            text = re.sub(re.escape(self._directory) + r"(?![A-Za-z0-9._-])", BUNDLED_DIRECTORY, text)
        text = _HOMES.sub(USER, text)
        text = self._users.sub("user", text) if self._users else text
        return self._host.sub(MACHINE, text) if self._host else text

    def named(self, text: str, key: str) -> str:
        """The text of a key, which tells where a machine's name stands."""
        return MACHINE if key in _OF_MACHINES and text else self.text(text)


def _alternatives(pattern: str, names: set[str]) -> re.Pattern[str] | None:
    found = "|".join(map(re.escape, sorted(names)))
    return re.compile(pattern.format(found)) if found else None
