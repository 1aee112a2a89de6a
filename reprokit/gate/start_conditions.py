"""Varies the conditions under which a replay starts, and implements each variation on this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from reprokit.core.errors import UsageError
from reprokit.model.plan import Plan, Varied
from reprokit.run.checkout_copy import CheckoutCopy, CopyTooLarge, checkout
from reprokit.run.kernel import Namespaces

Name = Literal["working-directory", "host-name", "time-zone", "locale", "file-order", "cores", "later-hour"]
ALL: Final = "all"

LATER = 7 * 3600 + 23 * 60  # seconds, so that both hour and minute differ
HOSTS = ("localhost", "localhost.localdomain")  # names that resolve everywhere
FAR_EAST, FAR_WEST = ("Etc/GMT-14", "<+14>-14", 14 * 3600), ("Etc/GMT+12", "<-12>+12", -12 * 3600)
ZONES = Path("/usr/share/zoneinfo")
PLAIN = frozenset({"", "c", "posix", "c.utf8"})  # locales with the same collation
PATIENCE = 20.0  # timeout of `locale -a`, in seconds


class CannotVary(Exception):
    """Says why this machine does not allow a variation."""


class ReplaySurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """A replay, and the conditions that it starts under."""

    plan: Plan
    elsewhere: Namespaces = Namespaces()
    directory: Path | None = None  # value of PWD
    words: dict[str, str] = {}  # by variation: what is different
    refused: dict[str, str] = {}  # by impossible variation: why
    apart: tuple[str, ...] = ()  # variations that must be tried alone

    @property
    def is_copied(self) -> bool:
        """Return whether files were copied to another directory than in the recording."""
        return self.plan.moved is not None and self.elsewhere.bound is None

    def enter(self) -> None:
        """Enter the conditions, in the launcher's process before anything else."""
        self.elsewhere.enter()
        if self.directory is not None and "PWD" in os.environ:
            os.environ["PWD"] = str(self.directory)

    def with_shim_values(self, **changes: object) -> ReplaySurroundings:
        """Return these conditions with further values that the shim changes."""
        varied = replace(self.plan.varied or Varied(), **changes)
        return replace(self, plan=replace(self.plan, varied=varied))

    def with_variable(self, name: str, value: str) -> ReplaySurroundings:
        """Return these conditions with another environment variable."""
        return replace(self, plan=replace(self.plan, variables={**(self.plan.variables or {}), name: value}))

    def variable(self, name: str) -> str:
        """Return the recording's value of an environment variable."""
        return (self.plan.variables or {}).get(name, "")


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return these variations in a fixed order, each once."""
    wanted = set(names)
    return tuple(name for name in VARIATIONS if name in wanted or ALL in wanted)


def require_known(names: Iterable[str], where: str) -> None:
    """Raise UsageError for the name of an unknown variation."""
    unknown = next((name for name in names if name != ALL and name not in VARIATIONS), None)
    if unknown is not None:
        raise UsageError(f"{where} knows no {unknown!r}; it knows {ALL}, {', '.join(VARIATIONS)}")


def vary(plan: Plan, names: Iterable[str], place: Path) -> ReplaySurroundings:
    """Return the conditions with all possible variations of these; `place` is an empty directory for their files."""
    surroundings = ReplaySurroundings(plan=plan)
    apart: tuple[str, ...] = ()
    words, refused = {}, {}
    for name in names:
        if name == "file-order" and surroundings.is_copied:
            apart = (name,)  # files of a copy may already be listed in another order
            continue
        try:
            surroundings, words[name] = VARIATIONS[name](surroundings, place)
        except CannotVary as error:
            refused[name] = str(error)
    descriptions = tuple(f"{name} on purpose: {text}" for name, text in words.items())
    plan = replace(surroundings.plan, changed=(*surroundings.plan.changed, *descriptions))
    return replace(surroundings, plan=plan, words=words, refused=refused, apart=apart)


def _working_directory(now: ReplaySurroundings, place: Path) -> tuple[ReplaySurroundings, str]:
    """Move the checkout to another directory, by a private mount or as a copy."""
    before = now.plan.working_directory.resolve()
    root = checkout(before)
    target = place / f"{root.name or 'root'}-elsewhere"
    target.mkdir()
    after = target / before.relative_to(root)
    plan = replace(now.plan, working_directory=after, moved=(root, target))
    moved = replace(now, plan=plan, directory=after)
    bound = replace(now.elsewhere, bound=(root, target))
    refused = bound.refused()
    if not refused:
        return replace(moved, elsewhere=bound), f"{after}, where {root} is mounted too"
    copy = CheckoutCopy(root, target)
    try:
        copy.make()
    except (CopyTooLarge, OSError) as error:
        raise CannotVary(f"{root} can be neither mounted in another place ({refused}) nor copied: {error}") from None
    linked = f", {copy.links} large, ignored or foreign ones linked" if copy.links else ""
    return moved, f"{after}, a copy ({copy.files} files{linked})"


def _host_name(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    """Change the host name in a namespace, or through the shim if namespaces are not allowed."""
    name = next(name for name in HOSTS if name != os.uname().nodename)
    named = replace(now.elsewhere, host=name)
    if not named.refused():
        return replace(now, elsewhere=named), name
    return now.with_shim_values(host=name), f"{name}, as the C library tells it"


def _time_zone(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    name, rule, offset = FAR_EAST
    if time.localtime().tm_gmtoff == offset or now.variable("TZ") in (name, rule):
        name, rule, offset = FAR_WEST
    zone = name if (ZONES / name).is_file() else rule
    return now.with_variable("TZ", zone), f"{zone} ({offset // 3600:+d} hours from UTC)"


def _locale(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    before = now.variable("LC_ALL") or now.variable("LANG")
    name = other_locale(before, installed_locales())
    if name is None:
        raise CannotVary("the system has no other locale; install one (the package locales, or glibc-langpack-de)")
    weak = "; it orders letters in the same way, as no other language is installed" if _is_plain(name, before) else ""
    return now.with_variable("LC_ALL", name), f"{name} in place of {before or 'C'}{weak}"


def _is_plain(*names: str) -> bool:
    return {_canonical(name) for name in names} <= PLAIN


def installed_locales() -> list[str]:
    """Return the locales of the C library and of the directories in LOCPATH."""
    names = ["C"]
    with suppress(OSError, subprocess.SubprocessError, UnicodeError):
        done = subprocess.run(["locale", "-a"], capture_output=True, text=True, timeout=PATIENCE, check=True)
        names += done.stdout.split()
    for directory in filter(None, os.environ.get("LOCPATH", "").split(os.pathsep)):
        with suppress(OSError):
            names += [path.name for path in Path(directory).iterdir() if path.is_dir()]
    return names


def other_locale(before: str, installed: Iterable[str]) -> str | None:
    """Return a locale of another language in UTF-8 if there is one, else of another character set."""
    names = sorted(installed)
    language = before.partition("_")[0]
    foreign = [name for name in names if _canonical(name) not in PLAIN and name.partition("_")[0] != language]
    candidates = [*(name for name in foreign if _canonical(name).endswith(".utf8")), *foreign, *names]
    same = {"c", "posix", ""} if _canonical(before) in ("", "c", "posix") else {_canonical(before)}
    return next((name for name in candidates if _canonical(name) not in same), None)


def _canonical(name: str) -> str:
    """Return a locale's name as `locale -a` writes it."""
    return name.lower().replace("utf-8", "utf8")


def _file_order(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    return now.with_shim_values(backwards=True), "listings of directories begin at their end"


def _cores(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        raise CannotVary("only one processor is free, so that there cannot be fewer")
    count = usable // 2
    fewer_processors = now.with_shim_values(processors=count)
    return replace(fewer_processors, plan=replace(fewer_processors.plan, processors=count)), f"{count} of {usable}"


def _later_hour(now: ReplaySurroundings, _place: Path) -> tuple[ReplaySurroundings, str]:
    hours, minutes = divmod(LATER // 60, 60)
    now = replace(now, plan=replace(now.plan, calendar=False))  # else it would be told the recorded hour
    clock_words = "; times that were recorded (--clock) are given again" if now.plan.clock else ""
    return now.with_shim_values(later=LATER), f"{hours} hours {minutes} minutes later{clock_words}"


VARIATIONS: Final[dict[str, Callable[[ReplaySurroundings, Path], tuple[ReplaySurroundings, str]]]] = {
    "working-directory": _working_directory,
    "host-name": _host_name,
    "time-zone": _time_zone,
    "locale": _locale,
    "file-order": _file_order,
    "cores": _cores,
    "later-hour": _later_hour,
}
