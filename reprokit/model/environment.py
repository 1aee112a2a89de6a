"""Declares environment.json: the machine and the programs of a run."""

from __future__ import annotations

from typing import Any

import msgspec

from reprokit.model.run import FORMAT


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
