"""The part of the command line that record and replay share: the user's command after ``--``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from reprokit.errors import DashesMissing
from reprokit.plan import CapturePlan

Function = TypeVar("Function", bound=Callable[..., Any])

DASHES = "--"
OWN_DIRECTORY = click.Path(path_type=Path)
ON_NAN_ACTIONS = {"capture": "stop", "skip": "skip", "rollback": "rollback"}
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
CAPTURE_OPTIONS = {
    "on_nan": click.option(
        "--on-nan",
        type=click.Choice(list(ON_NAN_ACTIONS)),
        help="Keep the state before a step whose loss or gradients are not finite, and do not apply it: capture stops"
        " the training then, skip leaves the step out, rollback goes back to an earlier state.",
    ),
    "capture_when": click.option(
        "--capture-when",
        multiple=True,
        metavar="CONDITION",
        help="Capture also on loss>X, gradient-jump>X (times the running mean of the gradients' norm), or activations"
        " that are not finite; can be given several times.",
    ),
    "max_snapshots": click.option(
        "--max-snapshots",
        metavar="N",
        type=click.IntRange(min=1, max=1000),
        help="Keep so many snapshots at most  [default: 3]",
    ),
    "snapshot_size": click.option(
        "--snapshot-size",
        type=Size(),
        metavar="SIZE",
        help="Write none that is larger  [default: what the disk has room for]",
    ),
    "snapshot_fallback": click.option(
        "--snapshot-fallback",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write a snapshot below DIR if the run's disk has no room for it  [default: none]",
    ),
    "rollback_every": click.option(
        "--rollback-every",
        metavar="STEPS",
        type=click.IntRange(min=1),
        help="With --on-nan rollback, hold a state to go back to so often  [default: 100]",
    ),
    "on_capture": click.option(
        "--on-capture",
        metavar="COMMAND",
        help="Run COMMAND, outside of the training, for each snapshot; its path is in REPROKIT_SNAPSHOT.",
    ),
}
NO_SUPERVISOR = click.option("--no-supervisor", is_flag=True, help="Leave alone what the preloaded shim cannot reach.")
KEEP = click.option(
    "--keep-outputs",
    type=Size(),
    metavar="SIZE",
    default="64M",
    show_default=True,
    help="Keep copies of the files that the run wrote, but for programs and keys, of so many bytes in all; 0: none.",
)


def new_run(metavar: str = "RUN", default: str = "one of its own under .reprokit") -> Callable[[Function], Function]:
    """Add -o and --overwrite to a command that makes a run directory."""

    def added(function: Function) -> Function:
        what = f"Replace the run that {metavar} holds, if it holds one."
        function = click.option("--overwrite", is_flag=True, help=what)(function)
        where = f"Directory to make [default: {default}]."
        return click.option("-o", "--output", metavar=metavar, type=OWN_DIRECTORY, help=where)(function)

    return added


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
            raise DashesMissing(_advice(ctx.command_path, own, ctx.args))
        return rest


def capturing(function: Function) -> Function:
    """Add the options of captures to a command, which is given what they ask for as `capture`."""

    @functools.wraps(function)
    def with_capture(*arguments: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in CAPTURE_OPTIONS}
        return function(*arguments, capture=_capture(**own), **options)

    for option in reversed(CAPTURE_OPTIONS.values()):
        with_capture = option(with_capture)
    return with_capture  # type: ignore[return-value]  # the same but for the options


def _capture(
    on_nan: str | None,
    capture_when: tuple[str, ...],
    max_snapshots: int | None,
    snapshot_size: int | None,
    snapshot_fallback: Path | None,
    rollback_every: int | None,
    on_capture: str | None,
) -> CapturePlan | None:
    """The capture that the options ask for; raises UsageError where they make no sense."""
    if on_nan is None:
        if any((capture_when, max_snapshots, snapshot_size, snapshot_fallback, rollback_every, on_capture)):
            raise click.UsageError("what is captured, and what then happens, needs --on-nan too.")
        return None
    if rollback_every and on_nan != "rollback":
        raise click.UsageError("--rollback-every is for --on-nan rollback.")
    return CapturePlan(
        action=ON_NAN_ACTIONS[on_nan],
        conditions=_conditions(capture_when),
        max_snapshots=max_snapshots or CapturePlan().max_snapshots,
        max_bytes=snapshot_size,
        fallback=None if snapshot_fallback is None else Path(os.path.abspath(snapshot_fallback)),
        rollback_every=rollback_every or CapturePlan().rollback_every,
        hook=_hook(on_capture),
    )


def _conditions(words: tuple[str, ...]) -> tuple[str, ...]:
    if words:
        from reprokit.capture.files import Conditions

        try:
            Conditions(words)
        except ValueError as error:
            raise click.UsageError(f"--capture-when: {error}.") from None
    return words


def _hook(command: str | None) -> str:
    import shlex

    try:
        if command is None or shlex.split(command):
            return command or ""
    except ValueError as error:
        raise click.UsageError(f"--on-capture: {error}.") from None
    raise click.UsageError("--on-capture: the command is empty.")


def split(args: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before the first ``--``, and the command behind it."""
    if DASHES not in args:
        return list(args), ()
    position = list(args).index(DASHES)
    return list(args[:position]), tuple(args[position + 1 :])


def _advice(path: str, own: Sequence[str], rest: Sequence[str]) -> str:
    import shlex

    before = list(own)[: len(own) - len(rest)]
    line = shlex.join([*path.split(), *before, DASHES, *rest])
    return f"put -- before the command to run: {line}"
