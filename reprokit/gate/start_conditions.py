"""Varies the conditions under which a replay starts, and implements each variation on this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from reprokit.core.errors import UsageError
from reprokit.gate.results import FAILED, PASSED, TROUBLE, Case
from reprokit.model.plan import Plan, Varied
from reprokit.run.checkout_copy import CheckoutCopy, CopyTooLarge, checkout
from reprokit.run.kernel import Namespaces
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.seeds import in_words
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import ReplacedSeeds, scan

Name = Literal["working-directory", "host-name", "time-zone", "locale", "file-order", "cores", "later-hour"]
ALL: Final = "all"
LATER = 7 * 3600 + 23 * 60  # seconds, so that both hour and minute differ
HOSTS = ("localhost", "localhost.localdomain")  # names that resolve everywhere
FAR_EAST, FAR_WEST = ("Etc/GMT-14", "<+14>-14", 14 * 3600), ("Etc/GMT+12", "<-12>+12", -12 * 3600)
ZONES = Path("/usr/share/zoneinfo")
PLAIN = frozenset({"", "c", "posix", "c.utf8"})  # locales with the same collation
PATIENCE = 20.0  # timeout of `locale -a`, in seconds
TOGETHER = "together"


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


# Which of the varied conditions a replay depends on


class VariedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay under other conditions, and its comparison with the recording."""

    words: dict[str, str]  # by applied variation: what is different
    refused: dict[str, str]  # by impossible variation: why
    apart: tuple[str, ...] = ()  # variations that must be tried alone
    cases: Sequence[Case] = ()  # of the comparison; empty if no variation was possible

    @property
    def different(self) -> list[Case]:
        return [case for case in self.cases if case.outcome != PASSED]


RestoredSeeds = dict[str, ReplacedSeeds]  # by process: seeds that a replay replaced by the recorded ones


def restored_seeds(replay: RunDirectory) -> RestoredSeeds:
    """Return the seeds that a replay replaced, which hides a dependence of seeds on the environment."""
    return scan(replay, Normalizations()).replaced


def other_seeds(suite: str, usual_seeds: RestoredSeeds, seeds: RestoredSeeds) -> Iterator[Case]:
    """Yield a failed case for each process in which other seeds were replaced than in the usual replay."""
    for process, replaced in seeds.items():
        before = usual_seeds[process].count if process in usual_seeds else 0
        if replaced.count == before:
            continue
        message = (
            f"{replaced.count} seeds are not as recorded, {before} in the same surroundings; first {in_words(replaced)}"
        )
        yield Case(suite=suite, name=f"seeds of process {process}", outcome=FAILED, message=message)


def search(suite: str, names: Sequence[str], attempt: Callable[[Sequence[str]], VariedReplay]) -> Iterator[Case]:
    """Yield a case for each variation."""
    tried = attempt(names)
    for name, why in tried.refused.items():
        yield _refused(suite, name, why)
    yield from (_alone(suite, name, attempt([name])) for name in tried.apart)
    if not tried.different:
        yield from (Case(suite=suite, name=name, outcome=PASSED, right=text) for name, text in tried.words.items())
    elif len(tried.words) == 1:
        yield from (_alone(suite, name, tried) for name in tried.words)
    else:
        yield from _each(suite, tried, attempt)


def _each(suite: str, together: VariedReplay, attempt: Callable[[Sequence[str]], VariedReplay]) -> Iterator[Case]:
    outcomes = set()
    for name in together.words:
        case = _alone(suite, name, attempt([name]))
        outcomes.add(case.outcome)
        yield case
    if outcomes == {PASSED}:
        what = "no variation alone makes a difference, but all at once do, or the training does not always repeat"
        message = f"{what}: {_first(together.different)}"
        yield Case(suite=suite, name=TOGETHER, outcome=FAILED, message=message)


def _alone(suite: str, name: str, tried: VariedReplay) -> Case:
    if name in tried.refused:
        return _refused(suite, name, tried.refused[name])
    text = tried.words[name]
    if not tried.different:
        return Case(suite=suite, name=name, outcome=PASSED, right=text)
    is_known = any(case.outcome == FAILED for case in tried.different)
    what = "this variation makes the training differ" if is_known else "it cannot be told whether this matters"
    message = f"{what} ({text}): {_first(tried.different)}"
    return Case(suite=suite, name=name, outcome=FAILED if is_known else TROUBLE, message=message, right=text)


def _refused(suite: str, name: str, why: str) -> Case:
    return Case(suite=suite, name=name, outcome=TROUBLE, message=f"not varied: {why}")


def _first(different: Sequence[Case]) -> str:
    first = different[0]
    more = f"; and {len(different) - 1} more" if len(different) > 1 else ""
    return first.words + more
