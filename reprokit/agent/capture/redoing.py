"""Does a captured step again and says what came of it: what is the same for all of TensorFlow.

How a step is executed, and on which part of its batch, a framework's part knows (Doer). Here it is compared with the
snapshot, made smaller, or explained, and the result written for the launcher to read.
"""

from __future__ import annotations

import os

from .bisection import Search
from .reading import SnapshotError, SnapshotFile, require_condition
from .settings import GRADIENT_JUMP, LOSS_ABOVE
from .trial_results import add_progress, outcomes, own_snapshot, write_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    from . import Capture

    class Doer(Protocol):
        """What a framework's part offers."""

        @property
        def samples(self) -> int:
            """The size of the batch."""

        def execute(self, samples: Sequence[int] | None) -> Seen:
            """Execute the step from the snapshot's state, on these samples of the batch only."""

        def explain(self) -> dict[str, Any] | None:
            """Execute the step once more, and name the operation that began it."""


MAX_NAMES = 100  # of gradients that differ
NAMED = "gradient", "activation"  # kinds of triggers that have a name


class Seen:
    """What an executed step came to."""

    def __init__(
        self,
        digests: Mapping[str, str],
        bad: Mapping[str, tuple[int, int]],
        loss: tuple[float | None, str],
        norm: float | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.digests = dict(digests)  # of all gradients
        self.bad = dict(bad)  # how many elements of how many are not finite: of gradients, and of "loss"
        self.loss, self.loss_digest = loss
        self.norm = norm  # of all gradients
        self.notes = list(notes)

    def named_as(self, names: Sequence[str]) -> Seen:
        """The same under other names, in their order: a script that makes fewer models gives others."""
        if len(names) != len(self.digests) or set(names) == set(self.digests):
            return self
        new = dict(zip(self.digests, names))  # noqa: B905
        digests = {new[name]: digest for name, digest in self.digests.items()}
        bad = {new.get(name, name): counts for name, counts in self.bad.items()}
        return Seen(digests, bad, (self.loss, self.loss_digest), self.norm, self.notes)

    def has(self, trigger: Mapping[str, Any]) -> bool:
        """Whether what a snapshot was written for is there again."""
        kind, name = trigger.get("kind"), trigger.get("name")
        if kind == "condition":
            return self._is_beyond(trigger.get("condition"), trigger.get("limit"))
        if kind in NAMED:
            return name in self.bad
        return "loss" in self.bad

    def _is_beyond(self, condition: Any, limit: Any) -> bool:
        """Whether the loss, or the norm of the gradients, is above what was allowed."""
        try:
            bound = float.fromhex(limit)
        except (ValueError, TypeError, OverflowError):
            return False
        value = {LOSS_ABOVE: self.loss, GRADIENT_JUMP: self.norm}.get(condition)
        return value is not None and not value <= bound

    def trigger(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was seen this time: what the snapshot was written for, or else the first that is wrong."""
        if self.has(wanted):
            count, of = self.bad.get(str(wanted.get("name")), (None, None))
            return {**wanted, "count": count, "of": of} if count else dict(wanted)
        for name, (count, of) in self.bad.items():
            kind = "loss" if name == "loss" else "gradient"
            what = str(self.loss) if kind == "loss" else "not finite"
            return {"kind": kind, "what": what, "name": name, "count": count, "of": of}
        return None


def result(header: Mapping[str, Any], seen: Seen) -> dict[str, Any]:
    """What is told of a step that was done again, beside the snapshot."""
    kept: Mapping[str, str] = header.get("gradient_digests") or {}
    different = [name for name in kept if seen.digests.get(name) != kept[name]]
    bad = [name for name in header.get("gradients") or {} if name in kept]
    again = [name for name in seen.bad if name in seen.digests]
    loss = header.get("loss") or {}
    return {
        "reproduced": seen.has(header["trigger"]),
        "trigger": seen.trigger(header["trigger"]),
        "gradients": {
            "equal": len(kept) - len(different),
            "different": different[:MAX_NAMES],
            "nonfinite_equal": sorted(bad) == sorted(again) and not set(bad).intersection(different),
        },
        "loss": {
            "value": None if seen.loss is None else float(seen.loss).hex(),
            "equal": seen.loss is not None and loss.get("digest") == seen.loss_digest,
        },
        "problems": seen.notes,
    }


class Redoing:
    """One captured step that is to be done again in this process."""

    def __init__(self, capture: Capture) -> None:
        redo = capture.settings.redo
        assert redo is not None
        self.capture = capture
        self.settings = redo
        self._file: SnapshotFile | None = None

    @property
    def file(self) -> SnapshotFile:
        """The snapshot, which is opened when it is needed."""
        if self._file is None:
            self._file = SnapshotFile(own_snapshot(self.settings.snapshot, os.environ.get("RANK")))
            require_condition(self._file.header["trigger"])
        return self._file

    def run(self, prepare: Callable[[], Doer]) -> None:
        """Do what is asked for, write the result, and end the process."""
        self.finish(self.attempted(lambda: self._result(prepare())))

    def attempted(self, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result, or what went wrong in its place."""
        try:
            return function()
        except SnapshotError as error:
            return {"trouble": str(error)}
        except Exception as error:
            words = " ".join(str(error).split())[:500]
            return {"trouble": f"the step could not be executed again: {type(error).__name__}: {words}"}

    def finish(self, found: Mapping[str, Any]) -> None:
        """Write the result, and end the process."""
        write_result(self.settings.result, self.settings.mode, found)
        self.capture.done()

    def _result(self, doer: Doer) -> dict[str, Any]:
        found = result(self.file.header, self.as_kept(doer.execute(None)))
        if self.settings.mode == "explain":
            found.update(doer.explain() or {})
        if self.settings.mode == "minimise" and found["reproduced"]:
            found.update(self._smallest(doer))
        return found

    def as_kept(self, seen: Seen) -> Seen:
        """Under the names of the snapshot."""
        return seen.named_as(list(self.file.header.get("gradient_digests") or ()))

    def _smallest(self, doer: Doer) -> dict[str, object]:
        def reproduces(samples: tuple[int, ...]) -> bool:
            self.trying(samples)
            return self.tried(samples, doer.samples, doer.execute(samples))

        return Search(doer.samples, reproduces, known=outcomes(self.settings.trials)).smallest().line()

    def trying(self, samples: Sequence[int]) -> None:
        """Tell of a trial that begins, which may end the process."""
        add_progress(self.settings.progress, {"running": list(samples)})

    def tried(self, samples: Sequence[int], of: int, seen: Seen) -> bool:
        """Tell what a trial came to: whether it did what the whole batch does."""
        did = self.as_kept(seen).has(self.file.header["trigger"])
        word = "again" if did else "not finite elsewhere" if seen.bad else "finite"
        text = f"{len(samples)} of {of} samples: {word}"
        add_progress(self.settings.progress, {"text": text, "samples": list(samples), "reproduced": did})
        return did


class _NeededError(Exception):
    """The search cannot go on without the trial of these samples."""

    def __init__(self, samples: tuple[int, ...]) -> None:
        super().__init__()
        self.samples = samples


class StepByStep:
    """Does it again in a loop of the script's own, which takes one step after the other."""

    def __init__(self, redoing: Redoing, of: int) -> None:
        self._redoing = redoing
        self._of = of
        self._found: dict[str, Any] | None = None  # of the whole batch
        self._known = outcomes(redoing.settings.trials)
        self.wanted: tuple[int, ...] | None = None  # samples of the next step; None: all
        self._done = False

    def saw(self, seen: Seen, explain: Callable[[], dict[str, Any]]) -> None:
        """A step was taken on what was wanted: want something else, or write the result and end the process."""
        mode = self._redoing.settings.mode
        if self._found is None:
            self._found = result(self._redoing.file.header, self._redoing.as_kept(seen))
        elif self.wanted is not None:
            self._known.append((self.wanted, self._redoing.tried(self.wanted, self._of, seen)))
        if mode == "explain":
            self._found.update(explain())
        if mode != "minimise" or not self._found["reproduced"]:
            self._finish(self._found)
        self._go_on()

    def _go_on(self) -> None:
        try:
            smallest = Search(self._of, _needed, known=self._known).smallest()
        except _NeededError as needed:
            self.wanted = needed.samples
            self._redoing.trying(needed.samples)
        else:
            self._finish({**(self._found or {}), **smallest.line()})

    def _finish(self, found: Mapping[str, Any]) -> None:
        self._done = True
        self._redoing.finish(found)

    def script_ends(self) -> None:
        """The script ends before the search does: another process is to go on."""
        if self.wanted is not None and not self._done:
            write_result(self._redoing.settings.result, self._redoing.settings.mode, {"again": True})


def _needed(samples: tuple[int, ...]) -> bool:
    raise _NeededError(samples)
