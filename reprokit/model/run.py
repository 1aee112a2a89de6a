"""Defines run.json: what was executed, how, and how it ended; profile/system-calls.json. See docs/format.md."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from reprokit.model.run_warning import RunWarning
from reprokit.model.states import ON, Loading, Switch, SwitchedPart, Uncovered

FORMAT, OLDEST = 12, 11  # of run.json: what is written, and the oldest that is read
MAX_STRIDE = 1 << 16  # steps of which the trail has one
AUTOMATIC = 0  # a stride that is measured
MAX_NAMED = 3  # programs in a sentence
RUNNING: Final = "running"
FINISHED: Final = "finished"
FAILED: Final = "failed-to-start"
NO_END: Final = "did not come to its end: its launcher died, or could not write the end"
Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
Time = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z)?$")]


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


def timestamp(time: str) -> float | None:
    """Return a time of run.json in seconds since 1970; None if it is empty or invalid."""
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


class Fidelity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a replay answered requests for entropy: numbers of requests and bytes by kind of match."""

    exact: int = 0
    moved: int = 0
    derived: int = 0
    live: int = 0
    exact_bytes: int = 0
    moved_bytes: int = 0
    derived_bytes: int = 0
    live_bytes: int = 0
    unused: int = 0  # recorded events that no request was answered with
    clock: int = 0  # reads of the clock answered as recorded
    clock_past: int = 0  # reads beyond the recorded ones
    orders: int = 0  # turns of threads and processes repeated in their recorded order
    orders_moved: int = 0  # turns in another order
    orders_unused: int = 0  # recorded turns that did not occur

    @property
    def kinds(self) -> dict[str, int]:
        """Return the number of requests by the way they were answered, and of unused events."""
        return {name: getattr(self, name) for name in ("exact", "moved", "derived", "live", "unused")}

    @property
    def requests(self) -> int:
        return self.exact + self.moved + self.derived + self.live

    @property
    def is_whole(self) -> bool:
        """Whether each request was answered by the recorded event of its place, and none was left."""
        return not (self.moved or self.derived or self.live or self.unused)

    @property
    def words(self) -> str:
        """Return how requests were answered, in one line."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        return f"{counts}: {self.rearrangement}" if self.rearrangement else counts

    @property
    def rearrangement(self) -> str:
        """Return what moved requests mean if all recorded bytes, and no others, were used; else empty."""
        if not self.moved or self.derived or self.live or self.unused:
            return ""
        return "all that was recorded was given again, some of it to other threads (as of a pool) or in another order"

    @property
    def orders_in_words(self) -> str:
        """Return how turns were repeated, in one line; empty if there were none."""
        moved = f", {self.orders_moved:,} moved" if self.orders_moved else ""
        unused = f", {self.orders_unused:,} unused" if self.orders_unused else ""
        return f"{self.orders:,} exact{moved}{unused}" if self.orders or moved or unused else ""


class ProfileFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a recorded run's random profile, and the digest that seals it."""

    digest: Digest  # of names and contents of the entropy files
    files: int = 0
    size: int = 0  # bytes on disk
    processes: int = 0
    threads: int = 0
    events: int = 0
    entropy: int = 0  # bytes given to the training
    withheld: int = 0  # requests of cryptographic libraries, whose bytes are not recorded
    sealed: bool = True  # False: a process of the run outlived it


class ReplayOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recording that a replay replayed."""

    path: str
    run_id: str
    profile_digest: str


class ReachedKeyframe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process had made by the keyframe from which a run goes on."""

    series: dict[str, int] = {}  # steps of each series of the trail
    lines: int  # that it had written to metrics.jsonl
    numbers: int  # bytes of its file of numbers


class Continued(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recording from which another one goes on, with all of its entropy (reprokit continue)."""

    path: str
    run_id: str
    profile_digest: str
    recorded_at: int  # when the first recording of the chain began, in nanoseconds since 1970; 0: unknown
    step: int = (
        0  # that begins with the keyframe to which it was fast-forwarded; 0: it was replayed from its first step
    )
    processes: dict[str, ReachedKeyframe] = {}  # that have the keyframe
    printed: dict[str, int] = {}  # bytes of records in each file of console/ until then
    moment: int = 0  # when the state of the keyframe was read, in nanoseconds since 1970; 0: unknown
    pids: list[int] = []  # of the processes that had printed until then


class OutlivingProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of which processes still ran when the run was closed."""

    name: str  # as the kernel has it; empty if unknown
    processes: Annotated[int, msgspec.Meta(ge=1)] = 1


class RecipeUsed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recipe with which a run was recorded."""

    path: str  # as given by the user
    digest: Digest  # over its bytes


InPlaceReason = Literal["not-kept", "not-movable", "not-empty", "being-written", "in-use", "unseen"]
_IN_PLACE: dict[InPlaceReason, str] = {
    "not-kept": "what it held before was not kept",
    "not-movable": "it cannot be moved",
    "not-empty": "it holds other files",
    "being-written": "another program writes it",
    "in-use": "another replay or question uses it",
    "unseen": "nothing was seen to write it",
}


class InPlaceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or directory that a replay did not find as its recording had."""

    path: str  # as in outputs.json
    reason: InPlaceReason

    @property
    def words(self) -> str:
        """Return the path and the reason."""
        return f"{self.path} ({_IN_PLACE[self.reason]})"


class StartFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files from which a replay started."""

    here: bool = False  # whatever was there
    restored: list[str] = []  # what the recording had found and changed, as in outputs.json
    in_place: list[InPlaceFile] = []  # the first that could not be set aside or restored
    in_place_more: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of further ones


class SealedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and digest of a file that no longer changes, so that readers notice damage."""

    size: int
    digest: Digest  # over its bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of record --prove: the requests to the kernel that strace saw."""

    requests: int  # to the kernel, by every process of the run
    accounted: int  # requests made or answered by shim and supervisor
    unaccounted: list[str] = []  # one line for each other request
    without_requests: list[str] = []  # sources that need no request, and were not recorded
    problem: str = ""  # why the proof is missing or incomplete


class OutOfReach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that could not reach the run directory, and whose requests were not answered."""

    identity: str
    reason: Annotated[
        str, msgspec.Meta(pattern="^(plan|file|shim|unseen)$")
    ]  # what it could not read, write, load; or it was not seen


class ProfilingFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile run collects (reprokit profile)."""

    functions: bool = True  # calls of functions, by cProfile
    operators: bool = True  # the frameworks' operators, with their inputs' shapes and places
    system_calls: Switch = ON  # by strace
    steps: int | None = None  # optimizer steps after which the training is ended
    seconds: float | None = None  # seconds after which it is ended
    confirm: int = 0  # how often each distinct operator call is re-executed
    racing_only: bool = False  # whether only operators of TensorFlow in which threads may race are re-executed
    ended: str = ""  # the bound at which the training was ended; empty if it ended by itself


class SystemCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """System calls of one process, as strace saw them."""

    call: str
    source: str  # the file that was opened, or "getrandom"
    program: str = ""  # path of the program that the process executed
    pid: Annotated[int, msgspec.Meta(ge=0)] = 0
    calls: Annotated[int, msgspec.Meta(ge=0)] = 0


class SystemCallsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """profile/system-calls.json"""

    format: int = FORMAT
    calls: list[SystemCall] = msgspec.field(default_factory=list)
    left_out: int = 0  # calls of callers beyond the limit
    problem: str = ""


class CaptureAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options for capturing the state before a failing step (--on-nan)."""

    action: Annotated[str, msgspec.Meta(pattern="^(stop|skip|rollback|note)$")] = "stop"
    conditions: list[str] = []
    max_snapshots: Annotated[int, msgspec.Meta(ge=1)] = 3
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rollback_every: Annotated[int, msgspec.Meta(ge=1)] = 100


_NEEDS = "^needs-(tensorflow-2|keras-on-tensorflow|other-framework|capture|jit|one-device)$"


class CaptureUnavailable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework whose steps could not be captured as requested."""

    framework: str
    version: str
    reason: Annotated[str, msgspec.Meta(pattern=_NEEDS)]
    processes: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of processes that imported it


class SnapshotFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot that the run saved."""

    name: str  # of its directory below snapshots/
    directory: str = ""  # its directory if saved by --snapshot-fallback
    process: str = ""
    step: int = 0
    trigger: str = ""  # in words
    digest: str = ""  # "sha256:..." over all but paths, times, host and process ids
    problem: str = ""  # why it cannot be read
    began_here: bool | None = None  # whether this rank is the one that failed first; None if unknown


class PatchApplied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A patch that was requested, and its final state."""

    id: str
    value: str = ""
    state: Annotated[str, msgspec.Meta(pattern="^(applied|not-applied|refused)$")] = "applied"
    why: str = ""  # in words; may be empty
    processes: int = 0  # number of Python processes that applied it; 0 if it only sets variables
    warnings: list[str] = []  # reported before the start
    variables: dict[str, str] = {}  # set for the command

    @property
    def text(self) -> str:
        """Return the patch as a user gives it: "id" or "id=value"."""
        return f"{self.id}={self.value}" if self.value else self.id


class SignalSent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal that one process of the run sent to another to end it."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]
    target: Annotated[int, msgspec.Meta(ge=1)]  # id of a process, or of a group of them
    group: bool = False


class ProcessKilled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that a signal ended, whoever sent it: its parent, or the launcher, saw so."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]
    process: Annotated[int, msgspec.Meta(ge=1)]


class Bundled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """States that the run directory was unpacked from a bundle (reprokit bundle)."""

    entropy: bool  # whether the bundle held the random profile
    original: Digest  # of run.json as it was recorded


class RunFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of run.json."""

    format: int = FORMAT
    run_id: str
    kind: Annotated[str, msgspec.Meta(pattern="^(record|replay|run)$")]
    reprokit: str  # version that wrote the run
    command: list[str]
    working_directory: str
    fresh: str = ""  # the fresh copy that was made for this run, with the working directory in it
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    policy: Annotated[str, msgspec.Meta(pattern="^(strict|derive|live)$")] = "derive"
    key: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = (
        ""  # hex, 32 bytes: from which derived bytes come; secret
    )
    status: Annotated[str, msgspec.Meta(pattern="^(running|finished|failed-to-start)$")] = RUNNING
    exit_code: Annotated[int, msgspec.Meta(le=255)] | None = None
    signal: Annotated[str, msgspec.Meta(pattern="^SIG[A-Z0-9+-]{1,16}$")] | None = None
    started: Time = ""  # ISO 8601, UTC
    ended: Time | None = None
    duration: float | None = None  # seconds; shown, never compared
    launcher_pid: int = 0
    launcher_started: float = 0.0  # with the pid it identifies a process of the host
    host: str = ""
    address_randomization: Switch | None = None
    environment_size: int = 0  # bytes of the environment handed to the command
    keyed: bool = False  # requests were answered from the key, and only counted
    calendar: bool = False  # the time of day was recorded
    clock: bool = False  # process ids were replaced, and the time of day was recorded for all threads
    include_crypto: bool = False  # bytes given to cryptographic libraries were recorded
    hide_rdrand: bool = False  # RDRAND and RDSEED were hidden from programs
    supervisor: Switch | None = None
    trail: Switch | None = None
    switched_off: list[SwitchedPart] = msgspec.field(default_factory=list)  # by the user, in a recording or replay
    # The trail has one of so many steps of PyTorch; AUTOMATIC: as its series say.
    trail_every: Annotated[int, msgspec.Meta(ge=0, le=MAX_STRIDE)] = 1
    batch_digests: bool = False  # whether the ledger holds digests of tf.data batches
    shim: Loading | None = None
    agent: Loading | None = None
    replay_of: ReplayOf | None = None
    continues: Continued | None = None
    profile: ProfileFacts | None = None
    fidelity: Fidelity | None = None
    start: StartFiles | None = None  # of a replay
    metrics: SealedFile | None = None  # metrics.jsonl at the end of the run
    numbers: SealedFile | None = None  # the files of numbers/ at the end of the run: names and contents
    trails: SealedFile | None = None  # the files of trail/ at the end of the run: names and contents
    samples: SealedFile | None = None  # the files of samples/, likewise
    keyframes: SealedFile | None = None  # the indexes of keyframes/, likewise
    evaluation: SealedFile | None = None  # the files of evaluation/, likewise
    console: SealedFile | None = None  # the files of console/, likewise; none where what is printed was not kept
    environment: SealedFile | None = None  # environment.json, likewise
    outputs: SealedFile | None = None  # outputs.json, likewise
    signals: list[SignalSent] = msgspec.field(default_factory=list)
    killed: list[ProcessKilled] = msgspec.field(default_factory=list)
    proof: Proof | None = None  # --prove
    patches: list[PatchApplied] = msgspec.field(default_factory=list)
    profiling: ProfilingFacts | None = None  # reprokit profile
    recipe: RecipeUsed | None = None  # --recipe
    bundled: Bundled | None = None  # only if it was unpacked from a bundle
    capture: CaptureAsked | None = None  # --on-nan
    captures_unavailable: list[CaptureUnavailable] = msgspec.field(default_factory=list)
    snapshots: list[SnapshotFacts] = msgspec.field(default_factory=list)
    outliving: list[OutlivingProgram] = msgspec.field(default_factory=list)  # processes that outlived the command
    out_of_reach: list[OutOfReach] = msgspec.field(default_factory=list)  # programs that were not recorded
    uncovered: list[Uncovered] = msgspec.field(default_factory=list)
    changed: list[str] = msgspec.field(default_factory=list)  # replay: differences from the recording
    warnings: list[RunWarning] = msgspec.field(default_factory=list)

    @property
    def out_of_reach_in_words(self) -> str:
        """Return a sentence on the programs that were not recorded; empty if there are none."""
        names = list(dict.fromkeys(program.identity for program in self.out_of_reach))
        if not names:
            return ""
        who, whose = (f"process {names[0]}", "its") if len(names) == 1 else (f"{len(names)} processes", "their")
        first = "" if len(names) == 1 else f", first {names[0]}"
        why = "another user or root, a read-only mount, or memory that may not be read"
        return f"{who} had neither shim nor supervisor ({why}): {whose} requests and files are not recorded{first}"

    @property
    def outliving_processes(self) -> int:
        """Return how many processes still ran when the run was closed, as far as they are known."""
        return sum(program.processes for program in self.outliving)

    @property
    def outliving_in_words(self) -> str:
        """Return a sentence on the processes that outlived the command; empty if there are none."""
        count = self.outliving_processes
        names = ", ".join(program.name for program in self.outliving[:MAX_NAMED] if program.name)
        which = f" ({names}{', ...' if len(self.outliving) > MAX_NAMED else ''})" if names else ""
        who = f"1 process{which} outlived" if count == 1 else f"{count:,} processes{which} outlived"
        return f"{who} the command: what was written after the run was closed is not compared" if count else ""

    @property
    def unsupervised(self) -> str:
        """Return what a recording or replay without a supervisor could not see; empty if supervised."""
        if self.kind == "run" or self.supervisor is None or self.supervisor.is_on:
            return ""
        unseen = "what static programs and those of another libc asked for, and programs in namespaces of their own, "
        unseen += "is neither recorded nor seen"
        return f"the supervisor was {self.supervisor.words}: {unseen}"

    @property
    def has_profile(self) -> bool:
        """Return whether its random profile can be there: bundles omit it unless requested."""
        return self.bundled is None or self.bundled.entropy
