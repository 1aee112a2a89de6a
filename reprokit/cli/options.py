"""The options and arguments of the command line: each is declared once, for every command that has it."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reprokit.core import redaction
from reprokit.core.errors import DashesMissing, WorkingDirectoryMissing, refused_as
from reprokit.model.plan import NOTE, CapturePlan, Plan, RulesPlan
from reprokit.model.run import AUTOMATIC, MAX_STRIDE
from reprokit.model.states import ON, WITHOUT_TRAIL, Switch
from reprokit.run_files import home as run_home

if TYPE_CHECKING:
    from reprokit.run_files.keyframes import Keyframe
    from reprokit.run_files.rundir import RunDirectory

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

DASHES = "--"
QUIET = "reprokit.quiet"  # in a context: whether --quiet was given
ON_NAN_ACTIONS = {"capture": "stop", "skip": "skip", "rollback": "rollback", "note": NOTE}
DURATIONS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def current_directory() -> Path:
    """Return the working directory, which may have been deleted under our feet."""
    with refused_as(WorkingDirectoryMissing, "the current directory", "change to one that exists"):
        return Path.cwd()


# Kinds of values


class RunPath(click.ParamType):  # type: ignore[type-arg]  # which click takes arguments depends on its version
    """A run directory: its path, or a name that `reprokit.run_files.home` resolves."""

    name = "run"

    def __init__(self, last: str = run_home.LAST) -> None:
        self._last = last  # what `last` stands for

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return its path."""
        return run_home.resolve(self._last if value == run_home.LAST else str(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of runs, the newest first, and let the shell add directories."""
        from click.shell_completion import CompletionItem

        home = run_home.home_of(Path())
        names = [directory.path.name for directory in run_home.newest_first(home)] if home.is_dir() else []
        offered = [run_home.LAST, *(run_home.short(name, names) for name in names), *names]
        items = [CompletionItem(name) for name in dict.fromkeys(offered) if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type="dir"), *items]  # bash would forget what comes before it


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes: 65536, 64K, 64M, 1G."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        digits, unit = (value[:-1], value[-1].upper()) if value[-1:].isalpha() else (value, "")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 16 and unit in UNITS):
            self.fail(f"{value!r} is not a number of bytes, such as 65536, 64M or 1G.", param, ctx)
        size = int(digits) * UNITS[unit]
        if size < self._least:
            self.fail(f"{value!r} is less than {self._least}.", param, ctx)
        return size


class Stride(click.ParamType):  # type: ignore[type-arg]
    """A power of two: two recordings with other ones have steps in common; where it may be measured, "auto" as well."""

    name = "stride"

    def __init__(self, *, may_be_measured: bool):
        self._words = {"auto": AUTOMATIC} if may_be_measured else {}

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if value in self._words:
            return self._words[str(value)]
        number = int(value) if str(value).isascii() and str(value).isdecimal() and len(str(value)) < 9 else 0
        if not 1 <= number <= MAX_STRIDE or number & (number - 1):
            others = "".join(f", nor {word}" for word in self._words)
            self.fail(f"{value!r} is not a power of two up to {MAX_STRIDE}, such as 1, 16 or 256{others}.", param, ctx)
        return number


class Age(click.ParamType):  # type: ignore[type-arg]
    """A duration: 90m, 12h, 7d, 2w."""

    name = "age"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch("([0-9]{1,6})([smhdw])", value)
        if match is None:
            self.fail(f"{value!r}: give a whole number and a unit, as in 90m, 12h, 7d or 2w.", param, ctx)
        return timedelta(**{DURATIONS[match[2]]: int(match[1])})


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds above 0, neither NaN nor infinite."""

    name = "seconds"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value!r} is not a number of seconds above 0, such as 90 or 0.5.", param, ctx)
        return number


PATH = click.Path(path_type=Path)
RUN = RunPath()
RECORDING = RunPath(run_home.LAST + run_home.OF_RECORDING)  # the last run may be a replay


# Options


def flag(name: str, text: str, *parameter: str, negated: bool = False) -> Decorator:
    """Declare a switch; a negated one is True unless it is given."""
    callback = (lambda _context, _option, value: not value) if negated else None
    return click.option(name, *parameter, is_flag=True, help=text, callback=callback)


def switched_off(name: str, field: str, state: Switch, text: str) -> Decorator:
    """Declare an option that turns a part off, whose field then says why."""
    return click.option(name, field, is_flag=True, help=text, callback=lambda *given: state if given[-1] else ON)


def path_option(name: str, metavar: str, text: str, *parameter: str) -> Decorator:
    """Declare an option that names a file or directory."""
    return click.option(name, *parameter, metavar=metavar, type=PATH, help=text)


def output(metavar: str, text: str) -> Decorator:
    """Declare where a command writes."""
    return click.option("-o", "--output", metavar=metavar, type=PATH, help=text)


class Whole(click.IntRange):
    """A whole number in bounds, which click would call an integer range."""

    name = "whole number"


class Real(click.FloatRange):
    """A number in bounds, which click would call a float range."""

    name = "number"


def number(name: str, text: str, least: int = 1, most: int | None = None, **more: Any) -> Decorator:
    """Declare an option with a whole number in bounds."""
    return click.option(name, metavar="N", type=Whole(least, most), help=text, **more)


def json_option(text: str = "Print one JSON document.") -> Decorator:
    """Declare --json, which a command gets as `as_json`."""
    return flag("--json", text, "as_json")


def _reveal(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.with_resource(redaction.revealed())


def _hush(context: click.Context, _: click.Parameter, asked: bool) -> None:
    context.meta[QUIET] = asked


ADVISING = click.option(  # of commands after which there is a usual next step
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_hush,
    help="Leave out progress, and what is usually done next.",
)
REVEAL = click.option(
    "--reveal",
    is_flag=True,
    expose_value=False,
    callback=_reveal,
    help="Also show passwords and tokens, which are left out by default.",
)
NO_TRAIL = switched_off("--no-trail", "trail", WITHOUT_TRAIL, "Do not record digests of the training's steps.")


def trail_every(default: str | None) -> Decorator:
    """Declare --trail-every; None as the default is what the recording has."""
    return click.option(
        "--trail-every",
        type=Stride(may_be_measured=default is not None),
        default=default,
        metavar="N|auto" if default else "N",
        help="Record the digests of one in N steps of PyTorch (a power of two), of the first 16 and of the last;"
        + (
            " auto: of so many that this takes 3 % of the time. [default: auto]" if default else " [default: as in RUN]"
        ),
    )


NO_ORDERS = flag(
    "--no-orders", "Do not record the order in which threads and processes come to queues.", "orders", negated=True
)
NO_CALENDAR = flag(
    "--no-calendar", "Do not record the time of day, which a replay tells again.", "calendar", negated=True
)
CLOCK = flag("--clock", "Also replace process ids, and record the clock of all native threads, as both may be seeds.")


def _completed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the function of that name in completion.py, which only shells import."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from reprokit.cli import completion

        found: list[str] = getattr(completion, kind)(context, parameter, incomplete)
        return found

    return complete


COMPLETE_FRAMEWORKS, COMPLETE_STEPS, COMPLETE_TENSORS = map(_completed, ("frameworks", "steps", "tensors"))
PATCH = click.option(
    "--patch",
    "patches",
    shell_complete=_completed("patches"),
    multiple=True,
    metavar="auto|none|ID,...",
    help="Make frameworks deterministic without changing the source: auto applies the patches that cost little and"
    " change no results, ID applies the patch of that id. docs/patches.md lists them.",
)
NO_SUPERVISOR = flag(
    "--no-supervisor",
    "Do not watch programs that the shim cannot reach, such as static and Go programs.",
    "supervisor",
    negated=True,
)
NO_CONSOLE = flag("--no-console", "Do not keep and compare what the command prints.", "console", negated=True)
KEEP = click.option(
    "--keep-outputs",
    type=Size(),
    metavar="SIZE",
    default="64M",
    show_default=True,
    help="Keep copies of the files that the run writes, except programs and keys, up to SIZE in total; 0 keeps none.",
)


KEEP_FOUND = click.option(
    "--keep-found",
    type=Size(),
    metavar="SIZE",
    default="64M",
    show_default=True,
    help="Keep what files held that were there before and that the run changes, up to SIZE in total, for replays.",
)


def replaced(names: Iterable[str], make: Callable[..., dict[str, Any]], *declared: Decorator) -> Decorator:
    """Add options to a command, which gets what `make` makes of the arguments of these names in their place."""

    def added(function: Any) -> Any:
        @functools.wraps(function)
        def with_made(*arguments: Any, **options: Any) -> Any:
            taken = {name: options.pop(name) for name in names if name in options}
            return function(*arguments, **make(**taken), **options)

        return functools.reduce(lambda made, option: option(made), reversed(declared), with_made)

    return added


def new_run(metavar: str = "RUN", default: str = "one of its own under .reprokit") -> Decorator:
    """Add -o, --name and --overwrite to a command that makes a run directory, which gets its path as `output`."""
    return replaced(
        ("output", "name"),
        _place,
        output(metavar, f"Run directory to create [default: {default}]."),
        ADVISING,
        click.option("--name", metavar="NAME", help="Name of the run below .reprokit."),
        flag("--overwrite", f"Replace the run in {metavar}, if there is one."),
    )


def _place(output: Path | None, name: str | None) -> dict[str, Any]:
    if name is not None and output is not None:
        raise click.UsageError("-o and --name both say where the run goes: choose one.")
    return {"output": output if name is None else run_home.named(name)}


def gathered(name: str, kind: Any) -> Decorator:
    """Hand the options that are fields of a struct to a command as one."""
    return replaced(kind.__struct_fields__, lambda **fields: {name: kind(**fields)})


# Captures


def _checked_conditions(_context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    if words:
        from reprokit.capture.files import Conditions

        try:
            Conditions(words)
        except ValueError as error:
            raise click.UsageError(f"--capture-when: {error}.") from None
    return words


def words_of(option: str, command: str) -> tuple[str, ...]:
    """Return the words of a command that an option gives."""
    import shlex

    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}.") from None
    if not words:
        raise click.UsageError(f"{option}: the command is empty.")
    return words


def _command(option: str, command: str) -> str:
    """Return a command of the user's that can be parted into words."""
    words_of(option, command)
    return command


CAPTURE_OPTIONS: dict[str, Decorator] = {  # by the fields of a plan that they stand for
    "action": click.option(
        "--on-nan",
        "action",
        type=click.Choice(list(ON_NAN_ACTIONS)),
        help="Save the state before a step whose loss or gradients are not finite, and do not apply the step. Then"
        " capture stops the training, skip goes on with the next step, rollback restores an earlier state. note does"
        " nothing of this, and names the first bad step at the end, whose snapshot can be taken then.",
    ),
    "conditions": click.option(
        "--capture-when",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        callback=_checked_conditions,
        help="Also capture on loss>X, on gradient-jump>X (times the running mean of the gradient norm), or on"
        " activations that are not finite. Repeatable.",
    ),
    "max_snapshots": number("--max-snapshots", "Keep at most N snapshots  [default: 3]", most=1000),
    "max_bytes": click.option(
        "--snapshot-size",
        "max_bytes",
        type=Size(least=1),
        metavar="SIZE",
        help="Skip snapshots larger than SIZE  [default: what the disk has room for]",
    ),
    "fallback": click.option(
        "--snapshot-fallback",
        "fallback",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        callback=lambda _context, _option, path: path and Path(os.path.abspath(path)),
        help="Write a snapshot below DIR if the run's disk has no room for it  [default: none]",
    ),
    "rollback_every": click.option(
        "--rollback-every",
        metavar="STEPS",
        type=Whole(min=1),
        help="With --on-nan rollback, save a state to restore every STEPS steps  [default: 100]",
    ),
    "hook": click.option(
        "--on-capture",
        "hook",
        metavar="COMMAND",
        callback=lambda _context, _option, command: None if command is None else _command("--on-capture", command),
        help="Run COMMAND, outside the training, after each snapshot, whose path is in REPROKIT_SNAPSHOT.",
    ),
}


def _capture(**options: Any) -> dict[str, CapturePlan | None]:
    """Return the capture that the options ask for; raises UsageError where they make no sense."""
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    action = chosen.pop("action", None)
    if action is None and chosen:
        raise click.UsageError("options of captures need --on-nan too.")
    if action == NOTE and chosen:
        raise click.UsageError("--on-nan note has no further options: it captures nothing.")
    if "rollback_every" in chosen and action != "rollback":
        raise click.UsageError("--rollback-every is for --on-nan rollback.")
    return {"capture": None if action is None else CapturePlan(action=ON_NAN_ACTIONS[action], **chosen)}


capturing = replaced(CAPTURE_OPTIONS, _capture, *CAPTURE_OPTIONS.values())


# Tensors

TENSOR_BUFFER = click.option(
    "--tensor-buffer",
    type=Size(least=1 << 20),
    metavar="SIZE",
    default="256M",
    show_default=True,
    help="Keep at most SIZE of tensors in memory that are not yet written; the training then waits.",
)


RULES = click.option(
    "--rules",
    multiple=True,
    metavar="auto|ID|FILE",
    help="Judge the training meanwhile by these rules, as 'reprokit rules' does, in another process: auto, or as its"
    " --rule. Without --tensors all are saved at the first 50 steps and each tenth behind them. Repeatable.",
)
ON_RULE = click.option(
    "--on-rule",
    metavar="warn|stop|COMMAND",
    help="What an alarm of --rules does beside a warning: stop interrupts the training, which then ends with status"
    " 122; COMMAND is run outside the training, with the finding in REPROKIT_FINDING.",
)


def _rules(specs: tuple[str, ...], on_rule: str | None) -> RulesPlan | None:
    """Return what is to judge the training; raises UsageError and BadRule for what makes no sense."""
    if not specs:
        if on_rule is not None:
            raise click.UsageError("--on-rule needs --rules too.")
        return None
    from reprokit.rules import catalogue

    action = on_rule or "warn"
    command = "" if action in ("warn", "stop") else _command("--on-rule", action)
    return RulesPlan(specs=catalogue.checked(specs), stops=action == "stop", command=command)


def _question(
    tensors: tuple[str, ...], tensor_buffer: int, rules: tuple[str, ...], on_rule: str | None
) -> dict[str, Any]:
    question, plan = None, _rules(rules, on_rule)
    if tensors or plan is not None:
        from reprokit.model.question import Question
        from reprokit.model.tensor_selection import FOR_RULES, selection

        may_stop = plan is not None and plan.stops
        question = Question(tensors=selection(tensors or FOR_RULES, tensor_buffer), may_stop=may_stop)
    return {"question": question, "rules": plan}


saving_tensors = replaced(
    ("tensors", "tensor_buffer", "rules", "on_rule"),
    _question,
    click.option(
        "--tensors",
        multiple=True,
        shell_complete=COMPLETE_TENSORS,
        metavar="SPEC",
        help="Save tensors: collections (weights, gradients, all, ...) or a regular expression, then steps, mode and"
        " reductions, as in 'weights,losses 100-200:10'. Or a TOML file. Repeatable.",
    ),
    TENSOR_BUFFER,
    RULES,
    ON_RULE,
)
FROM_START = flag(
    "--from-start", "Replay from the first step, though there is a keyframe nearer to the steps asked for."
)


def chosen_keyframe(recording: RunDirectory, first: int, *, from_start: bool) -> Keyframe | None:
    """Return the keyframe from which a replay starts; say why it starts from the beginning although there are some.

    Raises UsageError for a step that the recording has not.
    """
    from reprokit.core.messages import say
    from reprokit.questions.seek import require_step, seek

    require_step(recording, first)
    if from_start:
        return None
    chosen = seek(recording, first)
    if chosen.why:
        say(f"from the first step: {chosen.why}")
    return chosen.keyframe


class KeyframeInterval(click.ParamType):  # type: ignore[type-arg]
    """Steps or time between two keyframes: 500steps, 30s, 10min, 2h."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Return it as fields of KeyframesAsked."""
        if isinstance(value, dict):
            return value
        match = re.fullmatch("([1-9][0-9]{0,8}) ?(steps?|s|min|m|h)", value)
        if match is None:
            self.fail(f"{value!r}: give a whole number and a unit, as in 500steps, 30s, 10min or 2h.", param, ctx)
        count, unit = int(match[1]), match[2]
        seconds = {"s": 1, "m": 60, "min": 60, "h": 3600}.get(unit)
        return {"steps": count} if seconds is None else {"seconds": count * seconds}


def _with_keyframes(keyframes: dict[str, Any] | None, keyframe_bytes: int, question: Any) -> dict[str, Any]:
    if keyframes is not None:
        from msgspec.structs import replace

        from reprokit.model.question import KeyframesAsked, Question

        question = replace(question or Question(), keyframes=KeyframesAsked(max_bytes=keyframe_bytes, **keyframes))
    return {"question": question}


keeping_keyframes = replaced(  # of a command that is given a question
    ("keyframes", "keyframe_bytes", "question"),
    _with_keyframes,
    click.option(
        "--keyframes",
        type=KeyframeInterval(),
        metavar="INTERVAL",
        help="Keep all training state (PyTorch, TensorFlow) each 500steps or 10min, for questions that start there.",
    ),
    click.option(
        "--keyframe-bytes",
        type=Size(least=1 << 20),
        metavar="SIZE",
        default="2G",
        show_default=True,
        help="Keep keyframes of at most SIZE in total, the latest ones.",
    ),
)


# What stands behind --


class CommandBehindDashes(click.Command):
    """A command whose own arguments end at ``--``; what stands behind is the user's, untouched."""

    command_pieces = "-- COMMAND [ARG]..."  # of its usage

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.command_pieces]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = split(args)
        ctx.obj = command
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, list(own))
        if ctx.args and not ctx.resilient_parsing:
            raise DashesMissing(_advice(ctx.command_path, own, ctx.args))
        return rest


class LaunchingCommand(CommandBehindDashes):
    """A command that starts the user's, where that can be done."""

    def invoke(self, ctx: click.Context) -> Any:
        from reprokit.run.platform_support import require_supported

        require_supported()
        return super().invoke(ctx)


class RelaunchingCommand(LaunchingCommand):
    """Likewise, where the command may be left out, as a file names one."""

    command_pieces = "[-- COMMAND [ARG]...]"


def split(args: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return what stands before the first ``--``, and the command behind it."""
    if DASHES not in args:
        return list(args), ()
    position = list(args).index(DASHES)
    return list(args[:position]), tuple(args[position + 1 :])


def _advice(path: str, own: Sequence[str], rest: Sequence[str]) -> str:
    import shlex

    before = list(own)[: len(own) - len(rest)]
    line = shlex.join([*path.split(), *before, DASHES, *rest])
    return f"put -- before the command to run: {line}"


def launching(cls: type[LaunchingCommand] = LaunchingCommand, **settings: Any) -> Decorator:
    """Declare a command that starts the user's; only words before -- are its own options."""
    return click.command(cls=cls, context_settings={"allow_interspersed_args": False}, **settings)


def planned(mode: str) -> Decorator:
    """Hand the options that are fields of a plan to a command as its plan, and the rest by themselves."""

    def added(function: Function) -> Function:
        @click.pass_obj
        @functools.wraps(function)
        def with_plan(behind_dashes: tuple[str, ...], /, **options: Any) -> Any:
            fields = {field: options.pop(field) for field in Plan.__struct_fields__ if field in options}
            if "patches" in fields:
                fields["patches"] = chosen_patches(fields["patches"], behind_dashes)
            plan = Plan(mode=mode, command=behind_dashes, working_directory=current_directory(), **fields)
            return function(plan, **options)

        return with_plan  # type: ignore[return-value]  # the same but for the options

    return added


def chosen_patches(words: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids and values that --patch stands for."""
    if not words:
        return ()
    from reprokit.run.run_patches import wanted

    return wanted(words, command, current_directory())
