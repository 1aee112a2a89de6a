"""``reprokit gate``: fails a pipeline unless trainings are bitwise identical."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprokit.cli.arguments import CommandBehindDashes
from reprokit.cli.paths import current_directory
from reprokit.cli.secrets import print_json, stdout_for_a_document
from reprokit.errors import CannotWriteReport, UsageError
from reprokit.plan import name_of

if TYPE_CHECKING:
    from reprokit.cli.gate_statements import Statements
    from reprokit.gate.results import GateVerdict
    from reprokit.gate.trainings import GateTraining
    from reprokit.launch.interruption import Interruption

FILE = click.Path(path_type=Path)


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@click.option("--file", "config", metavar="FILE", type=FILE, help="List of trainings [default: reprokit.toml].")
@click.option("--only", "names", metavar="NAME", multiple=True, help="Check this training of the list; repeatable.")
@click.option("--pairs", metavar="N", type=click.IntRange(1, 1000), help="Record and replay N times, not once.")
@click.option(
    "--vary",
    metavar="[NAME,...]",
    is_flag=False,
    flag_value="all",
    help="Also replay where all or some of these differ: cores, locale, time-zone, file-order, host-name, later-hour,"
    " working-directory.",
)
@click.option("--clean", is_flag=True, help="Start each run in a fresh copy of the checkout, as it is now.")
@click.option("--allow-state", is_flag=True, help="Accept that a run reads what another or an earlier one left.")
@click.option("--data", metavar="PATH", multiple=True, help="A file or directory that is data, and never state.")
@click.option("--recipe", metavar="FILE", type=FILE, help="Run with what 'reprokit reproduce' found.")
@click.option("--require-fidelity", is_flag=True, help="Every request of each replay must be answered exactly.")
@click.option("--max-overhead", metavar="X", type=click.FloatRange(0, min_open=True), help="At most X times as long.")
@click.option("--no-findings", is_flag=True, help="A profile must blame nothing that is not patched.")
@click.option("--accepted", metavar="FILE", type=FILE, help="A profile must blame nothing beyond this findings.json.")
@click.option("--golden", metavar="DIR", type=FILE, help="Also replay the golden of such a machine, and compare.")
@click.option("--update-golden", is_flag=True, help="Make today's recording the golden of such a machine.")
@click.option("-o", "--output", metavar="DIR", type=FILE, help="Keep the runs there [default: removed if all passes].")
@click.option("--junit", metavar="FILE", type=FILE, help="Write JUnit XML.")
@click.option("--sarif", metavar="FILE", type=FILE, help="Write what did not pass, and findings, as SARIF.")
@click.option("--gitlab", metavar="FILE", type=FILE, help="Write findings as GitLab's Code Quality report.")
@click.option("--summary", metavar="FILE", type=FILE, help="Append a Markdown summary [default: GitHub's].")
@click.option("--sign", "key", metavar="KEY", type=FILE, help="Sign a statement about each pair with this private key.")
@click.option("--statements", metavar="DIR", type=FILE, help="Write the signed statements there, as TRAINING.json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; the trainings print to stderr.")
@click.pass_context
def command(
    context: click.Context,
    config: Path | None,
    names: tuple[str, ...],
    pairs: int | None,
    vary: str | None,
    clean: bool,
    allow_state: bool,
    data: tuple[str, ...],
    recipe: Path | None,
    require_fidelity: bool,
    max_overhead: float | None,
    no_findings: bool,
    accepted: Path | None,
    golden: Path | None,
    update_golden: bool,
    output: Path | None,
    junit: Path | None,
    sarif: Path | None,
    gitlab: Path | None,
    summary: Path | None,
    key: Path | None,
    statements: Path | None,
    as_json: bool,
) -> None:
    """Record, replay and compare COMMAND, or the trainings of reprokit.toml, and fail unless all is identical.

    Two verdicts are kept apart: paired, a run of today against its replay of today, and golden, a stored run
    against a replay of today. A machine without a golden has no verdict, which is no success. Exits with
    0 if everything passed, 1 if something differs or a requirement does not hold, 2 if nothing does but something
    could not be checked, or there was nothing to compare, 128 and the signal's number if it was interrupted.
    """
    from reprokit.cli.gate_statements import prepare
    from reprokit.gate.reports import Reports
    from reprokit.launch.interruption import Interruption
    from reprokit.launch.platform_support import require_supported

    require_supported()
    if update_golden and golden is None:
        raise UsageError("--update-golden needs --golden DIR")
    with Interruption(waits=True) as interruption:
        base = current_directory()
        asked: dict[str, object] = {"fidelity": True} if require_fidelity else {}
        asked |= {"overhead": max_overhead} if max_overhead is not None else {}
        asked |= {"findings": "none"} if no_findings else {}
        asked |= {"findings": "accepted", "accepted": str(accepted.absolute())} if accepted is not None else {}
        trainings, base = _trainings(context.obj, config, names, base)
        varied = _names(vary) if vary is not None else None
        given = {
            **({"pairs": pairs} if pairs is not None else {}),
            **({"vary": varied} if varied is not None else {}),
            **({"recipe": str(recipe.absolute())} if recipe is not None else {}),
            **({"clean": True} if clean else {}),
            **({"allow_state": True} if allow_state else {}),
        }
        added = tuple(os.path.abspath(path) for path in data)
        trainings = [_with(one, given, added, asked) for one in trainings]
        reports = Reports(junit=junit, sarif=sarif, gitlab=gitlab, summary=summary or _summary_of_runner())
        reports.require_places()
        witness = prepare(key, statements, trainings)
        kept = 1 if not as_json else stdout_for_a_document()
        verdict = _judge(trainings, base, output, golden, update_golden, interruption, witness)
        reports.write(verdict)
        if as_json:
            os.dup2(kept, 1)
        _print(verdict, as_json=as_json)
    context.exit(verdict.exit_status)


def _summary_of_runner() -> Path | None:
    """Where GitHub's runner wants a summary."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(place) if place else None


def _trainings(
    behind: tuple[str, ...] | None, config: Path | None, names: tuple[str, ...], base: Path
) -> tuple[list[GateTraining], Path]:
    """What is to be checked, and from where its paths lead."""
    from reprokit.gate import trainings

    if behind:
        if config is not None or names:
            raise UsageError("give a command behind --, or a list of trainings, not both")
        return [trainings.GateTraining(name=name_of(behind), command=behind)], base
    path = config or Path(trainings.FILE)
    return trainings.read(path, names), path.absolute().parent


def _names(text: str) -> tuple[str, ...]:
    """The variations that --vary names."""
    from reprokit.gate.start_conditions import ALL, VARIATIONS

    names = tuple(text.split(","))
    unknown = next((name for name in names if name != ALL and name not in VARIATIONS), None)
    if unknown is not None:
        raise UsageError(f"--vary knows no {unknown!r}; it knows {ALL}, {', '.join(VARIATIONS)}")
    return names


def _with(
    training: GateTraining, given: dict[str, Any], data: tuple[str, ...], asked: dict[str, object]
) -> GateTraining:
    """The training with what the command line asks for beyond its own."""
    from msgspec.structs import replace

    return replace(training, **given, data=(*training.data, *data), require=replace(training.require, **asked))


def _judge(
    trainings: list[GateTraining],
    base: Path,
    output: Path | None,
    golden: Path | None,
    update: bool,
    interruption: Interruption,
    witness: Statements | None,
) -> GateVerdict:
    """Check them; runs are kept where asked, or where there is something to look at in them."""
    import shutil

    from reprokit.gate.check import GateWork
    from reprokit.gate.gate import judge
    from reprokit.gate.results import NOT_CHECKED, PASSED

    try:
        if output is not None:
            output.mkdir(mode=0o700)
        runs = output.absolute() if output is not None else Path(tempfile.mkdtemp(prefix="reprokit-gate-"))
    except OSError as error:
        raise CannotWriteReport(
            f"{output or 'a temporary directory'}: {error.strerror}; choose another with -o"
        ) from None
    work = GateWork(base=base, runs=runs.resolve(), golden=golden and golden.absolute(), update=update)
    verdict = judge(trainings, work, interruption, witness)
    if output is None and verdict.outcome in (PASSED, NOT_CHECKED):
        shutil.rmtree(runs, ignore_errors=True)
    return verdict


def _print(verdict: GateVerdict, *, as_json: bool) -> None:
    try:
        _print_all(verdict, as_json=as_json)
        sys.stdout.flush()
    except OSError:
        if not verdict.interrupted:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the terminal has hung up, and the status says it all


def _print_all(verdict: GateVerdict, *, as_json: bool) -> None:
    from reprokit.gate import github, report

    if as_json:
        print_json(report.document(verdict))
        return
    report.print_verdict(verdict)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github.workflow_commands(verdict):
            click.echo(line)
