"""``reprokit report``: what an auditor must know of a run and its re-run, in the format that is wanted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit.cli import ignores, options
from reprokit.cli.ignores import IgnoreRequest
from reprokit.cli.output import write_whole
from reprokit.core.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from reprokit.evidence.report.facts import AuditFacts

STATEMENTS = ("test-result", "bitwise-rerun")
FORMATS = ("text", "markdown", "html", "json", "cyclonedx", "model-card", *STATEMENTS)
PRESENTERS = {  # imported when they are asked for: module and function
    "html": ("report.html", "page"),
    "markdown": ("report.markdown", "page"),
    "model-card": ("report.markdown", "model_card"),
    "cyclonedx": ("export.cyclonedx", "document"),
}
SUFFIXES = {".md": "markdown", ".html": "html", ".htm": "html", ".cdx.json": "cyclonedx", ".json": "json"}


@click.command(epilog="Example: reprokit report last:recording last -o report.html")
@click.argument("run", type=options.RUN)
@click.argument("run2", type=options.RUN, required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    metavar="FORMAT",
    help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]} [default: by the file's name; text without -o].",
)
@options.output("FILE", "File to write; - is standard output.")
@options.path_option("--sign", "KEY", "Sign a statement with this private key; see 'reprokit keygen'.", "key")
@ignores.options
def command(
    run: Path, run2: Path | None, kind: str | None, output: Path | None, key: Path | None, declared: IgnoreRequest
) -> None:
    """Report what was trained, how RUN and RUN2 compare, and on what evidence.

    RUN and RUN2 are paths or names, such as 'last'; RUN is a recording and RUN2 its replay, or another recording.
    With RUN alone nothing is compared, and the report says so. The page that html makes holds all that it
    needs. cyclonedx is a bill of materials, model-card is a section for a model's README. test-result and
    bitwise-rerun are in-toto statements, which --sign puts into a signed envelope for 'reprokit attest'; with an
    HTML page it writes one beside the page, which names it. Exits with 0 if the report was written, whatever it
    says, and with 2 if not.
    """
    from reprokit.evidence.attest import keys
    from reprokit.evidence.report.gather import gather

    output = None if output == Path("-") else output
    chosen = kind or _by_name(output)
    if key is not None and chosen not in STATEMENTS and not (chosen == "html" and output is not None):
        raise UsageError(f"--sign goes with --format {' or '.join(STATEMENTS)}, or with an HTML page in a file")
    if output is not None and chosen == "text":
        raise UsageError("text is for the screen: choose another --format for a file")
    private = None if key is None else keys.read_private(key)
    facts = gather([run] if run2 is None else [run, run2], ignores=declared.ignores())
    if chosen == "text":
        from reprokit.evidence.report.text import print_report

        print_report(facts)
        return
    if chosen == "html" and private is not None and output is not None:
        text = _signed_page(facts, private, output)
    else:
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


def _signed_page(facts: AuditFacts, key: Ed25519PrivateKey, output: Path) -> str:
    """Write the signed statement beside the page, and return the page, which names both."""
    from reprokit.evidence.attest import envelope, statement
    from reprokit.evidence.report import html

    content = statement.statement(facts, "bitwise-rerun")
    signed = envelope.sign(content, key)
    path = output.with_name(f"{output.name}.statement.json")
    write_whole(path, signed)
    return html.page(facts, (("file", path.name), *envelope.identities(content, signed)))


def _text(facts: AuditFacts, kind: str, key: Ed25519PrivateKey | None) -> str:
    """Return the report in this format."""
    from reprokit.evidence.attest import envelope, statement

    if kind in PRESENTERS:
        module, function = PRESENTERS[kind]
        presenter = importlib.import_module(f"reprokit.evidence.{module}")
        return str(getattr(presenter, function)(facts))
    content = statement.statement(facts, kind) if kind in STATEMENTS else msgspec.to_builtins(facts)
    return json.dumps(content, indent=2) + "\n" if key is None else envelope.sign(content, key)
