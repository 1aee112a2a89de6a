r"""Reads and checks STUDY.toml, the description of a study.

name = "digits"
command = ["python", "train.py"]
directory = "."                 # from this file's own
runs = 16                       # of each setup: half as many pairs
data = ["data"]                 # likewise; files that are part of what is run
timeout = 3600.0                # seconds a run; none if it is left out
keep = "none"                   # "different" or "all": which run directories stay
machine = "cpu"                 # no accelerator: the hardware's part is held by that
ignore = ["log/*.txt"]          # what may differ in a pair, as verify --ignore and --ignore-console
ignore_console = ['id \w+']
[variables]                     # beside the environment's
OMP_NUM_THREADS = "1"
[engine]
kind = "local"                  # "dask", "slurm"
parallel = 1
[[setup]]
name = "C1"
entropy = "fresh"               # or "replayed": pairs of a recording and its replay
seeds = [0, 1, 2]               # one a pair, which both of its runs get
patches = ["auto"]
calendar = true                 # record the time of day, and tell it again in a replay
clock = false                   # replace process ids too
observe = true                  # false: nothing of reprokit is in the run
controls = ""                   # "software", "hardware", "both"; follows from the rest
command = ["python3.7", "old.py"]   # in the place of the study's, as are directory and variables
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Annotated, Any, Final, Literal

import msgspec

from reprokit import patches
from reprokit.core import toml_text
from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadStudy, ReprokitError
from reprokit.model.plan import name_of
from reprokit.study.results import PairPlace
from reprokit.verify.ignores import Ignores, declared

MAX_BYTES: Final = 1 << 20
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
AUTO: Final = "auto"
ENGINES: Final = ("local", "dask", "slurm")
# The seeds of cpu and gpu are those of the paper's replication package (github.com/nemo9cby/ICSE2022Rep), "twice each".
TEMPLATES: Final = ("plain", "cpu", "gpu")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Command = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=1000)]
Variables = dict[Annotated[str, msgspec.Meta(pattern=r"^[^=\x00]+\Z", max_length=200)], str]
Seed = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
Controls = Literal["", "software", "hardware", "both"]


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how pairs are executed."""

    kind: str = "local"  # one of ENGINES; studies that were made by others can still be shown
    parallel: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1  # pairs at the same time
    store: str = ""  # empty, but in studies of earlier versions, which can still be shown
    address: str = ""  # address of a scheduler
    options: dict[str, str | int | float | bool] = {}  # options of the engine


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way of running the training."""

    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    entropy: Literal["fresh", "replayed"] = "fresh"
    seeds: Annotated[tuple[Seed, ...], msgspec.Meta(max_length=10_000)] = ()
    patches: Annotated[tuple[Text, ...], msgspec.Meta(max_length=1000)] = ()
    calendar: bool = True
    clock: bool = False
    observe: bool = True
    controls: Controls = ""
    command: Command | None = None
    directory: Text | None = None
    variables: Variables = {}

    def __post_init__(self) -> None:
        if self.entropy == "replayed" and self.seeds:
            raise ValueError(f'setup {self.name}: seeds need entropy = "fresh", as a replay gives recorded entropy')
        if self.clock and self.entropy != "replayed":
            raise ValueError(f'setup {self.name}: clock = true needs entropy = "replayed"')
        if not self.observe and (self.entropy == "replayed" or self.seeds or self.patches):
            what = "seeds" if self.seeds else "patches" if self.patches else 'entropy = "replayed"'
            raise ValueError(f"setup {self.name}: observe = false leaves the run untouched and cannot go with {what}")


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """STUDY.toml"""

    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    command: Command | None = None
    directory: Text = "."
    runs: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 16
    data: tuple[Text, ...] = ()
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    keep: Literal["none", "different", "all"] = "none"
    machine: Literal["", "cpu"] = ""
    variables: Variables = {}
    ignore: tuple[Text, ...] = ()
    ignore_console: tuple[Text, ...] = ()
    engine: Engine = Engine()
    setup: Annotated[tuple[Setup, ...], msgspec.Meta(max_length=1000)] = ()

    @property
    def pairs(self) -> int:
        """Return the number of pairs of each setup."""
        return self.runs // 2

    def find(self, name: str) -> Setup:
        """Return the setup of this name; KeyError if there is none."""
        for setup in self.setup:
            if setup.name == name:
                return setup
        raise KeyError(name)

    def command_of(self, setup: Setup) -> tuple[str, ...]:
        """Return the command of a setup."""
        return setup.command or self.command or ()

    def seed_of(self, setup: Setup, pair: int) -> int | None:
        """Return the seed of a pair; the list of seeds is used in a cycle."""
        return setup.seeds[(pair - 1) % len(setup.seeds)] if setup.seeds else None

    def controls_of(self, setup: Setup) -> Controls:
        """Return which sources of variance the setup holds."""
        if setup.controls:
            return setup.controls
        software = bool(setup.seeds) or setup.entropy == "replayed"
        hardware = bool(setup.patches) or self.machine == "cpu"
        return "both" if software and hardware else "software" if software else "hardware" if hardware else ""


class LocatedStudy(msgspec.Struct, frozen=True):
    """A study, and the directory of its file."""

    study: Study
    base: Path  # directory that its paths are relative to
    digest: str  # "sha256:..." of the file


def from_template(name: str, command: tuple[str, ...]) -> str:
    """Return a study of a command, as TOML: the paper's setups for a CPU or a GPU, or plain ones."""
    template = Template((Path(__file__).parent / "templates" / f"{name}.toml").read_text(encoding="utf-8"))
    words = json.dumps(list(command), ensure_ascii=False)
    return template.substitute(name=json.dumps(name_of(command)), command=words)


def read(
    path: Path,
    *,
    runs: int | None = None,
    parallel: int | None = None,
    engine: str | None = None,
    ignores: Ignores | None = None,
) -> LocatedStudy:
    """Read a study; settings of the command line replace its own, and its ignores are added; raises BadStudy."""
    data = read_whole(path, MAX_BYTES, BadStudy, "'reprokit study init -- COMMAND' writes a study")
    try:
        content = toml_text.loads(data.decode())
        _set(content, runs, {"parallel": parallel, "kind": engine})
        study = _with_ignores(msgspec.convert(content, Study), path, ignores or Ignores())
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BadStudy(f"{path}: {_words(content if 'content' in locals() else {}, error)}") from None
    for problem in _problems(study, path.absolute().parent):
        raise BadStudy(f"{path}: {problem}")
    return LocatedStudy(study, path.absolute().parent, "sha256:" + hashlib.sha256(data).hexdigest())


def _set(content: dict[str, Any], runs: int | None, of_engine: dict[str, int | str | None]) -> None:
    if runs is not None:
        content["runs"] = runs
    given = {key: value for key, value in of_engine.items() if value is not None}
    if given and isinstance(engine := content.setdefault("engine", {}), dict):
        engine |= given


def _with_ignores(study: Study, path: Path, ignores: Ignores) -> Study:
    """Return the study with these rules beside its own; raises ValueError for what is no rule."""
    outputs, console = declared(study.ignore, study.ignore_console, str(path)).and_also(ignores).texts
    return msgspec.structs.replace(study, ignore=outputs, ignore_console=console)


def _words(content: dict[str, Any], error: Exception) -> str:
    """Return the error in one line, with the name of the setup if it has one."""
    text = " ".join(str(error).split())
    match = re.search(r"\$\.setup\[(\d+)\]", text)
    setups = content.get("setup")
    if match and isinstance(setups, list) and int(match[1]) < len(setups) and isinstance(setups[int(match[1])], dict):
        name = setups[int(match[1])].get("name")
        if isinstance(name, str) and f"setup {name}" not in text:
            return f"setup {name}: {text}"
    if content.get("runs") == 1:
        return f"runs = 1: a study needs pairs, so at least 2 runs of each setup ({text})"
    return text


def _problems(study: Study, base: Path) -> Iterator[str]:
    """Yield the problems that make a study invalid."""
    if study.engine.kind not in ENGINES:
        words = "others run what 'reprokit study tasks' prints"
        yield f"engine.kind is one of {', '.join(ENGINES)}, not {study.engine.kind}; {words}"
    if study.engine.store:
        yield "engine.store is no key any more; choose a directory that all machines reach with -o"
    if study.runs % 2:
        yield f"runs = {study.runs}: runs are made in pairs, so their number must be even"
    if study.timeout is not None and not math.isfinite(study.timeout):
        yield "timeout must be a number of seconds"
    names = [setup.name for setup in study.setup]
    if len(names) < 2:
        yield f"it has {'no setup' if not names else 'one setup'}; a study compares at least two [[setup]]s"
    folded = [name.casefold() for name in names]  # their file names must differ on every file system
    twice = next((name for name in names if folded.count(name.casefold()) > 1), None)
    if twice is not None:
        yield f"two setups have the name {twice}"
    for setup in study.setup:
        yield from (f"setup {setup.name}: {problem}" for problem in _problems_of(study, setup, base))


def _problems_of(study: Study, setup: Setup, base: Path) -> Iterator[str]:
    if not study.command_of(setup):
        yield 'there is no command; give command = ["python", "train.py"] in the study or the setup'
    directory = base / (setup.directory or study.directory)
    if not directory.is_dir():
        yield f"{directory} is no directory"
    if any("\0" in word for word in study.command_of(setup)):
        yield "a command cannot hold NUL characters"
    if any("\0" in value for value in (*setup.variables.values(), *study.variables.values())):
        yield "variables cannot hold NUL characters"
    words = [word for word in setup.patches if word != AUTO]
    if setup.seeds and any(word.partition("=")[0] == "seed" for word in words):
        yield "seeds and the patch seed cannot be together; leave one of them out"
    try:
        patches.select(setup.patches, lambda: None)
    except ReprokitError as error:
        yield str(error)


def differences(before: Study, now: Study) -> Iterator[str]:
    """Yield the keys in which two studies differ, by the names that STUDY.toml gives them."""
    left, right = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for key in left:
        if key != "setup" and left[key] != right[key]:
            yield from _inner(key, left[key], right[key])
    sides = [{one["name"]: one for one in side["setup"]} for side in (left, right)]
    for name in [*sides[0], *(name for name in sides[1] if name not in sides[0])]:
        one, other = sides[0].get(name), sides[1].get(name)
        if one is None or other is None:
            yield f"setup {name} ({'added' if one is None else 'removed'})"
        else:
            yield from (f"{key} of setup {name}" for key in one if one[key] != other[key])
    if list(sides[0]) != list(sides[1]) and set(sides[0]) == set(sides[1]):
        yield "the order of the setups"


def _inner(key: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{key}.{name}" for name in {**before, **now} if before.get(name) != now.get(name))
    else:
        yield key


# ---- the order of pairs: a machine that drifts favors no setup -------------------------------------------------------


def planned(study: Study) -> list[PairPlace]:
    """Return the order of pairs in rounds, in each of which every setup executes one pair.

    Rounds follow the rows of a Williams design: over as many rounds as there are setups (twice as many if their number
    is odd), each setup is equally often at every position and behind every other one. Fewer rounds approximate this.
    """
    names = [setup.name for setup in study.setup]
    rows = list(_balanced(len(names)))
    return [
        PairPlace(number + 1, names[position]) for number in range(study.pairs) for position in rows[number % len(rows)]
    ]


def _balanced(count: int) -> Iterator[list[int]]:
    """Yield the rows of a Williams design: 0, 1, n-1, 2, n-2, ..., shifted; for an odd number also reversed."""
    first = [0] * count
    for place in range(1, count):
        first[place] = (place + 1) // 2 if place % 2 else count - place // 2
    for shift in range(count):
        row = [(position + shift) % count for position in first]
        yield row
        if count % 2:
            yield row[::-1]
