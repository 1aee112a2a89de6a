"""``reprokit verify``: do two runs agree, bit for bit, and if not, where do they part?"""

from __future__ import annotations

import click

from reprokit.cli import tolerances
from reprokit.cli.paths import run_path
from reprokit.cli.secrets import REVEAL, print_json
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL
from reprokit.tolerance import QUANTITIES, Tolerances


@click.command()
@click.argument("run1")
@click.argument("run2")
@click.option("--all", "every_leaf", is_flag=True, help="Show everything that was compared, tensor by tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON document.")
@REVEAL
@tolerances.options(QUANTITIES)
@click.pass_context
def command(
    context: click.Context,
    run1: str,
    run2: str,
    every_leaf: bool,
    as_json: bool,
    accepted: Tolerances,
) -> None:
    """Compare the runs RUN1 and RUN2: metrics, weights and outputs, bit for bit.

    RUN1 and RUN2 are run directories, or 'last'. Prints the verdict, then every category in causal order
    with the first difference in it. Times are shown and never compared. Exits with 0 if the runs are
    identical, 1 if they differ, 2 if they cannot be compared; with a tolerance also with 0 if they are
    within it, and says so. A QUANTITY is one of loss, metrics, trail, weights, predictions, scores, outputs.
    """
    from reprokit.verify.compare.runs import compare, require_whole

    paths = run_path(run1), run_path(run2)
    for path in paths:
        require_whole(path)
    comparison = compare(*paths, tolerances=accepted)
    if as_json:
        from reprokit.verify.show.comparison import document

        print_json(document(comparison))
    else:
        from reprokit.verify.show.comparison import print_comparison

        print_comparison(comparison, every_leaf=every_leaf)
    context.exit(EXIT_DIFFERENT if comparison.verdict.differs else EXIT_IDENTICAL)
