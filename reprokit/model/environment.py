"""Declares environment.json: the machine and the programs of a run."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from reprokit.model.run import FORMAT

GitProblem = Literal["absent", "other-owner", "no-answer", "failed", "unfinished"]
PROBLEMS: Final[dict[str, str]] = {
    "absent": "git is not installed here, so the checkout's commit is not known",
    "other-owner": "git refused a checkout that another user owns (safe.directory), so its commit is not known",
    "no-answer": "git did not answer in time, so the checkout's commit is not known",
    "failed": "git failed or there is no commit yet, so the checkout's commit is not known",
    "unfinished": "the run ended before git had answered, so the checkout's commit is not known",
}
Number = Annotated[int, msgspec.Meta(ge=0)]


class EnvironmentFile(msgspec.Struct, kw_only=True):
    """The content of environment.json."""

    format: int = FORMAT
    host: str = ""
    system: dict[str, str] = {}
    cpu: dict[str, Any] = {}
    memory: int = 0  # bytes
    limits: dict[str, list[int]] = {}
    gpus: list[str] = []
    git: dict[str, Any] | None = None
    program: dict[str, str] = {}  # path of the executed program, and its digest
    files: dict[str, str] = {}  # arguments that name files, and their digests
    python: dict[str, str] | None = None  # of the first process, as the agent saw it
    frameworks: dict[str, str] = {}  # as the agent saw them
    packages: dict[str, str] = {}  # installed distributions of the first Python process, and their versions
    imported: list[str] | None = None  # those that the training imported; None if unknown
    code: dict[str, str] = {}  # code files outside of packages, and their digests
    accelerator: dict[str, str] = {}  # the kernel's driver
    declared: list[str] = []  # --data
    data: list[dict[str, Any]] = []  # what the run read, from run/data.py
    unlisted: int = 0  # number of files read beyond the list's limit


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
