"""The part of the command line that record and replay share: the user's command after ``--``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from reprokit.errors import DashesMissing

DASHES = "--"
OWN_DIRECTORY = click.Path(path_type=Path)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Size(click.ParamType):  # type: ignore[type-arg]  # which click takes arguments depends on its version
    """Bytes: 65536, 64K, 64M, 1G."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        digits, unit = (value[:-1], value[-1].upper()) if value[-1:].isalpha() else (value, "")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 16 and unit in UNITS):
            self.fail(f"{value!r} is not a number of bytes, such as 65536, 64M or 1G.", param, ctx)
        return int(digits) * UNITS[unit]


NO_TRAIL = click.option("--no-trail", is_flag=True, help="Keep no digests of the training's steps.")
TRAIL_GRADIENTS = click.option(
    "--trail-gradients",
    is_flag=True,
    help="Digest gradients inside graphs of TensorFlow too, which changes these graphs.",
)
PATCH = click.option(
    "--patch",
    "patches",
    multiple=True,
    metavar="auto|none|ID,...",
    help="Apply what makes frameworks repeat, from outside the source: auto for what costs little and changes no"
    " numbers, or patches by their ids; docs/patches.md lists them.",
)
KEEP = click.option(
    "--keep-outputs",
    type=Size(),
    metavar="SIZE",
    default="64M",
    show_default=True,
    help="Keep copies of the files that the run wrote, of so many bytes in all; 0 keeps none.",
)


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
    import shlex

    before = list(own)[: len(own) - len(rest)]
    line = shlex.join(["reprokit", name, *before, DASHES, *rest])
    return f"put -- before the command to run: {line}"
