"""Hooks of MkDocs: each command's help comes from the command, and pages from outside of docs/ are taken along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from mkdocs.structure.files import File, Files

from reprokit.cli.help import warnings
from reprokit.cli.main import reprokit

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CHANGELOG.md": "changes.md",
    "benchmarks/paper/results.md": "paper-results.md",
    **{str(path.relative_to(ROOT)): f"schemas/{path.name}" for path in (ROOT / "reprokit" / "schemas").glob("*.json")},
}
HELP = re.compile(r"^<!-- help: (.+) -->$", re.MULTILINE)
WARNINGS = "<!-- warnings -->"
NESTED = re.compile(r"(?:(?<=\n\n) {2,3}(?=\S)|^ {2,3}(?=- |\d+\. ))", re.MULTILINE)


def help_text(command: str) -> str:
    """Return what `reprokit COMMAND --help` prints."""
    return CliRunner().invoke(reprokit, [*command.split(), "--help"], prog_name="reprokit", terminal_width=78).output


def on_files(files: Files, config: Any) -> Files:
    """Add the files from outside of docs/ that pages link to."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert help texts, and write links and lists as MkDocs reads them."""
    up = "../" * page.file.src_uri.count("/")
    to_root = up + "../"
    if page.file.src_uri in OUTSIDE.values():
        source = next(source for source, target in OUTSIDE.items() if target == page.file.src_uri)
        to_root = "../" * source.count("/")
        markdown = markdown.replace(f"]({to_root}docs/", "](")
    for source, target in OUTSIDE.items():
        markdown = markdown.replace(f"]({to_root}{source}", f"]({up}{target}")
    if WARNINGS in markdown:
        rows = (f"| `{code}` | {words} |" for code, words in warnings().items())
        markdown = markdown.replace(WARNINGS, "\n".join(["| code | meaning |", "| --- | --- |", *rows]))
    markdown = NESTED.sub("    ", markdown)  # GitHub asks for two columns, Python-Markdown for four
    return HELP.sub(lambda found: f"```text\n$ reprokit {found[1]} --help\n{help_text(found[1])}```", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Take the place above a column of names for the cell that it is: it heads nothing."""
    return html.replace("<th></th>", "<td></td>")


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog that the theme searches in."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
