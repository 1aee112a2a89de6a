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
OF_SEVERAL = ("text", "markdown", "html", "json")
SUFFIXES = {".md": "markdown", ".html": "html", ".htm": "html", ".cdx.json": "cyclonedx", ".json": "json"}


@click.command(epilog="Example: reprokit report last:recording last -o report.html")
@click.argument("runs", type=options.RUN, nargs=-1, metavar="[RUN...]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    metavar="FORMAT",
    help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]} [default: by the file's name; text without -o].",
)
@options.output("FILE", "File to write; - is standard output.")
@options.path_option("--sign", "KEY", "Sign a statement with this private key; see 'reprokit keygen'.", "key")
@options.path_option("--index", "DIRECTORY", "Write a page over all runs of this directory instead.", "indexed")
@options.flag("--pages", "With --index, also write a report of each run, in the folder FILE.pages; linked there.")
@ignores.options
def command(
    runs: tuple[Path, ...],
    kind: str | None,
    output: Path | None,
    key: Path | None,
    indexed: Path | None,
    pages: bool,
    declared: IgnoreRequest,
) -> None:
    """Report what was trained, how runs compare, and on what evidence.

    A RUN is a path or a name, such as 'last'. Of two, the first is a recording and the second its replay, or
    another recording. One alone is compared with nothing, and the report says so. Of more, each is compared
    with the first, in a table of what differs: as text, markdown, html or json. The page that html makes holds
    all that it needs. cyclonedx is a bill of materials, model-card is a section for a model's README, with the
    block of metadata that model hubs read. test-result and bitwise-rerun are in-toto statements, which --sign
    puts into a signed envelope for 'reprokit attest'; with an HTML page it writes one beside the page, which
    names it. Exits with 0 if the report was written, whatever it says, and with 2 if not.
    """
    output = None if output == Path("-") else output
    chosen = kind or _by_name(output)
    if output is not None and chosen == "text":
        raise UsageError("text is for the screen: choose another --format for a file")
    if (indexed is not None or len(runs) > 2) and (key is not None or chosen not in OF_SEVERAL):
        raise UsageError(f"of more than two runs, and with --index, there is --format {', '.join(OF_SEVERAL)}")
    if indexed is not None:
        if runs:
            raise UsageError("--index is about all runs of a directory: name no RUN")
        _index(indexed, chosen, output, declared, with_pages=pages)
        return
    if pages:
        raise UsageError("--pages goes with --index DIRECTORY")
    if not runs:
        raise UsageError("name a RUN, such as 'last', or --index DIRECTORY")
    if len(runs) > 2:
        _several(runs, chosen, output, declared)
        return
    from reprokit.evidence.attest import keys
    from reprokit.evidence.report.gather import gather

    if key is not None and chosen not in STATEMENTS and not (chosen == "html" and output is not None):
        raise UsageError(f"--sign goes with --format {' or '.join(STATEMENTS)}, or with an HTML page in a file")
    private = None if key is None else keys.read_private(key)
    if chosen == "cyclonedx":
        from reprokit.evidence.export.cyclonedx import validator

        validator()  # asked for before the runs are read
    facts = gather(runs, ignores=declared.ignores())
    if chosen == "text":
        from reprokit.evidence.report.text import print_report

        print_report(facts)
        return
    if chosen == "html" and private is not None and output is not None:
        text = _signed_page(facts, private, output)
    else:
        text = _text(facts, chosen, private)
    _write(output, text)


def _write(output: Path | None, text: str) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)


def _several(runs: tuple[Path, ...], kind: str, output: Path | None, declared: IgnoreRequest) -> None:
    """Report more than two runs."""
    from reprokit.evidence.report import several_pages
    from reprokit.evidence.report.several import gather_several

    facts = gather_several(runs, declared.ignores())
    if kind == "text":
        several_pages.print_several(facts)
        return
    presenters = {"html": several_pages.page, "markdown": several_pages.markdown, "json": _json}
    _write(output, presenters[kind](facts))


def _index(directory: Path, kind: str, output: Path | None, declared: IgnoreRequest, *, with_pages: bool) -> None:
    """Write the page over the runs of a directory, and before it their reports."""
    from reprokit.evidence.report import index
    from reprokit.verify.show import run_list

    report = None
    if with_pages:
        if output is None or kind != "html":
            raise UsageError("--pages are written beside a page: give it a file's name with -o")
        report = index.reports(output, declared.ignores(), write_whole)
    if kind == "text":
        run_list.print_runs(directory, run_list.runs(directory))
        return
    facts = index.gather_index(directory, report)
    presenters = {"html": index.page, "markdown": index.markdown, "json": _json}
    _write(output, presenters[kind](facts))


def _json(facts: object) -> str:
    return json.dumps(msgspec.to_builtins(facts), indent=2) + "\n"


def _by_name(output: Path | None) -> str:
    if output is None:
        return "text"
    for suffix, kind in SUFFIXES.items():
        if output.name.endswith(suffix):
            return kind
    raise UsageError(f"the name {output} does not say what to write: end it in {', '.join(SUFFIXES)}, or add --format")


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
