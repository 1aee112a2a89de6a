"""Where the pairs of a study are made: each engine runs the same attempts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reprokit.errors import BadStudy

if TYPE_CHECKING:
    from reprokit.study.description import Engine as Settings
    from reprokit.study.description import Study
    from reprokit.study.engines.engine import PairMaker


def check(study: Study) -> None:
    """Refuse, before anything is made, an engine or a store that cannot be used."""
    settings = study.engine
    if settings.kind == "local":
        if settings.store or settings.address or settings.options:
            raise BadStudy('engine: store, address and options are not for kind = "local"')
        return
    _check_kept(study)
    _check_kind(settings)
    check_store(study)


def check_store(study: Study) -> None:
    """Refuse a store that does not bring results back."""
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


def _check_kind(settings: Settings) -> None:
    if settings.kind == "dask":
        from reprokit.study.engines import dask

        dask.check(settings)
    elif settings.kind == "slurm":
        from reprokit.study.engines import slurm

        slurm.check(settings)
    else:
        from reprokit.study.engines import kubernetes

        kubernetes.check(settings)


def make(study: Study, directory: Path, lock: int) -> PairMaker:
    """The engine that the study asks for."""
    settings = study.engine
    if settings.kind == "kubernetes":
        from reprokit.study.engines.kubernetes import Kubernetes

        return Kubernetes(directory, settings)
    from reprokit.study.engines.engine import PairSchedule
    from reprokit.study.engines.pair_orders import Desk

    desk = Desk(directory, settings.store)
    if settings.kind == "local":
        from reprokit.study.engines import tasks
        from reprokit.study.engines.local import Local

        words = f"{directory} have not come back: 'reprokit study collect {directory}' gathers them"
        tasks.require_none_out(desk, words)
        return PairSchedule(Local(directory, lock, keep_logs=study.keep == "all"), settings.parallel)
    from reprokit.study.engines.jobs import Jobs

    if settings.kind == "dask":
        from reprokit.study.engines.dask import Dask

        return PairSchedule(Jobs(desk, lambda: Dask(settings)), settings.parallel)
    from reprokit.study.engines.slurm import Slurm

    return PairSchedule(Jobs(desk, lambda: Slurm(settings, directory)), settings.parallel)
