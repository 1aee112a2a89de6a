"""``reprokit show``: what a run is and what is in it, on one screen."""

from __future__ import annotations

import click

from reprokit.cli.paths import run_path
from reprokit.cli.secrets import REVEAL, print_json
from reprokit.errors import NotProfiled, UsageError


@click.command()
@click.argument("run")
@click.option("--entropy", "who_asked", is_flag=True, help="Show who asked for how much entropy instead.")
@click.option("--findings", "what_varies", is_flag=True, help="Show what 'reprokit profile' found instead.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
@REVEAL
def command(run: str, who_asked: bool, what_varies: bool, as_json: bool) -> None:
    """Show what RUN is and what is in it.

    RUN is a run directory, or 'last'. The first line says how the run ended, or that it is in progress
    or did not come to its end. Then what was run, where, its entropy, metrics, weights and outputs,
    warnings, and what the record does not cover. Nothing found in RUN is executed.

    With --entropy: every library and call site that asked for entropy, by which source, in which threads
    and processes, how often and for how many bytes; of a replay, what was not answered exactly.

    With --findings: what in a run of 'reprokit profile' keeps runs from being the same.
    """
    if who_asked and what_varies:
        raise UsageError("--entropy and --findings show different things: choose one")
    if what_varies:
        _show_findings(run, as_json)
        return
    if who_asked:
        _show_askers(run, as_json)
        return
    from reprokit.verify.show.summary import document, summarise

    summary = summarise(run_path(run))
    if as_json:
        print_json(document(summary))
    else:
        from reprokit.verify.show.overview import print_summary

        print_summary(summary)


def _show_findings(run: str, as_json: bool) -> None:
    """What was found at the end of the run; of one whose launcher died, what can be found in it now."""
    from reprokit import findings, profiling
    from reprokit.cli.profile import show
    from reprokit.rundir import RunDirectory

    directory = RunDirectory(run_path(run))
    if directory.run.profiling is None:
        raise NotProfiled(f"{run} was not profiled; 'reprokit profile -- COMMAND' makes a run that is")
    found = findings.read(directory)
    if found is None:
        directory.require_finished()
        found = profiling.analyse(directory)
    show(directory.path, found, as_json=as_json)


def _show_askers(run: str, as_json: bool) -> None:
    from reprokit.verify.show import entropy_requests

    found = entropy_requests.report(run_path(run))
    if as_json:
        print_json(entropy_requests.document(found))
    else:
        entropy_requests.print_report(found)
