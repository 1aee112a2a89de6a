"""Where the pairs of a study are made: each engine runs the same attempts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reprokit.errors import BadStudy

if TYPE_CHECKING:
    from reprokit.study.description import Engine as Settings
    from reprokit.study.description import Study
    from reprokit.study.engines.engine import Engine


def check(settings: Settings) -> None:
    """Refuse, before anything is made, an engine that cannot be used."""
    if settings.kind != "local":
        raise BadStudy(f'engine.kind = "{settings.kind}": this reprokit has no such engine')
    if settings.store or settings.address or settings.options:
        raise BadStudy('engine: store, address and options are not for kind = "local"')


def make(study: Study, directory: Path, lock: int) -> Engine:
    """The engine that the study asks for."""
    from reprokit.study.engines.local import Local

    return Local(directory, study.engine.parallel, lock, keep_logs=study.keep == "all")
