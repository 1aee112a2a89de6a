"""``reprokit verify``: do two runs agree, bit for bit, and if not, where do they part?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from reprokit.cli import ignores, next_steps, options, tolerances
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.output import ending_with, present, print_json, say_next, says_next
from reprokit.core.difference import Verdict
from reprokit.core.errors import EXIT_DIFFERENT, EXIT_IDENTICAL, EXIT_NOT_COMPARED, NothingComparable, UsageError
from reprokit.core.printable import printable
from reprokit.core.tolerance import QUANTITIES, Tolerances
from reprokit.run.rundirectory import shown
from reprokit.run_files import home as run_home
from reprokit.run_files.home import keep_verdict, last_replay, newest_replay, pair_of
from reprokit.run_files.rundir import RunDirectory

if TYPE_CHECKING:
    from reprokit.verify.categories.ranks import DeadRank, RankAgreement
    from reprokit.verify.comparison import Comparison, HostsComparison
    from reprokit.verify.ignores import Ignores


EXIT_STATUS = {
    Verdict.IDENTICAL: EXIT_IDENTICAL,
    Verdict.TOLERATED: EXIT_IDENTICAL,
    Verdict.DIFFERENT: EXIT_DIFFERENT,
    Verdict.NOT_COMPARED: EXIT_NOT_COMPARED,
}
WORST_LAST = (Verdict.IDENTICAL, Verdict.TOLERATED, Verdict.NOT_COMPARED, Verdict.DIFFERENT)


@click.command(epilog="Example: reprokit verify last")
@click.argument("run1", type=options.RUN, required=False)
@click.argument("run2", type=options.RUN, required=False)
@click.argument("more", type=options.RUN, nargs=-1, metavar="[RUN...]")
@options.flag(
    "--ranks", "Compare the ranks of RUN1 with each other instead, whether or not a replay is here.", "of_ranks"
)
@options.flag("--all", "Show everything that was compared, tensor by tensor.", "every_leaf")
@options.flag("--strict-console", "Compare printed lines as they are: times, ids, blank lines, progress bars.")
@options.json_option("Print the comparison as one JSON document.")
@options.ADVISING
@options.REVEAL
@tolerances.options(QUANTITIES)
@ignores.options
@click.option(
    "--suggest-ignores",
    "suggested",
    nargs=3,
    type=options.RUN,
    metavar="A B C",
    help="Propose what to declare, as lines for the configuration: what differs among three runs whose trainings are"
    " equal. Nothing is proposed for weights and results.",
)
def command(
    run1: Path | None,
    run2: Path | None,
    more: tuple[Path, ...],
    of_ranks: bool,
    every_leaf: bool,
    strict_console: bool,
    as_json: bool,
    accepted: Tolerances,
    declared: IgnoreRequest,
    suggested: tuple[Path, Path, Path] | None,
) -> None:
    """Compare the runs RUN1 and RUN2: metrics, weights and outputs, bit for bit.

    RUN1 and RUN2 are paths or names, such as 'last' (see 'reprokit ls'). RUN1 alone is compared with its
    recording, or with its newest replay if it is a recording. Without both, the newest replay is compared
    with its recording. Further runs are each compared with RUN1 too, in a table. RUN may also hold the runs
    of several hosts, as RUN/hosts/NAME. Where there is nothing to compare RUN1 with, its ranks are compared
    with each other: whether their parameters are equal.

    Prints the verdict, then every category in causal order with the first difference in it. Times are shown
    and never compared. Exits with 0 if the runs are identical, 1 if they differ, 2 if they cannot be
    compared, 3 if nothing differs but a file that changed could not be compared; with a tolerance also with 0
    if they are within it, and says so. A QUANTITY is one of loss, metrics, trail, weights, predictions,
    scores, outputs.
    """
    from reprokit.verify.comparison import HostsComparison
    from reprokit.verify.show.comparison import document, document_of_hosts, print_comparison, print_hosts

    rules = declared.ignores()
    if suggested is not None:
        if run1 is not None or of_ranks or accepted or strict_console:
            raise UsageError("--suggest-ignores takes three runs, and goes with --json and options of ignores alone")
        _suggest(suggested, rules, as_json=as_json)
        return
    if more and run1 and run2:
        if of_ranks or every_leaf:
            raise UsageError("more than two runs are shown in a table: --all and --ranks are for two")
        _show_several((run1, run2, *more), accepted, rules, strict_console=strict_console, as_json=as_json)
        return
    if of_ranks:
        if run2 or every_leaf or accepted or strict_console:
            raise UsageError("--ranks compares the ranks of one run: give no other run, no --all and no tolerance")
        run = run1 or run_home.resolve(run_home.LAST)
        _show_ranks(run, _agreements(run), "", as_json=as_json)
        return
    if run1 and not run2 and not _has_partner(run1) and (agreements := _agreements(run1)):
        _show_ranks(run1, agreements, f"no replay of {run1} is here, and ", as_json=as_json)
        return
    comparison = compared(run1, run2, accepted, rules, strict_console=strict_console)
    with ending_with(EXIT_STATUS[comparison.verdict]):
        if isinstance(comparison, HostsComparison):
            hosts_text = partial(print_hosts, every_leaf=every_leaf)
            present(comparison, as_json=as_json, document=document_of_hosts, text=hosts_text)
            return
        text = partial(print_comparison, every_leaf=every_leaf)
        present(comparison, as_json=as_json, document=document, text=text)
        if says_next():
            pair = comparison.left.path, comparison.right.path
            say_next(*next_steps.words(comparison, list(map(shown, pair))))


def compared(
    run1: Path | None, run2: Path | None, accepted: Tolerances, rules: Ignores, *, strict_console: bool
) -> Comparison | HostsComparison:
    """Compare two runs, which may be of several hosts each, and keep the verdict; a missing one is chosen."""
    from reprokit.verify import hosts
    from reprokit.verify.runs import compare, require_whole

    if run1 and run2 and all(map(hosts.parts, (run1, run2))):
        for path in (path for run in (run1, run2) for path in hosts.parts(run).values()):
            require_whole(path)
        of_hosts = hosts.compare(run1, run2, tolerances=accepted, ignores=rules, strict_console=strict_console)
        for comparison in of_hosts.hosts.values():
            keep_verdict(comparison.left, comparison.right, comparison.verdict.value)
        return of_hosts
    pair = (run1, run2) if run1 and run2 else pair_of(RunDirectory(run1) if run1 else last_replay())
    for path in pair:
        require_whole(path)
    comparison = compare(*pair, tolerances=accepted, ignores=rules, strict_console=strict_console)
    keep_verdict(comparison.left, comparison.right, comparison.verdict.value)
    return comparison


def _show_several(
    runs: Sequence[Path], accepted: Tolerances, rules: Ignores, *, strict_console: bool, as_json: bool
) -> None:
    """Compare each further run with the first, a line each; the exit status is the worst."""
    from reprokit.core.screen import Cells, print_rows
    from reprokit.verify.comparison import Comparison, HostsComparison
    from reprokit.verify.show.comparison import STYLES, document, document_of_hosts
    from reprokit.verify.verdict import hosts_line, several_line, verdict_line

    results = [compared(runs[0], run, accepted, rules, strict_console=strict_console) for run in runs[1:]]
    verdicts = [result.verdict for result in results]
    worst = max(verdicts, key=WORST_LAST.index)
    with ending_with(EXIT_STATUS[worst]):
        if as_json:
            is_hosts = [(result, isinstance(result, HostsComparison)) for result in results]
            documents = [document_of_hosts(one) if hosts else document(one) for one, hosts in is_hosts]  # type: ignore[arg-type]
            print_json({"format": 1, "verdict": worst.value, "comparisons": documents})
            return
        lines = [hosts_line(one) if isinstance(one, HostsComparison) else verdict_line(one) for one in results]
        rows = [
            Cells((str(run), verdict.value, line.partition(": ")[2]), STYLES[verdict])
            for run, verdict, line in zip(runs[1:], verdicts, lines, strict=True)
        ]
        itself = sum(1 for one in results if isinstance(one, Comparison) and one.shared is not None)
        notes = dict.fromkeys(f"note: {note}" for one in results for note in one.notes)
        print_rows(several_line(runs[0], verdicts, itself), rows, list(notes), STYLES[worst])


def _suggest(runs: tuple[Path, Path, Path], rules: Ignores, *, as_json: bool) -> None:
    """Propose what to declare; the exit status is 0 if the runs are identical with it."""
    from reprokit.verify.comparison import Comparison
    from reprokit.verify.runs import require_whole
    from reprokit.verify.show.suggestions import document, print_suggestions
    from reprokit.verify.suggestions import suggest
    from reprokit.verify.verdict import verdict_line

    for path in runs:
        require_whole(path)
    found = suggest(runs, rules)
    if isinstance(found, Comparison):
        words = f"{found.left.path} and {found.right.path} differ in more than files and lines"
        raise NothingComparable(f"nothing is proposed, as {words}: {verdict_line(found)}")
    with ending_with(EXIT_IDENTICAL if found.suffices else EXIT_DIFFERENT):
        present(found, as_json=as_json, document=document, text=print_suggestions)


def _has_partner(run: Path) -> bool:
    """Return whether a run alone is compared with its recording, or with a replay."""
    from reprokit.verify import hosts

    if hosts.parts(run):
        return False
    directory = RunDirectory(run)
    return directory.run.replay_of is not None or newest_replay(directory) is not None


def _agreements(run: Path) -> list[RankAgreement]:
    """Return how the ranks of a run agree, which may be of several hosts."""
    from reprokit.verify import hosts
    from reprokit.verify.categories import ranks

    named = {name: RunDirectory(path) for name, path in hosts.parts(run).items()}
    return ranks.agreements(next(iter(named.values()), None) or RunDirectory(run), named or None)


def _dead_ranks(run: Path) -> list[DeadRank]:
    """Return the ranks of a run that died, which may be of several hosts."""
    from reprokit.verify import hosts
    from reprokit.verify.categories import ranks
    from reprokit.verify.read.normalization import Normalizations
    from reprokit.verify.read.scan import scan

    directories = map(RunDirectory, hosts.parts(run).values() or [run])
    return [rank for part in directories for rank in ranks.dead_ranks(part, scan(part, Normalizations()))]


def _show_ranks(run: Path, agreements: list[RankAgreement], reason: str, *, as_json: bool) -> None:
    """Print which ranks died and how the others agree; reason: why they were asked."""
    from reprokit.verify import hosts
    from reprokit.verify.categories.ranks import NO_RANKS

    dead = _dead_ranks(run)
    states = {agreement.state.value for agreement in agreements}
    if not dead and states.isdisjoint(["equal", "parted"]):
        raise NothingComparable(f"{reason or f'{run}: '}{agreements[0].words if agreements else NO_RANKS}")
    document = {
        "run": str(run),
        "dead": [{**to_builtins(rank), "words": rank.words} for rank in dead],
        "ranks": [{**to_builtins(agreement), "words": agreement.words} for agreement in agreements],
    }
    with ending_with(EXIT_DIFFERENT if dead or "parted" in states else EXIT_IDENTICAL):
        if as_json:
            print_json(document)
        for rank in () if as_json else dead:
            click.echo(printable(f"dead: {rank.words}"))
        for agreement in () if as_json else agreements:
            click.echo(printable(f"{agreement.state.value}: {agreement.words}"))
        steps = next((agreement.steps_to_ask for agreement in agreements if agreement.steps_to_ask), "")
        if steps and not hosts.parts(run):
            say_next("reprokit", "rules", shown(run), "--rule", "RankWeightsDiverge", "--steps", steps)
