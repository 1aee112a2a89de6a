"""``reprokit study``: run setups of a training many times, and say what varies, why, and what determinism costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit.cli import ignores, options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.output import interruptible, print_json
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, CannotWriteReport, NoCommand, ReprokitError, UsageError
from reprokit.study.description import ENGINES, TEMPLATES

if TYPE_CHECKING:
    from reprokit.study.description import LocatedStudy


class StudyCommands(CommandGroup):
    """`reprokit study FILE` means `reprokit study run FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the subcommand "run" where a file stands in its place."""
        first = next((word for word in args if not word.startswith("-")), None)
        is_file = first is not None and first not in self.commands and ("." in first or os.path.exists(first))
        if is_file and not ({"-h", "--help"} & set(args[: args.index(str(first))])):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=StudyCommands)
def command() -> None:
    """Run setups of a training many times, and say what varies, where that comes from, and what it costs.

    'reprokit study STUDY.toml' is short for 'reprokit study run STUDY.toml'.
    """


class StudyRequest(msgspec.Struct, frozen=True):
    """The arguments of a study command."""

    file: Path
    output: Path | None
    runs: int | None
    parallel: int | None
    engine: str | None
    declared: IgnoreRequest

    def study_file(self) -> tuple[LocatedStudy, Path]:
        """Return the study, and its directory."""
        from reprokit.run.platform_support import require_supported

        require_supported()
        from reprokit.study import description, runner

        rules = self.declared.ignores()
        located = description.read(self.file, runs=self.runs, parallel=self.parallel, engine=self.engine, ignores=rules)
        return located, runner.place_for(located.study.name, self.output)

    @property
    def words(self) -> list[str]:
        """Return the arguments as they were given."""
        asked = {"-o": self.output, "--runs": self.runs, "--parallel": self.parallel, "--engine": self.engine}
        options = [word for name, value in asked.items() if value for word in (name, str(value))]
        return [str(self.file), *options, *self.declared.words]


def of_study(function: Callable[..., None]) -> Callable[..., None]:
    """Take a study file and the options that go with it."""
    function = options.gathered("asked", StudyRequest)(function)

    for option in (
        ignores.options,
        click.option("--engine", type=click.Choice(ENGINES), help="What makes the pairs, instead of the file's kind."),
        options.number("--parallel", "N pairs at a time; times are not comparable then."),
        options.number("--runs", "N runs of each setup, instead of the file's number."),
        options.output(
            "DIR",
            "Directory of the study [default: .reprokit/studies/NAME]. If it holds this very study, resume it.",
        ),
        click.argument("file", metavar="STUDY.toml", type=options.PATH),
    ):
        function = option(function)
    return function


@command.command(
    short_help="Make the runs of a study, or those that it lacks.",
    epilog="Example: reprokit study run study.toml --parallel 2",
)
@of_study
@options.flag("--stop-on-failure", "Stop at the first run that fails.")
@click.pass_context
def run(context: click.Context, asked: StudyRequest, stop_on_failure: bool) -> None:
    """Make the runs of STUDY.toml, or those that an interrupted study still lacks.

    Each setup makes pairs of runs, in rounds, so that a machine that drifts favors none. A run that fails
    is shown and never made again. At the end a page is left in DIR, study.html. Exits with 0 if all runs
    finished, 1 if any failed, 2 if the study is none or cannot go on.
    """
    from reprokit.core.messages import say, warn
    from reprokit.study import page, runner

    study_file, directory = asked.study_file()
    again = runner.how_to_go_on(["study", "run", *asked.words])
    if missing := page.missing():  # now, as the runs may take days
        text = f"no page will be written without {' and '.join(missing)}: pip install {' '.join(missing)}"
        warn(text, "no-page")
    with interruptible(f"finished runs are kept, resume with: {again}"):
        done = runner.run(study_file, directory, asked.file, stop_on_failure=stop_on_failure)
    if done.stopped:
        say(f"stopped at a failure, {done.made} of {done.total} runs are made; resume with: {again}")
    else:
        failed = f", {done.failed} of them failed" if done.failed else ""
        say(f"{done.made} runs are made{failed}; see the results: reprokit study show {directory}")
        leave_page(directory)
    context.exit(EXIT_DIFFERENT if done.failed else EXIT_IDENTICAL)


@command.command(
    short_help="Print what a study lacks as tasks for a scheduler.",
    epilog="Example: reprokit study tasks study.toml > tasks.jsonl",
)
@of_study
def tasks(asked: StudyRequest) -> None:
    """Print what STUDY.toml still lacks as tasks for any scheduler: a line of JSON for each pair of runs.

    Each line has the command that makes its pair, on any machine that reaches the study's directory. It may be run
    again whenever it was interrupted: what was made is not made again. 'reprokit study collect DIR' gathers what was
    done.
    """
    from reprokit.study import runner

    study_file, directory = asked.study_file()
    for task in runner.tasks(study_file, directory, asked.file):
        click.echo(msgspec.json.encode(task))


@command.command(
    short_help="Gather what was done so far of a study's tasks.",
    epilog="Example: reprokit study collect .reprokit/studies/mine",
)
@click.argument("directory", metavar="DIR", type=options.PATH)
@options.flag("--over", "Assume that nothing is running any more: count unfinished runs as lost.")
@click.pass_context
def collect(context: click.Context, directory: Path, over: bool) -> None:
    """Gather what was done so far of the tasks of the study in DIR.

    It may be asked for any number of times. Exits with 0 if all runs are there and finished, 1 if any is not
    there or failed, 2 if the study cannot be read.
    """
    from reprokit.core.messages import say
    from reprokit.study import runner

    done, out = runner.collect(directory, is_over=over)
    failed = f", {done.failed} of them failed" if done.failed else ""
    counts = {"at work": out.at_work, "interrupted": out.interrupted, "not begun": out.not_begun}
    more = f"; pairs {', '.join(f'{words}: {n}' for words, n in counts.items())}" if any(counts.values()) else ""
    say(f"{done.made} of {done.total} runs are made{failed}{more}")
    if done.made == done.total:
        leave_page(directory)
    context.exit(EXIT_DIFFERENT if done.failed or done.made < done.total else EXIT_IDENTICAL)


def leave_page(directory: Path) -> None:
    """Write the page beside the results if its packages are installed; a failure does not end the study."""
    from reprokit.core.messages import say
    from reprokit.study import page
    from reprokit.study.analysis import analyze

    path = directory / page.NAME
    try:
        page.write(analyze(directory), path, mode=0o600)  # as all that a study keeps
    except ReprokitError as error:
        say(f"no page is left in {directory}: {error}")
    else:
        say(f"its page: {path}")


@command.command(
    cls=options.CommandBehindDashes,
    context_settings={"allow_interspersed_args": False},
    epilog="Example: reprokit study init -- python train.py",
)
@options.output("FILE", "File to write [default: study.toml].")
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default="plain",
    show_default=True,
    help="plain: six setups for any training; cpu and gpu: the paper's C1 to C6 and G1 to G10.",
)
@click.pass_context
def init(context: click.Context, output: Path | None, template: str) -> None:
    """Write a study of COMMAND, to be looked through and run.

    No file is overwritten.
    """
    from reprokit.study import description

    if not context.obj:
        raise NoCommand("no command to study; put it behind --: reprokit study init -- python train.py")
    path = output or Path("study.toml")
    try:
        with open(path, "x", encoding="utf-8", opener=_new_file) as file:
            file.write(description.from_template(template, context.obj))
    except FileExistsError:
        raise CannotWriteReport(f"{path} exists already; choose another file with -o") from None
    except OSError as error:
        raise CannotWriteReport(f"{path}: {error.strerror}") from None
    click.echo(f"{path} written: check it, then run it: reprokit study {path}")


def _new_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


@command.command(
    short_help="Say what varied, why, and what determinism cost.",
    epilog="Example: reprokit study show .reprokit/studies/mine --html page.html",
)
@click.argument("directory", metavar="DIR", type=options.PATH)
@options.json_option()
@options.flag("--csv", "Print every figure as CSV, a line each.", "as_csv")
@options.path_option("--html", "FILE", "Write a self-contained page with plots.")
def show(directory: Path, as_json: bool, as_csv: bool, html: Path | None) -> None:
    """Say what came of the study in DIR: what varied, where that came from, and what determinism cost."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are two formats: choose one")
    from reprokit.study import page
    from reprokit.study.analysis import analyze
    from reprokit.study.tables import csv_text, print_analysis

    analysis = analyze(directory)
    if html is not None:
        page.write(analysis, html)
    if as_json:
        print_json(msgspec.to_builtins(analysis))
    elif as_csv:
        click.echo(csv_text(analysis), nl=False)
    elif html is None:
        print_analysis(analysis)
