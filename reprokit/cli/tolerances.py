"""The options --rtol, --atol and --ulp, which verify and diff share."""

from __future__ import annotations

import math

import click

from reprokit.cli.options import Decorator, replaced
from reprokit.core.errors import UsageError
from reprokit.core.tolerance import Tolerances, tolerances

_KINDS = {"rtol": "relative", "atol": "absolute", "ulp": "ulp"}
_HELP = {
    "rtol": "Relative tolerance, as in numpy.isclose: RTOL * abs(second value).",
    "atol": "Absolute tolerance, added to that of --rtol.",
    "ulp": "Accept up to this many representable numbers in between, whatever the distance.",
}


def options(quantities: tuple[str, ...]) -> Decorator:
    """Add the three options to a command, which is given what they ask for as `accepted`."""
    return replaced(
        _KINDS,
        lambda **texts: {"accepted": asked(quantities, **texts)},
        *(click.option(f"--{name}", multiple=True, metavar="[QUANTITY=]NUMBER", help=_HELP[name]) for name in _KINDS),
    )


def asked(quantities: tuple[str, ...], **texts: tuple[str, ...]) -> Tolerances:
    """Return what the options ask for; UsageError for what is no tolerance."""
    numbers: list[tuple[str, str | None, float]] = []
    for option, values in texts.items():
        for text in values:
            quantity, number = _parsed(option, text, quantities)
            if any(kind == _KINDS[option] and named == quantity for kind, named, _ in numbers):
                raise UsageError(f"--{option} was given twice for {quantity or 'everything'}; give it once")
            numbers.append((_KINDS[option], quantity, number))
    return tolerances(quantities, numbers)


def _parsed(option: str, text: str, quantities: tuple[str, ...]) -> tuple[str | None, float]:
    name, equals, number = text.rpartition("=")
    if equals and name not in quantities:
        raise UsageError(f"--{option} {text}: there is no quantity {name!r}; there are {', '.join(quantities)}")
    return name or None, _number(option, text, number, is_named=bool(equals))


def _number(option: str, text: str, number: str, *, is_named: bool) -> float:
    try:
        value = int(number) if option == "ulp" else float(number)
    except ValueError:
        value = -1
    is_any = option == "atol" and is_named and value == math.inf
    if not (0 <= value < math.inf or is_any) or (option == "ulp" and value >= 1 << 64):
        range_in_words = "a whole number from 0 on" if option == "ulp" else "a finite number from 0 on"
        raise UsageError(f"--{option} {text}: {number!r} is not {range_in_words}")
    return value
