"""outputs.json: the files that a run wrote."""

from __future__ import annotations

from typing import Annotated

import msgspec

from reprokit.model.run import FORMAT

MAX_LINKS = 100_000  # files below the working directory, among which symbolic links are looked for


class OutputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that the run wrote and that was there at its end."""

    path: str  # relative to the working directory where it lies below it
    size: int
    digest: str  # "sha256:...", or "" where it was not read
    content: str = ""  # digest without a container's noise (zip timestamps), where there is any
    container: str = ""  # "zip", "keras", ...: which rule made content
    note: str = ""  # why there is no digest
    kept: Annotated[int, msgspec.Meta(ge=0)] | None = None  # the number of its copy in the run directory
    private_key: bool = False  # it begins as a private key does: never copied


class OutputLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A symbolic link that the run put in place."""

    path: str  # as of a file
    target: str  # what it says; an absolute one is relative to the working directory if it lies below it


class OutputsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """outputs.json"""

    format: int = FORMAT
    files: list[OutputFile] = msgspec.field(default_factory=list)
    links: list[OutputLink] = msgspec.field(default_factory=list)
    left_out: Annotated[int, msgspec.Meta(ge=0)] = 0  # files beyond the bounds, see docs/limitations.md; at least
    gone: list[str] = msgspec.field(default_factory=list)  # written and not there at the end: the first of them
    gone_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # the others

    unseen: list[str] = msgspec.field(default_factory=list)  # changed meanwhile, by what was not seen: the first
    unseen_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # the others
    temporary: list[str] = msgspec.field(default_factory=list)  # in temporary places, to which no link leads: the first
    temporary_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # the others
    more_links: bool = False  # beyond those that were looked at for where they lead

    @property
    def not_compared(self) -> list[str]:
        """What is known of further files, in words."""
        gone = _counted(
            self.gone, self.gone_more, "that {} written {} not there at the end", ("was", "is"), ("were", "are")
        )
        what = "in the working directory {} changed meanwhile by what was not seen"
        unseen = _counted(self.unseen, self.unseen_more, what, ("was",), ("were",))
        temporary = _counted(
            self.temporary, self.temporary_more, "{} written to a temporary place", ("was",), ("were",)
        )
        links = f"symbolic links beyond the first {MAX_LINKS:,} files may lead to temporary places"
        return list(filter(None, (gone, unseen, temporary, links * self.more_links)))


def _counted(names: list[str], more: int, what: str, one: tuple[str, ...], many: tuple[str, ...]) -> str:
    count = len(names) + more
    which = f"1 file {what.format(*one)}" if count == 1 else f"{count} files {what.format(*many)}"
    return f"{which}, first {names[0]}" if names else ""
