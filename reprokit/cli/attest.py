"""``reprokit attest verify``: does a signed statement hold, and are these the artifacts that it is about?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from reprokit.printable import printable


@click.group()
def command() -> None:
    """Work with signed statements."""


@command.command()
@click.argument("envelope", type=click.Path(path_type=Path))
@click.argument("artifacts", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--key", metavar="PUBLIC", required=True, type=click.Path(path_type=Path), help="The signer's public key."
)
@click.option("--partial", is_flag=True, help="Accept that artifacts of the statement are not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the statement, and what was checked, as JSON.")
def verify(envelope: Path, artifacts: tuple[Path, ...], key: Path, partial: bool, as_json: bool) -> None:
    """Hold ENVELOPE against a public key and ARTIFACTS, which are files or directories of them.

    Needs nothing else: no run directory and no network. Exits with 0 if the signature holds and every
    artifact is the one that was signed, 1 if anything is refused, 2 if something cannot be read.
    """
    from reprokit.report import envelope as envelopes

    found = envelopes.verify(envelope, key, artifacts, partial=partial)
    if as_json:
        facts = {"key": found.key, "checked": found.checked, "unchecked": found.unchecked}
        click.echo(json.dumps({**facts, "statement": found.statement}, indent=2))
        return
    predicate = found.statement.get("predicate")
    said = predicate if isinstance(predicate, dict) else {}
    verdict = said.get("sentence") or said.get("result") or "no verdict"
    count = len(found.checked)
    click.echo(f"signed by key {found.key}; {count} of {count + len(found.unchecked)} artifacts checked: as signed")
    if found.unchecked:
        click.echo(f"not checked: {len(found.unchecked)} artifacts, first {printable(found.unchecked[0])}")
    click.echo(f"{printable(str(found.statement.get('predicateType', '')))}: {printable(str(verdict), 2000)}")
