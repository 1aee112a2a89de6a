"""Declares what environment.json says of a checkout: why git did not answer, and the files that were used."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

GitProblem = Literal["absent", "other-owner", "no-answer", "failed", "unfinished"]
PROBLEMS: Final[dict[str, str]] = {
    "absent": "git is not installed here, so the checkout's commit is not known",
    "other-owner": "git refused a checkout that another user owns (safe.directory), so its commit is not known",
    "no-answer": "git did not answer in time, so the checkout's commit is not known",
    "failed": "git failed or there is no commit yet, so the checkout's commit is not known",
    "unfinished": "the run ended before git had answered, so the checkout's commit is not known",
}
Number = Annotated[int, msgspec.Meta(ge=0)]


class UsedFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that a run was seen to use, compared with the blobs of its commit."""

    changed: dict[str, str] = {}  # path and digest of those with other bytes than in the commit
    outside: dict[str, str] = {}  # likewise of code that the commit lacks
    same: Number = 0  # files of the commit with its bytes
    not_compared: Number = 0  # files for which there was no time, or that git did not find


def used_files(git: dict[str, Any]) -> UsedFiles | None:
    """Return what the environment of a run says of the files that it used; None where it says nothing valid."""
    try:
        return msgspec.convert(git.get("used"), UsedFiles)
    except msgspec.ValidationError:
        return None
