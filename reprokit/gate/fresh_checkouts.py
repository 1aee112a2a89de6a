"""Fresh copies of a checkout: each run of a gate starts in what was there before the first, at the same place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from reprokit.errors import CannotCopy
from reprokit.gate.checkout_copy import Bounds, CheckoutCopy, TooLarge
from reprokit.gate.start_conditions import checkout

PLACE: Final = "checkout"  # below the runs of a training
MAX_FILES = 1_000_000
SHARE = 3  # of the room on the disk this part may be taken: there are two copies at a time


class Fresh:
    """The copies for one training; what git ignores is copied too, and what is named as data is linked."""

    def __init__(self, directory: Path, place: Path, data: Iterable[str]) -> None:
        self._root = checkout(directory)
        self._kept, self.root = place / "as-before", place / (self._root.name or "root")
        self.directory = self.root / directory.relative_to(self._root)
        self._data = {Path(os.path.abspath(path)) for path in data}

    def renew(self) -> None:
        """Put a copy in the place of what a run has made of the one before."""
        try:
            if not self._kept.exists():
                self._copy(self._root, self._kept)
            shutil.rmtree(self.root, ignore_errors=True)
            self._copy(self._kept, self.root)
        except (TooLarge, OSError) as error:
            what = "name large data with --data, which is linked, or make room where runs are kept (-o)"
            raise CannotCopy(f"{self._root} cannot be copied: {error}; {what}") from None

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, mode=0o700)
        size = shutil.disk_usage(target).free // SHARE
        CheckoutCopy(source, target, Bounds(MAX_FILES, size, size), self._data).make()

    def remove(self) -> None:
        """Leave nothing of them."""
        shutil.rmtree(self.root.parent, ignore_errors=True)

    def enter(self) -> None:
        """In the launcher's own process, before it does anything else."""
        if "PWD" in os.environ:
            os.environ["PWD"] = str(self.directory)
