"""Runs of experiment trackers: noted with their ids; a replay opens runs of its own and is given nothing else anew.

The packages here are cut as MLflow and wandb are; tests/evidence/report/test_trackers.py asks those themselves.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from reprokit.agent.frameworks.trackers import _without_password
from tests.support import Reprokit

FILES = {
    "mlflow/__init__.py": """
        __version__ = "3.0"
        from mlflow.tracking.fluent import start_run
        def get_tracking_uri(): return "https://user:secret@tracking.example/path?token=secret"
    """,
    "mlflow/tracking/__init__.py": "from mlflow.tracking.client import MlflowClient",
    "mlflow/tracking/client.py": """
        from mlflow.store.tracking import file_store
        class MlflowClient:
            def create_run(self, experiment_id): return file_store.create_run(experiment_id)
    """,
    "mlflow/tracking/fluent.py": """
        from mlflow.tracking.client import MlflowClient
        def start_run(): return MlflowClient().create_run("7")
    """,
    "mlflow/store/__init__.py": "",
    "mlflow/store/tracking/__init__.py": "",
    "mlflow/store/tracking/file_store.py": """
        import uuid
        class Run: pass
        def create_run(experiment_id):
            run = Run()
            run.info = Run()
            run.info.run_id, run.info.experiment_id = uuid.uuid4().hex, experiment_id
            return run
    """,
    "wandb/__init__.py": '__version__ = "0.31"\nfrom wandb.sdk.wandb_init import init',
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_init.py": """
        from wandb.sdk.lib import runid
        class Run: pass
        def init(project):
            run = Run()
            run.id, run.dir, run.project = runid.generate_id(), "wandb/run-1/files", project
            return run
    """,
    "wandb/sdk/lib/__init__.py": "",
    "wandb/sdk/lib/runid.py": """
        import secrets
        def generate_id(length=8): return "".join(secrets.choice("abcdefgh") for _ in range(length))
    """,
    "train.py": """
        import random, uuid, mlflow, wandb
        from wandb.sdk.lib import runid
        run, other = mlflow.start_run(), wandb.init("digits")
        print(run.info.run_id, other.id, uuid.uuid4(), runid.generate_id(), random.random())
    """,
}


@pytest.fixture
def project(reprokit: Reprokit) -> Reprokit:
    from textwrap import dedent

    for name, text in FILES.items():
        path = reprokit.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return reprokit


def noted(reprokit: Reprokit, run: str) -> list[dict[str, Any]]:
    lines = (reprokit.directory / run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["k"] in ("tracker", "warning")]


@pytest.mark.slow
def test_a_replay_opens_runs_of_its_own(project: Reprokit) -> None:
    done = project.run("record", "-o", "first", "--", sys.executable, "train.py")
    mlflow_id, wandb_id, *rest = done.stdout.split()
    assert [(line["name"], line["run"], line["group"]) for line in noted(project, "first")] == [
        ("mlflow", mlflow_id, "7"),
        ("wandb", wandb_id, "digits"),
    ]
    assert noted(project, "first")[0]["place"] == "https://tracking.example/path"
    ids = {mlflow_id, wandb_id}
    for name in ("second", "third"):
        again = project.run("replay", "first", "-o", name)
        found = again.stdout.split()
        assert found[2:] == rest
        assert [line["run"] for line in noted(project, name)] == found[:2]
        assert [len(text) for text in found[:2]] == [32, 8]
        assert ids.isdisjoint(found[:2])
        ids.update(found[:2])
        fidelity = project.facts(name)["fidelity"]
        assert (fidelity["moved"], fidelity["derived"], fidelity["live"], fidelity["unused"]) == (0, 0, 0, 0)
    assert "tracker" not in project.run("verify", "first", "second", "--all").stdout


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        ("file:./mlruns", "file:./mlruns"),
        ("/home/somebody/mlruns", "/home/somebody/mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("http://a:b@c@host:5000/x?key=1", "http://host:5000/x"),
        ("postgresql://user:word@host/base", "postgresql://host/base"),
    ],
)
def test_no_password_is_written_down(place: str, kept: str) -> None:
    assert _without_password(place) == kept
