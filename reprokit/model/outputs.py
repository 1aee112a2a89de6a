"""Declares outputs.json: the files that a run wrote."""

from __future__ import annotations

from typing import Annotated

import msgspec

from reprokit.model.run import FORMAT

MAX_LINKS = 100_000  # files below the working directory that are searched for symbolic links


class OutputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that the run wrote and that was there at its end."""

    path: str  # relative to the working directory if it lies below it
    size: int
    digest: str  # "sha256:..."; empty if the file was not read
    content: str = ""  # digest without volatile parts of a container (zip timestamps); empty if there are none
    container: str = ""  # the rule by which `content` was computed: "zip", "keras", ...
    note: str = ""  # why there is no digest
    kept: Annotated[int, msgspec.Meta(ge=0)] | None = None  # number of its copy in the run directory
    private_key: bool = False  # whether it begins like a private key; such a file is never copied


class OutputLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A symbolic link that the run put in place."""

    path: str  # as OutputFile.path
    target: str  # its text; an absolute path below the working directory is made relative


class OutputsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """outputs.json"""

    format: int = FORMAT
    files: list[OutputFile] = msgspec.field(default_factory=list)
    links: list[OutputLink] = msgspec.field(default_factory=list)
    left_out: Annotated[int, msgspec.Meta(ge=0)] = 0  # lower bound of files beyond the limits, see docs/limitations.md
    gone: list[str] = msgspec.field(default_factory=list)  # the first files that were written and removed again
    gone_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones

    unseen: list[str] = msgspec.field(default_factory=list)  # the first that an unobserved process changed meanwhile
    unseen_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    temporary: list[str] = msgspec.field(default_factory=list)  # the first in temporary places that no link leads to
    temporary_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    more_links: bool = False  # whether further symbolic links were not followed

    @property
    def not_compared(self) -> list[str]:
        """Return sentences about the files that are not listed."""
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


def _counted(names: list[str], more: int, what: str, singular: tuple[str, ...], plural: tuple[str, ...]) -> str:
    count = len(names) + more
    which = f"1 file {what.format(*singular)}" if count == 1 else f"{count} files {what.format(*plural)}"
    return f"{which}, first {names[0]}" if names else ""
