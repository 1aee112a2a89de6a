"""The part of the command line that record and replay share: the user's command after ``--``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from reprokit.errors import DashesMissing

DASHES = "--"
OWN_DIRECTORY = click.Path(path_type=Path)


class CommandBehindDashes(click.Command):
    """A command whose own arguments end at ``--``; what stands behind is the user's, untouched."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARG]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = split(args)
        ctx.obj = command
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, list(own))
        if ctx.args:
            raise DashesMissing(_advice(ctx.info_name or "record", own, ctx.args))
        return rest


def split(args: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before the first ``--``, and the command behind it."""
    if DASHES not in args:
        return list(args), ()
    position = list(args).index(DASHES)
    return list(args[:position]), tuple(args[position + 1 :])


def _advice(name: str, own: Sequence[str], rest: Sequence[str]) -> str:
    before = list(own)[: len(own) - len(rest)]
    line = shlex.join(["reprokit", name, *before, DASHES, *rest])
    return f"put -- before the command to run: {line}"
