"""Names the shim and the agent by paths that fit into LD_PRELOAD and PYTHONPATH."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import reprokit
from reprokit.errors import CannotWriteRun

LIST_SEPARATORS = re.compile(r"[\s:;]")  # what no path in LD_PRELOAD may hold: there is no way to quote it


class Placed(msgspec.Struct, frozen=True):
    """Where the child finds the shim and the directory of the agent's sitecustomize."""

    shim: Path
    bootstrap: Path


def agent_directory() -> Path:
    return Path(os.path.realpath(reprokit.__path__[0])) / "agent"


@contextmanager
def placed(shim: Path) -> Iterator[Placed]:
    """The installed paths, or links to them while the run lasts where those cannot be written in a list."""
    shim, agent = Path(os.path.realpath(shim)), agent_directory()
    if not LIST_SEPARATORS.search(f"{shim}{agent}"):
        yield Placed(shim, agent / "bootstrap")
        return
    import shutil  # few installations need it, and it takes long to load

    directory = _directory_to_link_in()
    try:
        (directory / shim.name).symlink_to(shim)
        (directory / "agent").symlink_to(agent, target_is_directory=True)
        yield Placed(directory / shim.name, directory / "agent" / "bootstrap")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory_to_link_in() -> Path:
    import tempfile

    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if not LIST_SEPARATORS.search(base) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="reprokit-", dir=base))
    raise CannotWriteRun("reprokit is installed below a path with spaces or colons, and there is no /tmp to link it in")
