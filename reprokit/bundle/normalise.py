"""Takes names of people, places and machines out of what a run wrote down."""

from __future__ import annotations

import re
from typing import Any

DIRECTORY, USER, MACHINE = "/working-directory", "/home/user", "host"
_HOMES = re.compile(r"/(?:home|Users)/[^/\s\"':;,]+|/root(?![A-Za-z0-9._-])")
_OF_MACHINES = frozenset({"host", "hostname", "node"})  # keys whose value is a machine's name


class Normaliser:
    """Replaces one run's working directory, home directories and host name, wherever they stand."""

    def __init__(self, working_directory: str) -> None:
        self._directory = working_directory.rstrip("/")

    def text(self, text: str) -> str:
        """A text with its paths replaced."""
        if len(self._directory) > 1:
            text = re.sub(re.escape(self._directory) + r"(?![A-Za-z0-9._-])", DIRECTORY, text)
        return _HOMES.sub(USER, text)

    def value(self, value: Any, key: str = "") -> Any:
        """Anything of JSON, part by part; keys can be paths too."""
        if isinstance(value, str):
            return MACHINE if key in _OF_MACHINES and value else self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.value(inner, name) for name, inner in value.items()}
        return [self.value(inner) for inner in value] if isinstance(value, list) else value


class Verbatim(Normaliser):
    """Leaves everything as it is."""

    def __init__(self) -> None:
        super().__init__("")

    def text(self, text: str) -> str:
        return text

    def value(self, value: Any, key: str = "") -> Any:
        return value
