"""MLflow and Weights & Biases: the runs that the training opens; a replay opens runs of its own.

Their ids are drawn from the randomness that is replayed. A tracker that gets the id of the recorded run again refuses
the run or overwrites it. In a replay the id is therefore derived from the recorded one and the replay's, after the
library has drawn the same bytes as before.
"""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.patching import Function, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

STORES = ("mlflow.store.tracking.file_store", "mlflow.store.tracking.sqlalchemy_store")
MAX_TEXT = 1000  # characters of a recorded text
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"  # in ids of Weights & Biases


class TrackersAdapter(Adapter):
    """Patches both libraries."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._recorded: set[tuple[str, str]] = set()
        self._starting = 0  # running calls of wandb.init
        self._replay: str | None = None  # the id of this replay; empty in a recording; None if not read so far

    def forget(self) -> None:
        self._recorded.clear()

    def instrument(self, name: str, module: Any) -> None:
        if name == "mlflow.tracking.fluent":
            self._agent.note_calls(module, "start_run", self._note_mlflow)
        elif name == "mlflow.tracking.client":
            self._agent.note_calls(module.MlflowClient, "create_run", self._note_mlflow)
        elif name in STORES:
            if self._replay_id():
                module.uuid = UuidModuleProxy(module.uuid, self._new_uuid)
        elif name == "wandb.sdk.wandb_init":
            replace(module, "init", self._make_init)
        elif name == "wandb.sdk.lib.runid":
            if self._replay_id():
                replace(module, "generate_id", self._make_generate_id)
        else:
            super().instrument(name, module)

    def _replay_id(self) -> str:
        if self._replay is None:
            import json

            with open(self._agent.run + "/run.json", encoding="utf-8", errors="surrogateescape") as file:
                run = json.load(file)
            self._replay = str(run["run_id"]) if run["kind"] == "replay" else ""
        return self._replay

    def _new_uuid(self, recorded: Any) -> Any:
        """Return a UUID that replaces the recorded one in this replay."""
        return type(recorded)(bytes=self._derived(recorded.bytes), version=4)

    def _derived(self, recorded: bytes) -> bytes:
        from hashlib import sha256

        return sha256(b"\0".join([b"reprokit-tracker-1", self._replay_id().encode(), recorded])).digest()[:16]

    def _note_mlflow(self, run: Any, *_call: Any) -> None:
        mlflow: Any = sys.modules["mlflow"]
        self._note("mlflow", run.info.run_id, str(mlflow.get_tracking_uri()), str(run.info.experiment_id))

    def _make_init(self, original: Function) -> Function:
        def init(*arguments: Any, **keywords: Any) -> Any:
            self._starting += 1
            try:
                run = original(*arguments, **keywords)
            finally:
                self._starting -= 1
            self._agent.attempt(self._note_wandb, run)
            return run

        return init

    def _note_wandb(self, run: Any) -> None:
        if getattr(run, "id", None):
            self._note("wandb", str(run.id), str(getattr(run, "dir", "")), str(getattr(run, "project", "") or ""))

    def _make_generate_id(self, original: Function) -> Function:
        def generate_id(*arguments: Any, **keywords: Any) -> Any:
            recorded = original(*arguments, **keywords)
            if not self._starting:
                return recorded
            derived = self._derived(recorded.encode())
            return "".join([_LETTERS[byte % len(_LETTERS)] for byte in derived * (1 + len(recorded) // 16)])[
                : len(recorded)
            ]

        return generate_id

    def _note(self, name: str, run: str, place: str, group: str) -> None:
        """Record a run, once a process."""
        if (name, run) not in self._recorded:
            self._recorded.add((name, run))
            fields = {"name": name, "run": run, "place": _without_password(place), "group": group}
            self._agent.journal.write("tracker", {key: text[:MAX_TEXT] for key, text in fields.items()}, aside=True)


class UuidModuleProxy:
    """Stands in for the module uuid in an MLflow store."""

    def __init__(self, module: Any, change: Function) -> None:
        self._module, self._change = module, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def uuid4(self) -> Any:
        return self._change(self._module.uuid4())


def _without_password(address: str) -> str:
    """Return a URL without user, password and query."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
