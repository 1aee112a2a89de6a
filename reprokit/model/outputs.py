"""Declares outputs.json: the files that a run wrote."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from reprokit.model.run import FORMAT, Digest

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
    modified: Annotated[int, msgspec.Meta(ge=0)] = 0  # its time of modification, in nanoseconds since 1970
    unseen: bool = False  # whether nothing was seen to write it: a program past the shim, or another one


class OutputLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A symbolic link that the run put in place."""

    path: str  # as OutputFile.path
    target: str  # its text; an absolute path below the working directory is made relative
    unseen: bool = False  # as OutputFile.unseen


class FoundFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was there when a recording began, and was changed, replaced, moved or removed by it."""

    path: str  # as OutputFile.path
    kind: Literal["file", "link", "directory", "moved-directory"] = "file"
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)] = 0o644
    modified: Annotated[int, msgspec.Meta(ge=0)] = 0  # as OutputFile.modified
    target: str = ""  # of a symbolic link, its text
    kept: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,20}-[0-9]{1,20}$")] | None = None  # its copy in found/
    digest: Digest | None = None  # of the copy

    @property
    def can_be_restored(self) -> bool:
        """Return whether all that it was is known."""
        return self.kept is not None or self.kind in ("link", "directory")


class OutputsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """outputs.json"""

    format: int = FORMAT
    files: list[OutputFile] = msgspec.field(default_factory=list)
    links: list[OutputLink] = msgspec.field(default_factory=list)
    left_out: Annotated[int, msgspec.Meta(ge=0)] = 0  # lower bound of files beyond the limits, see docs/limitations.md
    directories: list[str] = msgspec.field(default_factory=list)  # that were made meanwhile, as OutputFile.path
    found: list[FoundFile] = msgspec.field(default_factory=list)  # of a recording
    past_the_shim: bool = False  # whether a program took part in the recording whose files the shim does not see
    cut: str = ""  # the first directory in which not all files were looked at; empty if all were
    temporary: list[str] = msgspec.field(default_factory=list)  # the first in temporary places that no link leads to
    temporary_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    hidden: list[str] = msgspec.field(default_factory=list)  # the first in caches, environments and hidden places
    hidden_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    attributed: list[str] = msgspec.field(default_factory=list)  # the first with extended attributes of a user
    attributed_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    empty: list[str] = msgspec.field(default_factory=list)  # the first directories that were made and hold nothing
    empty_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones
    more_links: bool = False  # whether further symbolic links were not followed

    @property
    def not_compared(self) -> list[str]:
        """Return sentences about the files that are not listed."""
        cut = f"not all files below {self.cut} were looked at: what nothing was seen to write there may be missing"
        temporary = _counted(self.temporary, self.temporary_more, "written to a temporary place")
        where = "written to a cache or a hidden place, where a replay starts with what is there"
        hidden = _counted(self.hidden, self.hidden_more, where)
        attributes = "found with extended attributes, which are not looked at"
        attributed = _counted(self.attributed, self.attributed_more, attributes)
        links = f"symbolic links beyond the first {MAX_LINKS:,} files may lead to temporary places"
        return list(filter(None, (temporary, hidden, attributed, links * self.more_links, cut * bool(self.cut))))

    @property
    def empty_directories(self) -> str:
        """Return a sentence about the empty directories that were made: only their names can tell; may be empty."""
        count = len(self.empty) + self.empty_more
        which = "1 empty directory was" if count == 1 else f"{count:,} empty directories were"
        return f"{which} made, first {self.empty[0]}" if self.empty else ""

    @property
    def not_restorable(self) -> str:
        """Return a sentence about what a replay cannot find again as the recording found it; may be empty."""
        lost = [found for found in self.found if not found.can_be_restored]
        which = f"{lost[0].path} ({lost[0].size:,} bytes)" if lost else ""
        what = f"what {which} held before was not kept" if len(lost) == 1 else f"what {len(lost)} files held before"
        more = "" if len(lost) == 1 else f" was not kept, first {which}"
        return f"{what}{more}: a replay starts with what is there" if lost else ""


def _counted(names: list[str], more: int, what: str) -> str:
    """Return how many files there were, and the first; an empty text for none."""
    count = len(names) + more
    which = "1 file was" if count == 1 else f"{count} files were"
    return f"{which} {what}, first {names[0]}" if names else ""
