"""The plan: what a run must do, as frozen data; the one thing handed to the child."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reprokit.model.run import AUTOMATIC, CaptureAsked, Continued, ProfilingFacts, RecipeUsed, ReplayOf, StartFiles
from reprokit.model.states import ON, WITH_GRADIENTS, Switch, SwitchedPart

if TYPE_CHECKING:
    from reprokit.model.question import Question

RECORD, REPLAY, RUN = "record", "replay", "run"
NOTE = "note"  # an action of captures: the first bad step is named at the end, and nothing is done in the training
POLICIES = ("strict", "derive", "live")
AGENT_PLAN_FORMAT = 1
KEEP_OUTPUTS = KEEP_FOUND = 64 << 20


def past_tense(mode: str) -> str:
    """Return what is done to entropy in this mode, in words."""
    return "replayed" if mode == REPLAY else "recorded"


def name_of(command: tuple[str, ...]) -> str:
    """Return a name for a command that has none: that of its script."""
    for word in command:
        last = Path(word).name
        if last.endswith((".py", ".sh")):
            return re.sub(r"[^A-Za-z0-9._-]", "-", Path(last).stem)[:64].lstrip("._-") or "training"
    return "training"


def new_key() -> bytes:
    """Return a fresh profile's key, from which derived bytes come."""
    return os.urandom(32)


def key_of_seed(text: str) -> bytes:
    """Return the key that a user's text stands for: the same text gives the same entropy in every run."""
    return hashlib.sha256(b"reprokit-seed-1\0" + text.encode("utf-8", "surrogateescape")).digest()


class ReplayStart(Enum):
    """The files from which a replay starts, and what becomes of its outputs."""

    HERE = auto()  # whatever is there
    FOUND = auto()  # those that its recording found; then the directory has the replay's outputs
    FOUND_AND_BACK = auto()  # likewise; then everything is as it was before


class RedoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A captured step to re-execute as the training's first step."""

    mode: str  # "reproduce", "minimize" or "explain"
    snapshot: Path
    result: Path
    progress: Path
    trials: tuple[Any, ...] = ()  # of a search that goes on
    in_place: bool = False  # not at the first step: where a replay of the recording makes it


class CapturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """When the state before a step is captured, and what happens then."""

    action: str = "stop"  # or "skip", "rollback" or "note"
    conditions: tuple[str, ...] = ()  # beside gradients and losses that are not finite
    max_snapshots: int = 3
    max_bytes: int | None = None  # of one snapshot
    fallback: Path | None = None  # where snapshots go for which the run's disk has no room
    rollback_every: int = 100  # steps between two states to go back to
    hook: str = ""  # a command to run when a snapshot has appeared
    redo: RedoPlan | None = None
    take: int | None = None  # in a replay: the one step that is captured, whatever is in it
    take_from: int = 0  # the first step that this replay computes

    def fallback_of(self, run: Path) -> Path | None:
        """Return the directory of the run's snapshots that are not in it."""
        return None if self.fallback is None else self.fallback / run.name

    def as_asked(self) -> CaptureAsked:
        """Return what run.json says of it, and a replay takes over."""
        return msgspec.convert(self, CaptureAsked, from_attributes=True)

    def for_agent(self, directory: Path, library: Path) -> dict[str, Any]:
        """Return the part that agents must know."""
        return {
            **msgspec.to_builtins(self.as_asked()),
            "fallback": None if self.fallback is None else str(self.fallback),
            "directory": str(directory),
            "library": str(library),
            "take": self.take,
            "take_from": self.take_from,
            "redo": None if self.redo is None else msgspec.to_builtins(self.redo, enc_hook=str),
        }


class RulesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that judge the training while it runs, and the action on an alarm."""

    specs: tuple[str, ...]  # ID[=PARAM=VALUE,...] or FILE.py[:CLASS]
    stops: bool = False  # the training
    command: str = ""  # that is run for each alarm


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that the shim changes in a replay, to see whether they matter."""

    backwards: bool = False  # listings of directories, from their end
    later: int = 0  # seconds that are added to the time of day
    processors: int = 0  # how many there are; 0: as many as there are
    host: str = ""  # the host's name; empty: the real one


class RecordingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a recording was asked that no replay repeats, and a run that goes on from it does: fields of its plan."""

    capture: CapturePlan | None = None
    keep_outputs: int = KEEP_OUTPUTS
    keep_found: int = KEEP_FOUND
    prove: bool = False
    push: str = ""
    rules: RulesPlan | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what to execute, where, and what shim and agent do in it."""

    mode: str
    command: tuple[str, ...]
    working_directory: Path
    output: Path | None = None  # None: a directory of its own under .reprokit
    overwrite: bool = False
    policy: str = "derive"
    key: bytes = msgspec.field(default_factory=new_key)
    record_crypto: bool = False
    keyed: bool = False  # answer every request from the key, identity and a counter
    calendar: bool = True  # record and replay the time of day
    clock: bool = False  # stand in for process ids, and record the time of day for all threads
    supervisor: bool = True  # answer what the shim cannot reach, by seccomp user notification
    hide_rdrand: bool = False  # hide RDRAND and RDSEED by CPUID faulting
    orders: bool = True  # record who came first, of threads and processes
    trail: Switch = ON  # digest what each step was made of
    trail_every: int = 1  # of so many steps of PyTorch the trail takes one; AUTOMATIC: as many as is measured
    trail_strides: Mapping[str, Mapping[str, int]] = {}  # replay: those that were measured, by process and optimizer
    batch_digests: bool = False  # digest batches of tf.data, for the ledger
    console: bool = True  # keep what the command prints
    prove: bool = False  # run strace beside, and account for every request to the kernel
    keep_outputs: int = KEEP_OUTPUTS  # bytes of outputs of which copies are kept in the run directory
    keep_found: int = KEEP_FOUND  # bytes of files that were there before and that a recording changes, likewise
    push: str = ""  # URL to which another process writes what the run saves
    data: tuple[str, ...] = ()  # files and directories that are part of what the run is made of
    profile: Path | None = None  # replay: the entropy directory of the recording
    recorded_at: int = 0  # replay: when the recorded command started, in nanoseconds since 1970
    tells_progress: bool = False  # replay: say on stderr how many of the recorded steps are made
    replay_of: ReplayOf | None = None
    continues: Continued | None = None  # replay: the recording, if the run goes on behind its end and is one itself
    start: ReplayStart = ReplayStart.HERE
    started_from: StartFiles | None = None  # where the caller has set files aside itself
    force: bool = False  # replay: also where the recorded seeds cannot be read
    variables: Mapping[str, str] | None = None  # replay: the kept variables as they were
    processors: int | None = None  # replay: how many the command may use, where it may use more than it could
    pools: Mapping[str, int] = msgspec.field(default_factory=dict)  # replay: sizes that only the agent can set
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)  # replay: of objects, by address
    environment_size: int | None = None  # replay: what the recording had
    own_variables: Mapping[str, str] = msgspec.field(default_factory=dict)  # set for the command by reprokit itself
    patches: tuple[str, ...] = ()  # ids of patches, "id" or "id=value"
    profiling: ProfilingFacts | None = None  # what is collected beside a recording
    capture: CapturePlan | None = None
    observed: bool = False  # run: take down metrics, weights, predictions and outputs, as recording does
    untouched: bool = False  # run: with nothing of reprokit in it; only its end and its outputs are taken down
    aside: tuple[Path, ...] = ()  # directories in which nothing is an output of the command
    timeout: float | None = None  # seconds after which the command is ended
    recipe: RecipeUsed | None = None  # from which a part of this plan comes
    changed: tuple[str, ...] = ()  # replay: what is known to be different before the start
    is_scratch: bool = False  # whether the run directory is removed once it is read
    question: Question | None = None  # what its agents keep of it, beside what each run keeps
    rules: RulesPlan | None = None
    varied: Varied | None = None  # replay: what is made different on purpose
    fresh: Path | None = None  # a copy that was made for this run alone, with the working directory in it
    moved: tuple[Path, Path] | None = None  # replay: a directory of the recording, and where it stands in this run

    @property
    def kind(self) -> str:
        """Return what the run directory becomes."""
        return RECORD if self.continues is not None else self.mode

    @property
    def switched_off(self) -> list[SwitchedPart]:
        """Return which parts of a recording or replay are not kept, as the user switched them off.

        A replay that is asked something goes without orders and calendar where its question needs that.
        """
        is_asked = self.question is not None and self.kind == REPLAY
        has_calendar = self.calendar or self.clock or (self.varied is not None and self.varied.later != 0)
        kept: dict[SwitchedPart, bool] = {
            "trail": self.trail.is_on,
            "console": self.console,
            "orders": self.orders or is_asked,
            "calendar": has_calendar or is_asked,
            "supervisor": self.supervisor,
        }
        return [part for part, is_kept in kept.items() if not is_kept and self.mode != RUN]

    def __repr__(self) -> str:
        return f"<Plan to {self.mode} {self.command}>"  # without the key, which is secret

    @property
    def captures(self) -> bool:
        """Whether steps are captured in the training, and not only noted at the end of the run."""
        return self.capture is not None and self.capture.action != NOTE

    def recording_options(self) -> dict[str, Any]:
        """Return options.json. It is apart from plan.json, as agents of recording and replay must read as much."""
        return dict(msgspec.to_builtins(msgspec.convert(self, RecordingOptions, from_attributes=True), enc_hook=str))

    def _stride_for_agent(self) -> int | str:
        if not self.trail.is_on or self.trail_every == 1:
            return 0
        return "auto" if self.trail_every == AUTOMATIC else self.trail_every

    def for_agent(
        self, shim: Path, trail: Path, snapshots: Path, patches: Sequence[Mapping[str, str]] = ()
    ) -> dict[str, Any]:
        """Return plan.json, all that the agent needs; patches are those that agents apply."""
        asked = ("functions", "operators", "steps", "seconds", "confirm", "racing_only")
        optional = {
            "trail": str(trail) if self.trail.is_on else "",
            "trail_gradients": "in graphs" if self.trail.code == WITH_GRADIENTS.code else "",
            "trail_every": self._stride_for_agent(),
            "trail_strides": self.trail_strides if self.trail.is_on else {},
            "batch_digests": self.batch_digests and self.trail.is_on,
            "pools": dict(self.pools),
            "versions": dict(self.versions),
            "patches": list(patches),
            "profiling": self.profiling and {name: getattr(self.profiling, name) for name in asked},
            "capture": self.capture.for_agent(snapshots, trail) if self.capture and self.captures else None,
            "question": self.question and msgspec.to_builtins(self.question),
            "no_orders": not self.orders,
            "observed": self.observed,
            "quiet": self.mode == RUN and not self.observed,
        }
        set_options = {name: value for name, value in optional.items() if value}
        return {"format": AGENT_PLAN_FORMAT, "mode": self.mode, "shim": str(shim), "library": str(trail), **set_options}
