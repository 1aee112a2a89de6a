"""Pairs made by Kubernetes: a manifest of an Indexed Job is written, which makes a pair for each of its numbers.

No cluster is spoken to: whoever applies the manifest has the rights and the tools for that.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec

from reprokit.core.errors import BadStudy, StudyTooLarge
from reprokit.run.messages import say
from reprokit.study.attempt import PairTask, Task
from reprokit.study.description import Engine
from reprokit.study.engines import shared_store as depots
from reprokit.study.engines import worker
from reprokit.study.engines.engine import PairListener
from reprokit.study.engines.tasks import Desk
from reprokit.study.store import read_study

MANIFEST: Final = "job.json"
ORDERS: Final = "/etc/reprokit"  # where the container finds them
FILE: Final = "orders.json.gz"
SCRATCH: Final = "/scratch"
MAX_ORDERS: Final = 700_000  # bytes that fit into a ConfigMap, as text
MAX_NAME: Final = 40  # characters of a study in the names of objects, whose pods have a longer one

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Quantity = str | int | float


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine.options of kind = "kubernetes"."""

    image: Text  # has the training, and this version of reprokit
    directory: Text  # in the image, of what is in the study file's directory here
    python: Text = "python"  # that has reprokit
    claim: str = ""  # PersistentVolumeClaim that is the store
    secret: str = ""  # with variables, such as those that a store wants to see
    service_account: str = ""
    cpu: Quantity = ""
    memory: Quantity = ""
    gpus: int = 0
    gpu: str = "nvidia.com/gpu"


def options(settings: Engine) -> KubernetesOptions:
    """Return the options that Kubernetes needs; raises BadStudy."""
    try:
        converted = msgspec.convert(settings.options, KubernetesOptions)
    except msgspec.ValidationError as error:
        raise BadStudy(f'engine.options of kind = "kubernetes": {error}') from None
    if not os.path.isabs(converted.directory):
        raise BadStudy("engine.options.directory is a path inside of the image, and begins with /")
    return converted


def check(settings: Engine) -> None:
    """Refuse settings from which no manifest can be made."""
    if not settings.store:
        raise BadStudy('kind = "kubernetes" needs engine.store: a URL, or the path of a volume in the containers')
    chosen = options(settings)
    if depots.is_url(settings.store) == bool(chosen.claim):
        raise BadStudy("engine.options.claim names the volume that is mounted where engine.store is a path, not a URL")
    if chosen.claim and not os.path.isabs(settings.store):
        raise BadStudy("engine.store is the path of a volume in the containers, and begins with /")
    if settings.address:
        raise BadStudy('engine.address is not for kind = "kubernetes": kubectl knows the cluster')


class Kubernetes:
    """Writes the manifest for the pairs that are not yet executed."""

    def __init__(self, directory: Path, settings: Engine) -> None:
        self._directory, self._settings = directory, settings
        self._desk = Desk(directory, settings.store, keep_claims=True)

    def make(self, pairs: Iterator[PairTask], _listener: PairListener) -> None:
        """Write the manifest; executes nothing."""
        words = f"{self._directory / MANIFEST} have not come back: apply it, then 'reprokit study collect"
        self._desk.require_none_out(f"{words} {self._directory}'")
        pending = list(pairs)
        if not pending:
            return
        base = read_study(self._directory).base
        image = options(self._settings).directory
        orders = [self._desk.order(_in_image(task, os.path.realpath(base), image)) for task in pending]
        try:
            data = manifest(read_study(self._directory).study.name, orders, self._desk.place, self._settings)
        except StudyTooLarge:
            for name, _ in orders:
                self._desk.forget(name)
            raise
        path = self._directory / MANIFEST
        path.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
        say(f"{path}: a Job that makes {len(orders)} pairs, up to {self._settings.parallel} at a time")
        say(f"this begins it: kubectl apply -f {path}")
        say(f"its results come back by: reprokit study collect {self._directory}")


def _in_image(task: PairTask, base: str, directory: str) -> PairTask:
    """Return the pair with the directories of the container image."""

    def there(path: str) -> str:
        return os.path.normpath(os.path.join(directory, os.path.relpath(os.path.realpath(path), base)))

    def placed(task_of_pair: Task) -> Task:
        data = tuple(map(there, task_of_pair.data))
        return msgspec.structs.replace(task_of_pair, working_directory=there(task_of_pair.working_directory), data=data)

    return msgspec.structs.replace(task, first=placed(task.first), second=placed(task.second))


def manifest(study: str, orders: list[tuple[str, bytes]], place: str, settings: Engine) -> dict[str, Any]:
    """Return a List of the orders and the Job, for `kubectl apply`."""
    lines = msgspec.json.encode([[name, msgspec.Raw(order)] for name, order in orders])
    packed = base64.b64encode(gzip.compress(lines, mtime=0)).decode()
    if len(packed) > MAX_ORDERS:
        raise StudyTooLarge(f"{len(orders)} pairs do not fit into a ConfigMap; make several studies of it")
    words = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")[:MAX_NAME].strip("-")
    name = f"reprokit-{words}-{uuid4().hex[:8]}"
    labels = {"app.kubernetes.io/name": "reprokit", "app.kubernetes.io/instance": name}
    about = {"name": name, "labels": labels}
    orders_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "binaryData": {FILE: packed}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": _job(name, len(orders), place, settings)}
    return {"apiVersion": "v1", "kind": "List", "items": [orders_map, job]}


def _job(name: str, count: int, place: str, settings: Engine) -> dict[str, Any]:
    chosen = options(settings)
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": min(count, settings.parallel),
        # A pair is never begun once more, and one that dies ends none of the others.
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": count,
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "reprokit", "app.kubernetes.io/instance": name}},
            "spec": {
                "restartPolicy": "Never",
                **({"serviceAccountName": chosen.service_account} if chosen.service_account else {}),
                "containers": [_container(place, chosen, settings)],
                "volumes": [
                    {"name": "orders", "configMap": {"name": name}},
                    {"name": "scratch", "emptyDir": {}},
                    *(
                        [{"name": "store", "persistentVolumeClaim": {"claimName": chosen.claim}}]
                        if chosen.claim
                        else []
                    ),
                ],
            },
        },
    }


def _container(place: str, chosen: KubernetesOptions, settings: Engine) -> dict[str, Any]:
    amounts = {"cpu": chosen.cpu, "memory": chosen.memory, chosen.gpu: chosen.gpus}
    resources = {name: str(amount) for name, amount in amounts.items() if amount}
    return {
        "name": "pair",
        "image": chosen.image,
        "command": [chosen.python, "-m", worker.__name__, place, f"{ORDERS}/{FILE}"],
        "workingDir": chosen.directory,
        "env": [{"name": "TMPDIR", "value": SCRATCH}],
        **({"envFrom": [{"secretRef": {"name": chosen.secret}}]} if chosen.secret else {}),
        **({"resources": {"requests": resources, "limits": resources}} if resources else {}),
        "volumeMounts": [
            {"name": "orders", "mountPath": ORDERS, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
            *([{"name": "store", "mountPath": settings.store}] if chosen.claim else []),
        ],
    }
