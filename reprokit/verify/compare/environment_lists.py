"""Compares the many of a run's surroundings: packages, modules of its own, files that git does not know, data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.difference import Difference, Verdict, information, lacking

MAX_NAMED = 20_000  # of each kind: environment.json may come from somebody else
SHOWN = 5  # names in one sentence

Facts = dict[str, Any]


def compare(left: Facts, right: Facts) -> Iterator[Difference]:
    """A leaf for each thing that differs, and one for those of a kind that are the same."""
    yield from _files("code", _texts(left.get("code")), _texts(right.get("code")), "the script or a module of its own")
    untracked, other = (_texts(_object(facts.get("git")).get("untracked")) for facts in (left, right))
    yield from _files("git.untracked", untracked, other, "a file that git does not know")
    yield from _packages(left, right)
    yield from _data(_entries(left), _entries(right))


def _object(value: Any) -> Facts:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> dict[str, str]:
    """The texts by name of what should be an object of texts."""
    pairs = list(_object(value).items())[:MAX_NAMED]
    return {name: text for name, text in pairs if isinstance(text, str)}


def _entries(facts: Facts) -> dict[str, Facts]:
    """What was read, by path."""
    listed = facts.get("data")
    entries = listed[:MAX_NAMED] if isinstance(listed, list) else []
    return {entry["path"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)}


def _union(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return sorted({*left, *right})


def _told(name: str, left: str, right: str, meaning: str, *, can_change: bool) -> Difference:
    words = f"{'can' if can_change else 'cannot'} change results: {meaning}"
    texts, absent = (left or "(none)", right or "(none)"), lacking(left, right)
    return Difference(name, Verdict.INFORMATION, *texts, words, can_change, lacking=absent)


def _same(name: str, count: int) -> Iterator[Difference]:
    if count:
        yield Difference(name, Verdict.IDENTICAL, f"{count} the same", f"{count} the same")


def _files(kind: str, left: dict[str, str], right: dict[str, str], what: str) -> Iterator[Difference]:
    names = _union(left, right)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        texts = left.get(name, ""), right.get(name, "")
        how = "has other bytes" if all(texts) else "was there in one run only"
        yield _told(f"{kind}.{name}", *texts, f"{what} {how}", can_change=True)
    yield from _same(f"{kind}.files", len(names) - len(differing))


def _packages(left: Facts, right: Facts) -> Iterator[Difference]:
    """Those that the training imported one by one; the others in a line, as they cannot have changed anything."""
    versions = _texts(left.get("packages")), _texts(right.get("packages"))
    known = _texts(left.get("frameworks")), _texts(right.get("frameworks"))
    used = _imported(left), _imported(right)
    names = _union(*versions)
    differing = [name for name in names if versions[0].get(name) != versions[1].get(name)]
    idle = []
    for name in differing:
        texts = versions[0].get(name, ""), versions[1].get(name, "")
        if (known[0].get(name), known[1].get(name)) == texts:
            continue  # told as a framework
        if used[0] is not None and used[1] is not None and name not in used[0] | used[1]:
            idle.append(f"{name} {texts[0] or '(none)'} against {texts[1] or '(none)'}")
            continue
        sure = used[0] is not None and used[1] is not None
        yield _told(f"packages.{name}", *texts, _IMPORTED if sure else _PERHAPS, can_change=True)
    if idle:
        some = "; ".join(idle[:SHOWN]) + ("; ..." if len(idle) > SHOWN else "")
        words = f"{len(idle)} differ that no run imported: {some}"
        yield information("packages that were not imported", "", "", f"cannot change results: {words}")
    yield from _same("packages.all", len(names) - len(differing))


_IMPORTED = "another version of a package that the training imported may compute otherwise"
_PERHAPS = "another version of a package may compute otherwise; a run was killed before it could say what it imported"


def _imported(facts: Facts) -> set[str] | None:
    """The packages that were imported; None where nobody could tell."""
    listed = facts.get("imported")
    return {name for name in listed[:MAX_NAMED] if isinstance(name, str)} if isinstance(listed, list) else None


def _data(left: dict[str, Facts], right: dict[str, Facts]) -> Iterator[Difference]:
    names = _union(left, right)
    same = 0
    for name in names:
        leaf = _datum(f"data.{name}", left.get(name), right.get(name))
        same += leaf is None
        if leaf is not None:
            yield leaf
    yield from _same("data.files", same)


def _datum(name: str, left: Facts | None, right: Facts | None) -> Difference | None:
    """One file; None where its digests are the same."""
    texts = _described(left), _described(right)
    if left is None or right is None:
        return _told(name, *texts, f"only the {'right' if left is None else 'left'} run read it", can_change=True)
    digests = str(left.get("digest", "")), str(right.get("digest", ""))
    if digests[0] and digests[0] == digests[1]:
        return None
    if left.get("size") != right.get("size"):
        return _told(name, *texts, "the data has another size", can_change=True)
    if all(digests) and digests[0].partition(":")[0] == digests[1].partition(":")[0]:
        return _told(name, *texts, "the data has other bytes", can_change=True)
    meaning = "of the same size; its bytes were not compared, as they were not read whole or in the same way both times"
    return Difference(name, Verdict.NOT_RECORDED, *texts, meaning)


def _described(entry: Facts | None) -> str:
    if entry is None:
        return ""
    digest = str(entry.get("digest") or entry.get("note") or "not read")
    many = f"{entry['files']} files, " if entry.get("files") else ""
    return f"{many}{entry.get('size')} bytes {digest}"
