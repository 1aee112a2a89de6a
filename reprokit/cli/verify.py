"""``reprokit verify``: do two runs agree, bit for bit, and if not, where do they part?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from reprokit.cli import options, tolerances
from reprokit.cli.output import present, print_json, say_next
from reprokit.difference import Verdict
from reprokit.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, EXIT_NOT_COMPARED, NothingComparable
from reprokit.launch.rundirectory import shown
from reprokit.run_home import keep_verdict, last_replay, newest_replay, pair_of
from reprokit.rundir import RunDirectory
from reprokit.tolerance import QUANTITIES, Tolerances

if TYPE_CHECKING:
    from reprokit.verify.compare.ranks import RankAgreement


EXIT_STATUS = {
    Verdict.IDENTICAL: EXIT_IDENTICAL,
    Verdict.TOLERATED: EXIT_IDENTICAL,
    Verdict.DIFFERENT: EXIT_DIFFERENT,
    Verdict.NOT_COMPARED: EXIT_NOT_COMPARED,
}


@click.command(epilog="Example: reprokit verify last")
@click.argument("run1", type=options.RUN, required=False)
@click.argument("run2", type=options.RUN, required=False)
@options.flag("--all", "Show everything that was compared, tensor by tensor.", "every_leaf")
@options.json_option("Print the comparison as one JSON document.")
@options.ADVISING
@options.REVEAL
@tolerances.options(QUANTITIES)
@click.pass_context
def command(
    context: click.Context, run1: Path | None, run2: Path | None, every_leaf: bool, as_json: bool, accepted: Tolerances
) -> None:
    """Compare the runs RUN1 and RUN2: metrics, weights and outputs, bit for bit.

    RUN1 and RUN2 are paths or names, such as 'last' (see 'reprokit ls'). RUN1 alone is compared with its
    recording, or with its newest replay if it is a recording. Without both, the newest replay is compared
    with its recording. RUN may also hold the runs of several hosts, as RUN/hosts/NAME. Where there is nothing
    to compare RUN1 with, its ranks are compared with each other: whether their parameters are equal.

    Prints the verdict, then every category in causal order with the first difference in it. Times are shown
    and never compared. Exits with 0 if the runs are identical, 1 if they differ, 2 if they cannot be
    compared, 3 if nothing differs but a file that changed could not be compared; with a tolerance also with 0
    if they are within it, and says so. A QUANTITY is one of loss, metrics, trail, weights, predictions,
    scores, outputs.
    """
    from reprokit.verify.compare import hosts
    from reprokit.verify.compare.runs import compare, require_whole
    from reprokit.verify.show.comparison import document, print_comparison

    if run1 and run2 and all(map(hosts.parts, (run1, run2))):
        context.exit(_of_hosts(run1, run2, every_leaf=every_leaf, as_json=as_json, accepted=accepted))
    if run1 and not run2 and (agreements := _of_ranks(run1)):
        context.exit(_show_ranks(run1, agreements, as_json=as_json))
    pair = (run1, run2) if run1 and run2 else pair_of(RunDirectory(run1) if run1 else last_replay())
    for path in pair:
        require_whole(path)
    comparison = compare(*pair, tolerances=accepted)
    keep_verdict(comparison.left, comparison.right, comparison.verdict.value)
    text = partial(print_comparison, every_leaf=every_leaf)
    present(comparison, as_json=as_json, document=document, text=text)
    if comparison.verdict.differs:
        from reprokit.questions.locate import is_locatable

        if not as_json and is_locatable(comparison.left, comparison.right):
            say_next("reprokit", "locate", *map(shown, pair))
        else:
            say_next("reprokit", "profile", "--", *comparison.left.run.command)
    else:
        say_next("reprokit", "report", *map(shown, pair), "-o", "report.html")
    context.exit(EXIT_STATUS[comparison.verdict])


def _of_hosts(left: Path, right: Path, *, every_leaf: bool, as_json: bool, accepted: Tolerances) -> int:
    """Compare two runs of several hosts; return the exit status."""
    from reprokit.verify.compare import hosts
    from reprokit.verify.compare.runs import require_whole
    from reprokit.verify.show.hosts import document_of_hosts, print_hosts

    for run in (left, right):
        for path in hosts.parts(run).values():
            require_whole(path)
    compared = hosts.compare(left, right, tolerances=accepted)
    for comparison in compared.hosts.values():
        keep_verdict(comparison.left, comparison.right, comparison.verdict.value)
    present(compared, as_json=as_json, document=document_of_hosts, text=partial(print_hosts, every_leaf=every_leaf))
    return EXIT_STATUS[compared.verdict]


def _of_ranks(run: Path) -> list[RankAgreement]:
    """Return how the ranks of a recording agree, of which no replay is here."""
    from reprokit.verify.compare import hosts, ranks

    named = {name: RunDirectory(path) for name, path in hosts.parts(run).items()}
    directory = next(iter(named.values()), None) or RunDirectory(run)
    if not named and (directory.run.replay_of is not None or newest_replay(directory) is not None):
        return []
    return ranks.agreements(directory, named or None)


def _show_ranks(run: Path, agreements: list[RankAgreement], *, as_json: bool) -> int:
    """Print how ranks agree; return the exit status."""
    states = {agreement.state.value for agreement in agreements}
    if states.isdisjoint(["equal", "parted"]):
        raise NothingComparable(f"no replay of {run} is here, and {agreements[0].words}")
    document = {
        "run": str(run),
        "ranks": [{**to_builtins(agreement), "words": agreement.words} for agreement in agreements],
    }
    if as_json:
        print_json(document)
    for agreement in () if as_json else agreements:
        click.echo(f"{agreement.state.value}: {agreement.words}")
    return EXIT_DIFFERENT if "parted" in states else EXIT_IDENTICAL
