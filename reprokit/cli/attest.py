"""``reprokit attest verify``: does a signed statement hold, what does it say, and are these its artifacts?"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.groups import CommandGroup
from reprokit.cli.output import ending_with
from reprokit.core.errors import EXIT_IDENTICAL, UsageError
from reprokit.core.printable import printable
from reprokit.core.redaction import Secrets
from reprokit.evidence.attest.policy import CheckedArtifacts, Policy, check, check_materials
from reprokit.evidence.attest.statement import PREDICATES

if TYPE_CHECKING:
    from reprokit.evidence.attest.envelope import Signed

VERDICTS = ("identical", "tolerated", "different", "failed")
LONGEST = 4000  # characters of a line


@click.group(cls=CommandGroup)
def command() -> None:
    """Work with signed statements."""


def _predicate(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """Return the type that was asked for, whose short name will do."""
    if name is None or name in PREDICATES.values():
        return name
    if name not in PREDICATES:
        raise UsageError(f"--predicate {name}: there are {', '.join(PREDICATES)}")
    return PREDICATES[name]


def _command(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    try:
        return None if text is None else tuple(Secrets().value(shlex.split(text)))  # as statements hold it
    except ValueError as error:
        raise UsageError(f"--command {text}: {error}") from None


def _commit(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{7,64}", text):
        raise UsageError(f"--commit {text}: give 7 to 64 hexadecimal digits of the commit")
    return None if text is None else text.lower()


def _required(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    from reprokit.verify.facts import BY_NAME

    names = () if text is None else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"--require {name}: there are {', '.join(BY_NAME)}")
    return names


@command.command(
    short_help="Verify a signed statement, and its artifacts.",
    epilog="Example: reprokit attest verify train.json model.pt --key signing.key.pub",
)
@click.argument("envelope", type=options.PATH)
@click.argument("artifacts", nargs=-1, type=options.PATH)
@click.option("--key", metavar="PUBLIC", required=True, type=options.PATH, help="The signer's public key.")
@click.option("--verdict", type=click.Choice(VERDICTS), help="Require this verdict.")
@click.option(
    "--predicate",
    metavar="TYPE",
    callback=_predicate,
    help="Require this type: test-result or bitwise-rerun.",
)
@click.option(
    "--command",
    metavar="TEXT",
    callback=_command,
    help="Require that both runs executed this command line.",
)
@click.option(
    "--max-age",
    metavar="AGE",
    type=options.Age(),
    help="Require that statement and re-run are at most as old: 90m, 12h, 7d, 2w.",
)
@click.option(
    "--commit",
    metavar="COMMIT",
    callback=_commit,
    help="Require this commit of both runs, and that all code that they were seen to use has its bytes.",
)
@click.option(
    "--require",
    "required",
    metavar="KINDS",
    callback=_required,
    help="Require that these were recorded and compared, with commas between them: trail,console.",
)
@click.option(
    "--material",
    "materials",
    metavar="FILE",
    type=options.PATH,
    multiple=True,
    help="Require that FILE is code or data of the first run, by its digest; may be given several times.",
)
@options.flag("--executed", "Require that the signer executed both runs (gate --sign).")
@options.flag("--allow-ignored", "Let --verdict identical hold where the signer declared that something may differ.")
@options.flag("--partial", "Allow artifacts of the statement to be missing.")
@options.json_option("Print the statement, and what was checked, as JSON.")
@options.gathered("asked", Policy)
def verify(
    envelope: Path,
    artifacts: tuple[Path, ...],
    key: Path,
    materials: tuple[Path, ...],
    asked: Policy,
    partial: bool,
    as_json: bool,
) -> None:
    """Check the signature of ENVELOPE by a public key, and ARTIFACTS, which are files or directories of them.

    Needs nothing else: no run directory and no network. Exits with 0 if the signature holds, every artifact is
    the one that was signed and the statement says what was asked for; 1 if artifacts are missing or others, or
    the statement is another tool's; 2 if something cannot be read or is malformed; 3 if this key did not sign
    it; 4 if it does not say what was asked for. Without --verdict, 0 does not mean that runs were identical.
    """
    from reprokit.evidence.attest import envelope as envelopes
    from reprokit.evidence.attest import keys

    public = keys.read_public(key)
    signed = envelopes.read(envelope, public)
    asked.require(signed)
    checked = check(signed, artifacts, partial=partial)
    used = check_materials(signed, materials)
    with ending_with(EXIT_IDENTICAL):
        if as_json:
            facts = {"key": public.keyid, "checked": checked.checked, "unchecked": checked.unchecked, "materials": used}
            click.echo(json.dumps({**facts, "statement": signed.content}, indent=2))
        else:
            for label, text in (("signed", f"by key {public.keyid}"), *_lines(signed, checked, used)):
                click.echo(f"{label}: {printable(text, LONGEST)}")


def _lines(signed: Signed, checked: CheckedArtifacts, used: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what the statement says, with everything that qualifies it."""
    from reprokit.evidence.attest.source import source_line
    from reprokit.evidence.report.phrases import EXECUTED

    rerun, count = signed.rerun, len(checked.checked)
    yield "statement", f"{signed.predicate_type}, made {rerun.made} by {rerun.verifier.name} {rerun.verifier.version}"
    yield from (("attention", text) for text in rerun.attention)
    yield "verdict", f"{rerun.verdict}: {rerun.sentence}"
    yield "executed", EXECUTED[rerun.executed_by]
    yield "artifacts", f"{count} of {count + len(checked.unchecked)} checked{', and as signed' if count else ''}"
    if checked.unchecked:
        yield "not checked", f"{len(checked.unchecked)} artifacts, first {checked.unchecked[0]}"
    yield from (("material", f"{name}: as the runs used it") for name in used)
    for run in rerun.runs:
        yield run.kind, f"{shlex.join(run.command)}: {run.state}, {run.started} to {run.ended}, on {run.host}"
        yield "source", source_line(run.source)
    yield from (("seeded", text) for text in rerun.seeds)
    if imported := [f"{package.name} {package.version}" for package in rerun.packages if package.imported]:
        yield "packages", f"{', '.join(imported)}; {len(rerun.packages)} in all"
    yield from _qualifications(signed)


def _qualifications(signed: Signed) -> Iterator[tuple[str, str]]:
    from reprokit.evidence.report.phrases import counted_times

    rerun = signed.rerun
    for rule in rerun.ignored:
        yield "ignored", f"{rule.option} {shlex.quote(rule.rule)} ({rule.origin}): {counted_times(rule.times)}"
    yield from (("note", text) for text in rerun.notes)
    yield from (("not compared", text) for text in rerun.not_compared)
    yield from (("not recorded", text) for text in rerun.randomness.uncovered)
    for one in rerun.environment_differences:
        weight = " (can change results)" if one.can_change_results else ""
        yield "environment differs", f"{one.name}: {one.first or '-'} | {one.second or '-'}{weight}"
    yield from (("patch", text) for text in rerun.patches)
    yield from (("never compared", text) for text in rerun.excluded)
    yield from (("limit", text) for text in rerun.limits)
