"""Compares the sources of randomness: a replay against its recording, or two recordings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from reprokit.core.difference import Difference, Verdict, compared, group, information
from reprokit.model.run import Fidelity, RunFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.match import RunPair
from reprokit.verify.verdict import exact_share


def compare(runs: RunPair) -> Difference:
    """Compare whose entropy each run used, and how faithfully a replay was answered."""
    return group("entropy", (origin(*runs.files), *_fidelities(*runs.files)))


def origin(left: RunFile, right: RunFile) -> Difference:
    """Return whether both runs got the same bytes."""
    if (left.replay_of is None) != (right.replay_of is None):
        return _origin_of_replay(left, right)
    profiles = _profile(left), _profile(right)
    if profiles[0] and profiles[0] == profiles[1]:
        return Difference("random profile", Verdict.IDENTICAL, *profiles)
    if left.replay_of is not None and right.replay_of is not None:
        if any(profiles) or left.replay_of.run_id != right.replay_of.run_id:
            return information("random profile", *profiles, "replays of two different recordings")
        meaning = "replays of one recording, which has no digest as it did not come to its end"
        return Difference("random profile", Verdict.NOT_RECORDED, detail=meaning)
    if left.keyed and right.keyed and left.key == right.key:
        counts = _keyed(left), _keyed(right)
        if counts[0] == counts[1]:
            return Difference("random profile", Verdict.IDENTICAL, *counts)
        meaning = "both runs were answered from the same key, and did not ask for as much"
        return information("random profile", *counts, meaning, can_change_results=True)
    if not any(profiles):
        return Difference("random profile", Verdict.NOT_RECORDED)
    return information("random profile", *profiles, "two recordings, each with entropy of its own")


def is_separate(left: RunDirectory, right: RunDirectory) -> bool:
    """Return whether each run had entropy of its own."""
    is_keyed = left.run.keyed and left.run.key == right.run.key
    return origin(left.run, right.run).verdict is Verdict.INFORMATION and not is_keyed


def advice(left: RunDirectory, right: RunDirectory) -> Iterator[str]:
    """Yield what to compare instead of two runs with separate entropy."""
    origins = [run.run.replay_of for run in (left, right)]
    if not is_separate(left, right):
        return
    if origins[0] is None:
        commands = f"reprokit replay {_quoted(left.path)}, then reprokit verify {_quoted(left.path)} last"
        yield f"these are two recordings; to learn whether entropy is why they differ, {_COMPARE}: {commands}"
        return
    commands = " and ".join(
        f"reprokit verify {_quoted(origin.path)} {_quoted(run.path)}"
        for run, origin in zip((left, right), origins, strict=True)
        if origin is not None
    )
    yield f"these are replays of two recordings; {_COMPARE}: {commands}"


_COMPARE = "compare a recording with its replay"


def _quoted(path: object) -> str:
    return shlex.quote(str(path))


def _keyed(run: RunFile) -> str:
    """Return the numbers of a keyed run's requests, never the key itself."""
    if run.profile is None:
        return "keyed, not counted"
    profile = run.profile
    requested = f"{profile.events} requests, {profile.entropy} bytes"
    return f"keyed: {requested} for {profile.processes} processes and {profile.threads} threads"


def _origin_of_replay(left: RunFile, right: RunFile) -> Difference:
    replay, recording = (left, right) if left.replay_of is not None else (right, left)
    meaning = "the recording has no digest of its random profile: it did not come to its end"
    if replay.replay_of is not None and recording.profile is not None:
        meaning = "the replay was given the entropy of another recording"
        if replay.replay_of.run_id == recording.run_id:
            meaning = "the random profile of the recording is not the one that was replayed: it was altered since"
    return compared("random profile", _profile(left), _profile(right), meaning)


def _profile(run: RunFile) -> str:
    """Return the digest of the random profile that a run recorded or replayed."""
    if run.replay_of is not None:
        return run.replay_of.profile_digest
    return run.profile.digest if run.profile is not None else ""


def _fidelities(left: RunFile, right: RunFile) -> list[Difference]:
    """Return how a replay's requests were answered; a recording has no fidelity."""
    leaves = []
    for run, is_left in ((left, True), (right, False)):
        if run.replay_of is not None:
            text = "" if run.fidelity is None else in_words(run.fidelity)
            leaves.append(_fidelity(run.fidelity, text, is_left))
            if run.fidelity is not None and run.fidelity.orders_in_words:
                leaves.append(_orders(run.fidelity, is_left))
        if run.profile is not None and not run.profile.sealed:
            meaning = "a process of the run was still alive at its end and may have asked for more"
            leaves.append(information("unsealed profile", *_sided("not sealed", is_left), meaning))
    return leaves


def _fidelity(fidelity: Fidelity | None, text: str, is_left: bool) -> Difference:
    if fidelity is None:
        return Difference("replay fidelity", Verdict.NOT_RECORDED, detail="the replay did not come to its end")
    meaning = ""
    if fidelity.moved or fidelity.derived or fidelity.unused:
        meaning = fidelity.rearrangement or "the replay asked for entropy in another way than the recording"
    if fidelity.live:
        meaning = "the replay was given live bytes, which no other run will be given"
    if not meaning:
        return Difference("replay fidelity", Verdict.IDENTICAL, *_sided(text, is_left))
    is_inexact = fidelity.exact != fidelity.requests
    return information("replay fidelity", *_sided(text, is_left), meaning, can_change_results=is_inexact)


def _orders(fidelity: Fidelity, is_left: bool) -> Difference:
    sides = _sided(fidelity.orders_in_words, is_left)
    if not fidelity.orders_moved:
        return Difference("replay of orders", Verdict.IDENTICAL, *sides)
    meaning = "threads or processes came in another order than in the recording"
    return information("replay of orders", *sides, meaning, can_change_results=True)


def _sided(text: str, is_left: bool) -> tuple[str, str]:
    return (text, "") if is_left else ("", text)


def in_words(fidelity: Fidelity) -> str:
    """Return a replay's counts, and the percentage of requests answered exactly."""
    parts = [f"{count} {kind}" for kind, count in fidelity.kinds.items() if count or kind == "exact"]
    if not fidelity.requests:
        return f"the replay asked for nothing ({fidelity.unused} unused)" if fidelity.unused else "no requests"
    return exact_share(percent_exact(fidelity), ", ".join(parts))


def percent_exact(fidelity: Fidelity) -> str:
    """Return the share of exact answers, never rounded up to 100 %."""
    if not fidelity.requests or fidelity.exact == fidelity.requests:
        return "100 %"
    return f"{min(99.9, int(1000 * fidelity.exact / fidelity.requests) / 10):.1f} %"
