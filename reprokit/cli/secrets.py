"""Passwords and tokens in what commands print: left out, unless the user asks for them."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from reprokit import redaction


def _reveal(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.with_resource(redaction.revealed())


REVEAL = click.option(
    "--reveal",
    is_flag=True,
    expose_value=False,
    callback=_reveal,
    help="Show passwords and tokens too, which are left out otherwise.",
)


def stdout_for_a_document() -> int:
    """Keep stdout for one document: what is started meanwhile prints to stderr; returns the stdout that was."""
    sys.stdout.flush()
    own = os.dup(1)  # not inherited by what is started
    os.dup2(2, 1)
    return own


def print_json(document: Any) -> None:
    """A JSON document on stdout."""
    click.echo(json.dumps(redaction.shown_document(document), indent=2))
