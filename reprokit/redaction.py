"""Takes out of a run's texts what looks like a password or a token: where they are handed to somebody else."""

from __future__ import annotations

import re
from typing import Any

SECRET = "left-out"
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")  # user and password of a URL
_OPTION = (
    r"(?:[A-Za-z0-9_.-]*[-_.])?(?:password|passwd|passphrase|token|secret|(?:api|access|private)[-_]?key|credentials?)"
)
_SECRET_OPTION = re.compile(f"--?{_OPTION}", re.IGNORECASE)  # whose value is the next argument
_SECRET_ASSIGNED = re.compile(f"(-{{0,2}}{_OPTION}=).+", re.IGNORECASE | re.DOTALL)


class Secrets:
    """Replaces what looks like a password or a token, wherever it stands, and nothing else."""

    def text(self, text: str) -> str:
        """A text without the credentials in its URLs."""
        return _CREDENTIALS.sub("", text) if "://" in text else text

    def value(self, value: Any, key: str = "") -> Any:
        """Anything of JSON, part by part; keys can be paths too."""
        if isinstance(value, str):
            return self.named(value, key)
        if isinstance(value, dict):
            return {self.text(name): self.value(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in without_secrets(value)]
        return value

    def named(self, text: str, key: str) -> str:
        """The text of a key."""
        return self.text(text)


def without_secrets(values: list[Any]) -> list[Any]:
    """A list, which can be that of a command's arguments, without the values of options that take a secret."""
    return [_argument(value, last) for value, last in zip(values, [None, *values], strict=False)]


def _argument(value: Any, last: Any) -> Any:
    if not isinstance(value, str):
        return value
    if isinstance(last, str) and _SECRET_OPTION.fullmatch(last):
        return SECRET
    assigned = _SECRET_ASSIGNED.fullmatch(value)
    return assigned[1] + SECRET if assigned else value
