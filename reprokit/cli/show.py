"""``reprokit show``: what a run is and what is in it, on one screen."""

from __future__ import annotations

import json

import click

from reprokit.cli.paths import run_path


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def command(run: str, as_json: bool) -> None:
    """Show what RUN is and what is in it.

    RUN is a run directory, or 'last'. The first line says how the run ended, or that it is in progress
    or did not come to its end. Then what was run, where, its entropy, metrics, weights and outputs,
    warnings, and what the record does not cover. Nothing found in RUN is executed.
    """
    from reprokit.verify.summary import document, summarise

    summary = summarise(run_path(run))
    if as_json:
        click.echo(json.dumps(document(summary), indent=2))
    else:
        from reprokit.verify.overview import print_summary

        print_summary(summary)
