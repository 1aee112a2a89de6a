"""Removes passwords and tokens from a run's texts, wherever they are shown or handed to somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

SECRET = "left-out"

# In small letters: where none of them is in a text, no secret is. What knows more takes as long to load as reprokit
# itself, and most texts and runs do without.
_HINTS = (
    "://", "pass", "pwd", "secret", "credential", "auth", "cookie", "token", "key", "bearer", "sig", "code=", "-----",
    "x-", " -p", " -u", " -a", " -w", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "gl", "hf_", "api_org_",
    "akia", "asia", "abia", "acca", "sk-", "k_live_", "k_test_", "whsec_", "xox", "xapp-", "aiza", "ya29.", "gocspx-",
    "npm_", "pypi-", "dckr_", "dapi", "dop_v1_", "r8_", "hv", "sg.", "wandb_v1_", "eyj",
)  # fmt: skip

_SAID = ("value", "text", "left", "right")  # keys whose value belongs to what "name" says
_revealed: ContextVar[bool] = ContextVar("revealed", default=False)


@contextmanager
def revealed() -> Iterator[None]:
    """Show secrets as they are meanwhile: the user of show or verify asked for them."""
    before = _revealed.set(True)
    try:
        yield
    finally:
        _revealed.reset(before)


def shown(text: str) -> str:
    """Return a text as a presenter shows it: without passwords and tokens, unless the user asked for them."""
    return text if _revealed.get() else without_secrets(text)


def shown_document(document: Any) -> Any:
    """Return the same of a JSON document."""
    return document if _revealed.get() else Secrets().value(document)


def without_secrets(text: str) -> str:
    """Return a text, which can hold a command of a shell's, without what is known to be a password or a token."""
    lowered = text.lower()
    for hint in _HINTS:  # three times as fast as any()
        if hint in lowered:
            from reprokit.core import secret_forms

            return secret_forms.replaced(text)
    return text


class Secrets:
    """Replaces known passwords and tokens wherever they stand, and nothing else."""

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return without_secrets(text)

    def value(self, value: Any, key: Any = "") -> Any:
        """Redact a JSON value, part by part; keys can be paths too."""
        from reprokit.core import secret_forms

        if isinstance(value, str):
            return SECRET if secret_forms.is_secret(str(key), value) else self.named(value, str(key))
        if isinstance(value, dict):
            about = value.get("name") or key  # {"name": "api_key", "value": {"text": ...}}
            return {
                self.text(name): self.value(inner, about if name in _SAID else name) for name, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in secret_forms.arguments(value)]
        return value

    def named(self, text: str, key: str) -> str:
        """Return the text of a key."""
        return self.text(text)
