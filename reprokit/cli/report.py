"""``reprokit report``: what an auditor must know of a run and its re-run, in the format that is wanted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit import rundir
from reprokit.cli.paths import run_path
from reprokit.errors import CannotWriteReport, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from reprokit.report.facts import AuditFacts

STATEMENTS = ("test-result", "bitwise-rerun")
FORMATS = ("text", "markdown", "html", "json", "cyclonedx", "model-card", *STATEMENTS)
PRESENTERS = {  # imported when they are asked for: module and function
    "html": ("html", "page"),
    "markdown": ("markdown", "page"),
    "model-card": ("markdown", "model_card"),
    "cyclonedx": ("cyclonedx", "document"),
}
SUFFIXES = {
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".cdx.json": "cyclonedx",
    ".json": "json",
}


@click.command()
@click.argument("run")
@click.argument("run2", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="What to write [default: by the name of the file, text without one].",
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write it into FILE.")
@click.option(
    "--sign",
    "key",
    metavar="KEY",
    type=click.Path(path_type=Path),
    help="Sign a statement with this private key; see 'reprokit keygen'.",
)
def command(run: str, run2: str | None, kind: str | None, output: Path | None, key: Path | None) -> None:
    """Say what was trained, how RUN and RUN2 compare, and what that rests on.

    RUN and RUN2 are run directories, or 'last'; RUN is a recording and RUN2 its replay, or another recording.
    With RUN alone nothing is compared, and the report says so. The page that html makes holds all that it
    needs. cyclonedx is a bill of materials, model-card is a section for a model's README. test-result and
    bitwise-rerun are in-toto statements, which --sign puts into a signed envelope for 'reprokit attest'. Exits
    with 0 if the report was written, whatever it says, and with 2 if not.
    """
    from reprokit.report.gather import gather

    chosen = kind or _by_name(output)
    if key is not None and chosen not in STATEMENTS:
        raise UsageError(f"--sign goes with --format {' or '.join(STATEMENTS)}")
    if output is not None and chosen == "text":
        raise UsageError("text is for the screen: choose another --format for a file")
    private = _private(key)
    facts = gather([run_path(name) for name in (run, run2) if name is not None])
    if chosen == "text":
        from reprokit.report.text import print_report

        print_report(facts)
        return
    text = _text(facts, chosen, private)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)


def _by_name(output: Path | None) -> str:
    if output is None:
        return "text"
    for suffix, kind in SUFFIXES.items():
        if output.name.endswith(suffix):
            return kind
    raise UsageError(f"the name {output.name} does not say what to write; add --format")


def _private(key: Path | None) -> Ed25519PrivateKey | None:
    from reprokit.report import keys

    return None if key is None else keys.read_private(key)


def _text(facts: AuditFacts, kind: str, key: Ed25519PrivateKey | None) -> str:
    """The report in this format."""
    if kind in PRESENTERS:
        module, function = PRESENTERS[kind]
        presenter = importlib.import_module(f"reprokit.report.{module}")
        return str(getattr(presenter, function)(facts))
    if kind in STATEMENTS:
        return _statement(facts, kind, key)
    return json.dumps(msgspec.to_builtins(facts), indent=2) + "\n"


def _statement(facts: AuditFacts, kind: str, key: Ed25519PrivateKey | None) -> str:
    from reprokit.report.statement import statement

    made = statement(facts, kind)
    if key is None:
        return json.dumps(made, indent=2) + "\n"
    from reprokit.report import envelope

    return envelope.sign(made, key)


def write_whole(path: Path, text: str) -> None:
    """Replace a file whole or not at all."""
    try:
        rundir.write_whole(path, text.encode("utf-8", "backslashreplace"), mode=0o666)
    except OSError as error:
        raise CannotWriteReport(f"{path}: {error.strerror}; choose another place with -o") from None
