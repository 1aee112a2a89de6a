"""Which patches a user asks for: ids and values checked, conflicts found, auto worked out."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

from reprokit.core.errors import ConflictingPatches, UsageError
from reprokit.patches.catalogue import CATALOGUE, Patch, Takes, find

AUTO, NONE = "auto", "none"
_COMMA = re.compile(",(?!STRICT(?:,|$))")  # that one is part of a value of MKL_CBWR

# The distributions that bring a module.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": (
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-gpu",
        "tensorflow-rocm",
        "tensorflow-intel",
        "tensorflow-aarch64",
        "tensorflow-cpu-aws",
        "intel-tensorflow",
        "tf-nightly",
    ),
    "jax": ("jax",),
    "xgboost": ("xgboost", "xgboost-cpu"),
}


class Chosen(msgspec.Struct, frozen=True):
    """A patch to be applied, with its value."""

    patch: Patch
    value: str = ""

    @property
    def text(self) -> str:
        """As a user gives it: "id" or "id=value"."""
        return f"{self.patch.id}={self.value}" if self.value else self.patch.id


def parse(words: Iterable[str]) -> tuple[Chosen, ...]:
    """Return the patches of texts such as "tf-data,threads=1", in the order of the catalogue."""
    by_text = {chosen.text: chosen for chosen in map(_chosen, _split(words))}
    _check(tuple(by_text.values()))
    order = {patch.id: number for number, patch in enumerate(CATALOGUE)}
    return tuple(sorted(by_text.values(), key=lambda chosen: (order[chosen.patch.id], chosen.value)))


def select(words: Iterable[str], packages: Callable[[], Mapping[str, str] | None]) -> tuple[Chosen, ...]:
    """The same, where the words may be auto and none; packages tells those of the command's Python, None: not known."""
    texts = list(_split(words))
    if NONE in texts:
        if len(texts) > 1:
            other_texts = ", ".join(text for text in texts if text != NONE) or "itself"
            raise UsageError(f"--patch {NONE} cannot be together with {other_texts}; leave one of them out")
        return ()
    named = parse(text for text in texts if text != AUTO)
    return parse([*(chosen.text for chosen in named), *(_automatic(named, packages()) if AUTO in texts else ())])


def matters(patch: Patch, imported: Container[str], *, has_gpu: bool) -> bool:
    """Return whether a patch can matter to a training that imports these frameworks, on this machine."""
    modules = (patch.framework,) if patch.framework else patch.beside
    return (has_gpu or not patch.accelerated) and (not modules or any(module in imported for module in modules))


def _automatic(named: tuple[Chosen, ...], packages: Mapping[str, str] | None) -> Iterator[str]:
    """Yield what auto adds to patches that were named: it gives way to them."""
    taken = {chosen.patch.id for chosen in named}
    for patch in CATALOGUE:
        is_fit = not (is_absent(patch, packages) or _is_alone(patch, packages) or misfit(patch, packages))
        if patch.automatic and is_fit and patch.id not in taken and not _conflict(patch, taken):
            yield patch.id


def _is_alone(patch: Patch, packages: Mapping[str, str] | None) -> bool:
    """Return whether none of the frameworks is there that a patch for no framework in particular is of use to."""
    if packages is None or not patch.beside:
        return False
    return all(version_of(module, packages) is None for module in patch.beside)


def _conflict(patch: Patch, ids: set[str]) -> bool:
    return not ids.isdisjoint(patch.conflicts) or any(patch.id in find(other).conflicts for other in ids)


def is_absent(patch: Patch, packages: Mapping[str, str] | None) -> bool:
    """Return whether the patch is for a framework that is not to be seen among these packages."""
    return bool(packages is not None and patch.framework and version_of(patch.framework, packages) is None)


def misfit(patch: Patch, packages: Mapping[str, str] | None) -> str:
    """Why a patch is not for these packages; empty where it is, or where nobody knows."""
    if packages is None:
        return ""
    if patch.framework:
        version = version_of(patch.framework, packages)
        if version is not None and not _fits(version, patch.versions):
            return f"it is for {patch.framework} {patch.versions}, the command's Python has {version}"
    for module, versions in patch.not_with.items():
        version = version_of(module, packages)
        if version is not None and _fits(version, versions):
            return f"it cannot be used with {module} {versions}, the command's Python has {version}"
    met = [name for name, versions in patch.needs.items() if name in packages and _fits(packages[name], versions)]
    return _missing(patch, packages) if patch.needs and not met else ""


def _missing(patch: Patch, packages: Mapping[str, str]) -> str:
    name, versions = next(iter(patch.needs.items()))
    lack = f"has only {name} {packages[name]}, which is not {versions}" if name in packages else f"has no {name}"
    return f"the command's Python {lack}; {patch.remedy}"


def version_of(module: str, packages: Mapping[str, str]) -> str | None:
    """Return the version of the distribution that brings this module."""
    return next((packages[name] for name in DISTRIBUTIONS.get(module, (module,)) if name in packages), None)


def _fits(version: str, specifier: str) -> bool:
    if not specifier:
        return True
    from packaging.specifiers import SpecifierSet  # imported here, as recording without patches has no use for it
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _split(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        for text in _COMMA.split(word):
            if text.strip():
                yield text.strip()


def _chosen(text: str) -> Chosen:
    name, sign, value = text.partition("=")
    patch = find(name)
    if patch.takes is Takes.NOTHING and sign:
        raise UsageError(f"patch {patch.id} takes no value: give it as --patch {patch.id}")
    if patch.takes is Takes.A_VALUE and not value:
        raise UsageError(f"patch {patch.id} needs a value: --patch {patch.id}={patch.value}")
    if sign and not re.fullmatch(patch.pattern, value):
        raise UsageError(f"patch {patch.id}: {value[:100]!r} is no value for it, it takes {patch.example}")
    return Chosen(patch, value or patch.default)


def _check(chosen: tuple[Chosen, ...]) -> None:
    """Refuse what cannot be together."""
    for first, second in combinations(chosen, 2):
        if first.patch.id == second.patch.id and not first.patch.repeatable:
            raise ConflictingPatches(f"{first.text} and {second.text} cannot be together; choose one")
        if _conflict(first.patch, {second.patch.id}):
            raise ConflictingPatches(
                f"{first.patch.id} and {second.patch.id} cannot be together; choose one of the two"
            )
