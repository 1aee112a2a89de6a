"""``reprokit export``: what is known of a run, in the place where experiments are tracked."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit.cli import ignores, options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.ignores import IgnoreRequest
from reprokit.core.printable import printable

if TYPE_CHECKING:
    from reprokit.evidence.report.facts import AuditFacts


@click.group(cls=CommandGroup)
def command() -> None:
    """Write what is known of a run where experiments are tracked: 'mlflow', or files for 'dvc'."""


@command.command(
    short_help="Write verdict, digests and report into MLflow.",
    epilog="Example: reprokit export mlflow last:recording last",
)
@click.argument("run", type=options.RUN)
@click.argument("run2", type=options.RUN, required=False)
@click.option("--tracking-uri", metavar="URI", help="MLflow's store [default: as MLflow itself finds it].")
@click.option("--experiment-name", metavar="NAME", help="Of a new run [default: reprokit].")
@click.option("--run-id", metavar="ID", help="MLflow's run [default: the one that RUN opened, else a new one].")
@options.flag("--bundle", "Add RUN, packed as 'reprokit bundle' does, to the artifacts.")
@ignores.options
def mlflow(
    run: Path,
    run2: Path | None,
    tracking_uri: str | None,
    experiment_name: str | None,
    run_id: str | None,
    bundle: bool,
    declared: IgnoreRequest,
) -> None:
    """Write verdict, digests and report of RUN into MLflow, compared with RUN2 where it is given.

    If the training opened a run of MLflow, that run gets the tags, else a new one that holds the command's
    options and the recorded metrics too. The report goes to its artifacts. Prints the id of MLflow's run.
    Where a replay has replaced RUN's in a database in a file, the replay's run gets them.
    """
    from reprokit.evidence.export.mlflow import Target, export, mlflow_library
    from reprokit.evidence.report.gather import gather

    mlflow_library()  # asked for before the runs are read
    paths = [run] if run2 is None else [run, run2]
    facts = gather(paths, ignores=declared.ignores())
    with tempfile.TemporaryDirectory(prefix="reprokit-export-") as scratch:
        files = _reports(facts, Path(scratch))
        if bundle:
            files.append(_bundle(run, Path(scratch)))
        written = export(facts, paths, files, Target(tracking_uri, experiment_name, run_id))
    opened = "new run" if written.is_new else "run"
    click.echo(printable(f"{opened} {written.run} of MLflow in {_shown(written.store)}: {facts.verdict.outcome}"))
    if written.replaced:
        click.echo(f"RUN2 opened it; it has replaced {written.replaced}, which RUN opened, in that store")


def _reports(facts: AuditFacts, directory: Path) -> list[Path]:
    """Return the report as JSON, and as a page."""
    from reprokit.evidence.report import html

    document = json.dumps(msgspec.to_builtins(facts), indent=2) + "\n"
    content = {"report.json": document, "report.html": html.page(facts)}
    for name, text in content.items():
        (directory / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return [directory / name for name in content]


def _bundle(path: Path, directory: Path) -> Path:
    from reprokit.evidence.bundle.pack import pack
    from reprokit.run_files.rundir import RunDirectory

    packed = directory / f"{RunDirectory(path).run.run_id}.tar.zst"
    pack(path, packed)
    return packed


def _shown(store: str) -> str:
    """Return an address without the password in it."""
    scheme, mark, rest = store.partition("://")
    host, slash, place = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{place}" if mark else store


@command.command(
    short_help="Write files that DVC reads.", epilog="Example: reprokit export dvc last:recording last --plots plots"
)
@click.argument("run", type=options.RUN)
@click.argument("run2", type=options.RUN, required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=options.PATH,
    default=Path("reprokit-metrics.json"),
    help="Metrics for 'dvc metrics' [default: reprokit-metrics.json].",
)
@options.path_option("--plots", "DIR", "Curves for 'dvc plots', a CSV each.")
@ignores.options
def dvc(run: Path, run2: Path | None, output: Path, plots: Path | None, declared: IgnoreRequest) -> None:
    """Write what came out of RUN, compared with RUN2 where it is given, as files that DVC reads.

    The metrics file has the verdict, 1 for identical and 0 for different, the replay's fidelity, and the last
    value of each recorded metric. A stage that must fail where trainings differ runs 'reprokit gate'.
    """
    from reprokit.evidence.export import dvc as presenter
    from reprokit.evidence.report.gather import gather

    facts = gather([run] if run2 is None else [run, run2], ignores=declared.ignores())
    for path in presenter.write(facts, output, plots):
        click.echo(printable(f"{path}: {facts.verdict.outcome}" if path == output else str(path)))
