"""``reprokit ledger``: which samples was each step made of, and what did epochs leave out or give twice?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import ending_with, present
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, CannotWriteReport, UsageError


@click.command(epilog="Example: reprokit ledger last --step 10")
@click.argument("run", type=options.RUN)
@click.argument("resumed", type=options.RUN, nargs=-1)
@options.number("--step", "Show the samples of step N instead, of each optimizer.", least=0)
@click.option("--sample", metavar="ID", help="Show the steps that had this sample instead.")
@options.path_option("--export", "FILE", "Write a line for each sample to a .csv or .jsonl file instead.", "target")
@options.json_option()
def command(
    run: Path,
    resumed: tuple[Path, ...],
    step: int | None,
    sample: str | None,
    target: Path | None,
    as_json: bool,
) -> None:
    """Say which samples each optimizer step of RUN was made of.

    Prints for each epoch of each data loader whether it gave every sample once. RESUMED are runs that went on
    with the training where RUN was interrupted: an epoch that one began and the next finished is one epoch.
    Exits with 1 if samples came twice or never, though each was to come once.

    ID is the sample's index in its data set, or the name or digest that --step shows.
    """
    from reprokit.run_files.rundir import RunDirectory
    from reprokit.verify.show import sample_ledger

    if sum(asked is not None for asked in (step, sample, target)) > 1:
        raise UsageError("--step, --sample and --export show different things: choose one")
    if resumed and (step, sample, target) != (None, None, None):
        raise UsageError("--step, --sample and --export are about one run: name only that")
    runs = [RunDirectory(path) for path in (run, *resumed)]
    for directory in runs:
        directory.require_finished()
    if target is not None:
        _export(runs[0], target)
    elif step is not None:
        answer = sample_ledger.of_step(runs[0], step)
        present(answer, as_json=as_json, document=sample_ledger.document, text=sample_ledger.print_step)
    elif sample is not None:
        answer = sample_ledger.of_sample(runs[0], sample)
        present(answer, as_json=as_json, document=sample_ledger.document, text=sample_ledger.print_sample)
    else:
        overview = sample_ledger.overview(runs)
        with ending_with(EXIT_DIFFERENT if overview.findings else EXIT_IDENTICAL):
            shown, words = sample_ledger.overview_document, sample_ledger.print_overview
            present(overview, as_json=as_json, document=shown, text=words)


def _export(run: object, target: Path) -> None:
    """Write the file whole or not at all."""
    from reprokit.verify.show.sample_ledger import write

    if target.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"--export {target}: name a file that ends in .csv or .jsonl")
    partial = target.with_name(target.name + ".partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            count = write(run, file, as_csv=target.suffix == ".csv")  # type: ignore[arg-type]
        os.replace(partial, target)
    except OSError as error:
        raise CannotWriteReport(f"{target}: {error.strerror}; choose another place") from None
    finally:
        partial.unlink(missing_ok=True)
    click.echo(f"{target}: {count} samples")
