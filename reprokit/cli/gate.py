"""``reprokit gate``: fails a pipeline unless trainings are bitwise identical."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from reprokit.cli import ignores, options
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.options import flag, path_option
from reprokit.cli.output import ending_with, present, stdout_kept, write_whole
from reprokit.core.errors import CannotWriteReport, ReprokitError, UsageError, refused_as
from reprokit.core.messages import say
from reprokit.core.printable import bounded
from reprokit.gate.reports import Reports
from reprokit.gate.results import NOT_CHECKED, PASSED, REQUIRED, TROUBLE, Case, GateVerdict, TrainingResult
from reprokit.model.plan import name_of
from reprokit.run_files import rundir

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from reprokit.gate.check import GateWork
    from reprokit.gate.trainings import GateTraining
    from reprokit.verify.ignores import Ignores


def _checked_rules(_context: click.Context, _option: click.Parameter, specs: tuple[str, ...]) -> tuple[str, ...]:
    if not specs:
        return ()
    from reprokit.rules import catalogue

    return catalogue.checked(specs)


MAX_FAILURES = 50  # that are named in a statement


@options.launching(cls=options.RelaunchingCommand, epilog="Example: reprokit gate --pairs 2 -- python train.py")
@path_option("--file", "FILE", "List of trainings [default: reprokit.toml].", "config")
@click.option(
    "--only", "names", metavar="NAME", multiple=True, help="Check only this training of the list. Repeatable."
)
@options.number("--pairs", "Record and replay N times instead of once.", most=1000)
@click.option(
    "--vary",
    metavar="[NAME,...]",
    is_flag=False,
    flag_value="all",
    callback=lambda _context, _option, text: None if text is None else tuple(text.split(",")),
    help="Also replay with all or some of these changed: cores, locale, time-zone, file-order, host-name, later-hour,"
    " working-directory.",
)
@flag("--clean", "Start each run in a fresh copy of the checkout, as it is now.")
@flag("--allow-state", "Allow a run to read files that another or an earlier run left.")
@flag("--locate", "Replay a pair that differs again, and name the first divergent operator, as 'reprokit locate'.")
@options.CLOCK
@options.NO_CONSOLE
@options.NO_CALENDAR
@click.option(
    "--data",
    metavar="PATH",
    type=click.Path(),
    multiple=True,
    help="Treat this file or directory as data, never as state of a run. Repeatable.",
)
@path_option("--recipe", "FILE", "Run with the settings in FILE, which 'reprokit reproduce' wrote.")
@flag("--ranks-agree", "Fail unless all ranks have equal parameters after every step of a recording.")
@flag("--exact-resume", "Fail unless the training, interrupted and resumed, is the one that was not.")
@flag("--require-fidelity", "Fail unless every request of each replay was answered exactly.", "fidelity")
@click.option(
    "--max-overhead",
    "overhead",
    metavar="X",
    type=options.Real(0, min_open=True),
    help="Fail if recording takes more than X times as long as running bare.",
)
@flag("--no-findings", "Fail if profiling finds an unpatched nondeterministic operation.")
@path_option("--accepted", "FILE", "Fail if profiling finds anything to blame that is not in this findings.json.")
@click.option(
    "--forbid-rule",
    "forbid_rules",
    metavar="ID[=PARAM=VALUE,...]|FILE",
    multiple=True,
    callback=_checked_rules,
    help="Also save tensors, and fail if this rule raises an alarm, as 'reprokit rules --rule'. Repeatable.",
)
@path_option("--golden", "DIR", "Also replay the golden for this kind of machine, and compare.")
@flag("--update-golden", "Store today's recording as the golden for this kind of machine.")
@options.output("DIR", "Keep the runs in DIR, beside those of earlier gates [default: removed if everything passes].")
@path_option("--junit", "FILE", "Write JUnit XML.")
@path_option("--sarif", "FILE", "Write what did not pass, and findings, as SARIF.")
@path_option("--gitlab", "FILE", "Write findings as GitLab's Code Quality report.")
@click.option(
    "--summary",
    metavar="FILE",
    type=options.PATH,
    callback=lambda _context, _option, path: path or _summary_of_runner(),
    help="Append a Markdown summary [default: GitHub's].",
)
@path_option("--sign", "KEY", "Sign a statement about each pair with this private key.", "key")
@path_option("--statements", "DIR", "Write the signed statements into DIR, as TRAINING.json.")
@ignores.options
@options.json_option("Print one JSON document; the trainings print to stderr.")
@options.gathered("reports", Reports)
@click.pass_obj
def command(
    behind_dashes: tuple[str, ...] | None,
    /,
    config: Path | None,
    names: tuple[str, ...],
    golden: Path | None,
    update_golden: bool,
    output: Path | None,
    reports: Reports,
    key: Path | None,
    statements: Path | None,
    declared: IgnoreRequest,
    as_json: bool,
    **asked: Any,
) -> None:
    """Record, replay and compare COMMAND, or the trainings of reprokit.toml; fail unless all is identical.

    Two verdicts are kept apart: paired, a run of today against its replay of today, and golden, a stored run
    against a replay of today. A machine without a golden has no verdict, which is no success. Exits with
    0 if everything passed, 1 if something differs or a requirement does not hold, 2 if nothing does but something
    could not be checked, or there was nothing to compare, 128 and the signal's number if it was interrupted.
    """
    from reprokit.gate.check import GateWork, judge
    from reprokit.gate.start_conditions import require_known
    from reprokit.run.interruption import Interruption

    if update_golden and golden is None:
        raise UsageError("--update-golden needs --golden DIR")
    require_known(asked["vary"] or (), "--vary")
    with Interruption(waits=True) as interruption:
        trainings, base = _trainings(behind_dashes, config, names)
        trainings = [_with(training, asked) for training in trainings]
        reports.require_places()
        rules = declared.ignores(config)
        witness = prepare(key, statements, trainings, rules)
        work = GateWork(
            base=base, runs=_runs(output), golden=golden and golden.absolute(), update=update_golden, ignores=rules
        )
        with stdout_kept(as_json):
            verdict = judge(trainings, work, interruption, witness)
        verdict = _without_removed(work, output, verdict)
        reports.write(verdict)
        with ending_with(verdict.exit_status):
            _print(verdict, as_json=as_json)


def _summary_of_runner() -> Path | None:
    """Return where GitHub's runner wants a summary."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(place) if place else None


def _trainings(
    behind: tuple[str, ...] | None, config: Path | None, names: tuple[str, ...]
) -> tuple[list[GateTraining], Path]:
    """Return what is to be checked, and from where its paths lead."""
    from reprokit.gate import trainings
    from reprokit.run_files import user_config

    base = options.current_directory()
    if behind:
        if config is not None or names:
            raise UsageError("give a command behind --, or a list of trainings, not both")
        return [trainings.GateTraining(name=name_of(behind), command=behind)], base
    path = config or Path(user_config.FILE)
    return trainings.read(path, names), path.absolute().parent


def _with(training: GateTraining, asked: dict[str, Any]) -> GateTraining:
    """Return the training with what the command line asks for beyond its own."""
    options = {name: value for name, value in asked.items() if value}
    options |= {name: str(value.absolute()) for name, value in options.items() if isinstance(value, Path)}
    requirements = ("fidelity", "overhead", "accepted", "ranks_agree", "exact_resume", "forbid_rules")
    require: dict[str, Any] = {name: options.pop(name) for name in requirements if name in options}
    if options.pop("no_findings", False):
        require["findings"] = "none"
    if "accepted" in require:
        require["findings"] = "accepted"
    data = map(os.path.abspath, options.pop("data", ()))
    options |= {name: getattr(training, name) and asked[name] for name in ("console", "calendar")}
    return replace(training, **options, data=(*training.data, *data), require=replace(training.require, **require))


def _runs(output: Path | None) -> Path:
    """Return a directory for the runs."""
    with refused_as(CannotWriteReport, output or "a temporary directory", "choose another with -o"):
        if output is None:
            return Path(tempfile.mkdtemp(prefix="reprokit-gate-")).resolve()
        output.mkdir(mode=0o700, exist_ok=True)
        if os.path.lexists(output / rundir.RUN):
            raise FileExistsError(errno.EEXIST, "this is a run itself")
        if not os.access(output, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return output.resolve()


def _without_removed(work: GateWork, output: Path | None, verdict: GateVerdict) -> GateVerdict:
    """Remove the runs unless they were asked for or something is to be seen in them; the verdict names those left."""
    if output is not None or verdict.outcome not in (PASSED, NOT_CHECKED):
        return verdict
    shutil.rmtree(work.runs, ignore_errors=True)
    say(f"the runs below {work.runs} are removed; keep them with -o DIR")
    return replace(verdict, trainings=tuple(replace(training, runs=(), pairs=()) for training in verdict.trainings))


def _print(verdict: GateVerdict, *, as_json: bool) -> None:
    from reprokit.gate import reports

    try:
        present(verdict, as_json=as_json, document=reports.document, text=_print_text)
        sys.stdout.flush()
    except OSError:
        if not verdict.interrupted:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the terminal has hung up, and the status says it all


def _print_text(verdict: GateVerdict) -> None:
    from reprokit.gate import github, reports

    reports.print_verdict(verdict)
    for line in github.workflow_commands(verdict) if os.environ.get("GITHUB_ACTIONS") == "true" else ():
        click.echo(line)


@dataclass(frozen=True)
class Statements:
    """The directory of statements and their signing key, both checked before the first training."""

    directory: Path
    key: Ed25519PrivateKey
    ignores: Ignores

    def __call__(self, judged: TrainingResult) -> TrainingResult:
        """Write the statements of a training; one that cannot be made is a case that did not pass."""
        if judged.is_cut_short:
            return judged
        lines = (f"{case.suite}, {case.name}: {case.message}" for case in judged.unpassed)
        failures = list(bounded(lines, MAX_FAILURES, " that did not pass"))
        troubles = [self._trouble(judged, number, failures) for number in range(1, len(judged.pairs) + 1)]
        return replace(judged, cases=(*judged.cases, *filter(None, troubles)))

    def _trouble(self, judged: TrainingResult, number: int, failures: list[str]) -> Case | None:
        """Write the statement about a pair, or say why it cannot be made."""
        from reprokit.evidence.attest import envelope
        from reprokit.evidence.attest.statement import statement
        from reprokit.evidence.report.gather import gather
        from reprokit.evidence.report.section import Execution

        paths = [Path(path) for path in judged.pairs[number - 1]]
        try:
            facts = gather(paths, Execution(tuple(failures), judged.notes), self.ignores)
            text = envelope.sign(statement(facts, "bitwise-rerun"), self.key)
            write_whole(self.directory / file_name(judged.name, number), text)
        except ReprokitError as error:
            return Case(suite=REQUIRED, name=f"statement {number}", outcome=TROUBLE, message=str(error))
        return None


def file_name(training: str, number: int) -> str:
    """Return the name of the statement about a pair; no training's name contains a +."""
    return f"{training}.json" if number == 1 else f"{training}+{number}.json"


def prepare(
    key: Path | None, directory: Path | None, trainings: Iterable[GateTraining], rules: Ignores
) -> Statements | None:
    """What --sign and --statements ask for; statements of an earlier gate are removed: none is to be taken for new."""
    if (key is None) != (directory is None):
        raise UsageError("--sign KEY and --statements DIR go together")
    if key is None or directory is None:
        return None
    from reprokit.evidence.attest import keys

    private = keys.read_private(key)
    with refused_as(CannotWriteReport, directory, "choose another with --statements"):
        directory.mkdir(parents=True, exist_ok=True)
        for training in trainings:
            for number in range(1, training.pairs + 1):
                (directory / file_name(training.name, number)).unlink(missing_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(13, "permission denied")
    return Statements(directory.absolute(), private, rules)
