"""``reprokit show``: what a run is and what is in it, on one screen."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import present
from reprokit.core.errors import NotProfiled, UsageError
from reprokit.run_files.home import LAST


@click.command(epilog="Example: reprokit show last --entropy")
@click.argument("run", type=options.RUN, default=LAST)
@flag("--entropy", "Show who asked for how much entropy instead.", "who_asked")
@flag("--findings", "Show what 'reprokit profile' or rules found instead.", "what_varies")
@flag("--tensors", "Show the tensors that were saved instead.", "tensors")
@flag("--stdout", "Print what the run's processes printed instead.", "stdout")
@flag("--stderr", "Likewise, what they printed to stderr.", "stderr")
@options.json_option("Print everything as one JSON document.")
@options.REVEAL
def command(
    run: Path, who_asked: bool, what_varies: bool, tensors: bool, stdout: bool, stderr: bool, as_json: bool
) -> None:
    """Show what RUN is and what is in it.

    RUN is a path or a name [default: last]. The first line says how the run ended, or that it is in progress
    or did not come to its end. Then what was run, where, its entropy, metrics, weights and outputs,
    warnings, and what the record does not cover. Nothing found in RUN is executed.

    With --entropy: every library and call site that asked for entropy, by which source, in which threads
    and processes, how often and for how many bytes; of a replay, what was not answered exactly.

    With --findings: what in a run of 'reprokit profile' keeps runs from being the same, and alarms of rules.

    With --tensors: each saved tensor, its steps and shape, and its mean over the steps.

    With --stdout or --stderr: what the processes printed there, each by itself; what a terminal would act upon is
    spelled out.
    """
    if who_asked + what_varies + tensors + stdout + stderr > 1:
        raise UsageError("--entropy, --findings, --tensors, --stdout and --stderr show different things: choose one")
    if stdout or stderr:
        from reprokit.verify.show import console_text

        present(
            console_text.printed_text(run, int(stderr)),
            as_json=as_json,
            document=console_text.document,
            text=console_text.print_text,
        )
    elif tensors:
        from reprokit.saved_tensors import summary as saved
        from reprokit.saved_tensors.trial import TensorTrial

        present(TensorTrial(run), as_json=as_json, document=saved.document, text=saved.print_tensors)
    elif what_varies:
        _show_findings(run, as_json)
    elif who_asked:
        from reprokit.verify.show.entropy_requests import document, print_report, report

        present(report(run), as_json=as_json, document=document, text=print_report)
    else:
        from reprokit.verify.show import overview, summary

        summarized = summary.summarize(run)
        present(summarized, as_json=as_json, document=summary.document, text=overview.print_summary)


def _show_findings(run: Path, as_json: bool) -> None:
    """Print the findings made at the end of the run; after a launcher's death, diagnose the run now."""
    from reprokit import profiling
    from reprokit.cli.profile import show
    from reprokit.run_files import findings
    from reprokit.run_files.rundir import RunDirectory

    directory = RunDirectory(run)
    profiled = findings.read(directory)
    if directory.run.profiling is None and profiled is None:
        raise NotProfiled(
            f"{run} was not profiled, nor judged by rules; 'reprokit profile -- COMMAND' makes such a run"
        )
    if profiled is None:
        directory.require_finished()
        profiled = profiling.analyze(directory)
    show(directory.path, profiled, as_json=as_json)
