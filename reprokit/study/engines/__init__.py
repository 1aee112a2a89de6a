"""Chooses the engine that executes the pairs of a study; all engines execute the same attempts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from reprokit.core.errors import BadStudy

if TYPE_CHECKING:
    from reprokit.study.description import Study
    from reprokit.study.engines.engine import PairSchedule
    from reprokit.study.engines.kubernetes import Kubernetes


def check(study: Study) -> None:
    """Refuse an engine or a store that cannot be used, before anything is executed."""
    settings = study.engine
    if settings.kind == "local":
        if settings.store or settings.address or settings.options:
            raise BadStudy('engine: store, address and options are not for kind = "local"')
        return
    _check_kept(study)
    import_module(f"{__name__}.{settings.kind}").check(settings)
    check_store(study)


def check_store(study: Study) -> None:
    """Refuse a store that results cannot be fetched from."""
    from reprokit.study.engines import shared_store

    _check_kept(study)
    settings = study.engine
    if settings.store and not shared_store.is_url(settings.store) and not settings.store.startswith("/"):
        raise BadStudy("engine.store is a URL, or a path that begins with /: workers have directories of their own")
    if settings.store and (settings.kind != "kubernetes" or shared_store.is_url(settings.store)):
        shared_store.check(settings.store)


def _check_kept(study: Study) -> None:
    if study.engine.store and study.keep != "none":
        raise BadStudy(f'keep = "{study.keep}" needs a directory that all machines share; leave engine.store out')


def make(study: Study, directory: Path, lock: int) -> PairSchedule | Kubernetes:
    """Return the engine that the study asks for."""
    settings = study.engine
    if settings.kind == "kubernetes":
        from reprokit.study.engines.kubernetes import Kubernetes

        return Kubernetes(directory, settings)
    from reprokit.study.engines.engine import PairSchedule
    from reprokit.study.engines.tasks import Desk

    desk = Desk(directory, settings.store)
    if settings.kind == "local":
        from reprokit.study.engines.local import Local

        words = f"{directory} have not come back: 'reprokit study collect {directory}' gathers them"
        desk.require_none_out(words)
        return PairSchedule(Local(directory, lock, keep_logs=study.keep == "all"), settings.parallel)
    from reprokit.study.engines.jobs import Jobs

    cluster = import_module(f"{__name__}.{settings.kind}")
    return PairSchedule(
        Jobs(desk, lambda: getattr(cluster, settings.kind.capitalize())(settings, directory)), settings.parallel
    )
