"""``reprokit study show``: what the runs of a study say, as tables, CSV, JSON or a page."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from reprokit.cli.secrets import print_json
from reprokit.errors import EXIT_IDENTICAL, UsageError


def show(directory: str, as_json: bool, as_csv: bool, html: str | None) -> int:
    """Print the analysis of a study's directory, and write its page where one is wanted; the exit code."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are two formats: choose one")
    from reprokit.study.analysis import analyse

    analysis = analyse(Path(directory))
    if html is not None:
        from reprokit.study import page

        page.write(analysis, Path(html))
    if as_json:
        print_json(msgspec.to_builtins(analysis))
    elif as_csv:
        from reprokit.study import csv_file

        sys.stdout.write(csv_file.text(analysis))
    elif html is None:
        from reprokit.study.table import print_analysis

        print_analysis(analysis)
    return EXIT_IDENTICAL
