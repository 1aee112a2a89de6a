"""Compares two files: byte by byte where that says it, else part by part as their format has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reprokit.artifacts import raw, tensors
from reprokit.artifacts.descriptions import counted, described, tensor_difference, value_difference
from reprokit.artifacts.elements import Blob, Format, Limits, Noise, Part, Source, TensorPart, Value, Within
from reprokit.artifacts.formats import FORMATS, HEAD, detect
from reprokit.artifacts.renamed_tensors import RenamedTensors, renamed
from reprokit.artifacts.sources import verify
from reprokit.difference import Difference, Verdict, group, missing
from reprokit.errors import ArtifactDamaged
from reprokit.printable import listed
from reprokit.tolerance import Tolerance

MOST_LEAVES = 2000  # differences of one file that are named one by one
MOST_NOISE = 4
SAME = "same content"
GENERAL = ("zip", "tar", "json", "text")  # formats that files of more special ones have, too
PACKED = ("joblib", "gzip", "bzip2", "xz")  # formats that hold one file and nothing else
_KINDS = {TensorPart: "tensor", Value: "value", Blob: "piece", Within: "file within", Noise: "value"}
OTHER = "other"  # among the figures of what is identical: the noise that differs

Key: TypeAlias = tuple[str, int]  # of a part: its name, and which of that name it is
NUMBERS, AS_WRITTEN = "/numbers", "/as written"  # how JSON's readers name a long list of numbers, and its spelling


@dataclass(frozen=True)
class CompareOptions:
    """How to compare: bit for bit, or where a tolerance is given, within that."""

    tolerance: Tolerance | None = None  # of tensors
    values: Tolerance | None = None  # of single numbers that stand in a text
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class FileSide:
    """One of two files: its source, and its name, by which its format may be told."""

    source: Source
    name: str

    def format(self) -> Format | None:
        return detect(self.name, self.source.read(0, HEAD))


def compare(
    name: str, left: FileSide, right: FileSide, options: CompareOptions | None = None, depth: int = 0
) -> Difference:
    """Return what two files differ in; identical ones are one leaf, others have their differences as children."""
    options = options or CompareOptions()
    same = raw.same(left.source, right.source)
    if same and (depth > options.limits.depth or not (_refers(left) and _refers(right))):
        return Difference(name, Verdict.IDENTICAL, _size(left), _size(right))
    formats = _formats(left, right)
    if formats[0] is None or formats[0] != formats[1]:
        return _one_packed(name, left, right, formats, options, depth) or raw.difference(
            name, left.source, right.source, _kinds(*formats)
        )
    if depth > options.limits.depth:
        problem = f"files within files are opened {options.limits.depth} deep, and this one stands deeper"
        return raw.difference(name, left.source, right.source, problem)
    try:
        found = _by_format(name, formats[0], left, right, options, depth)
        return found if found.verdict.not_bitwise or not same else replace(found, detail="")
    except OSError:
        raise
    except Exception as error:  # whatever a hostile file makes a reader do, its bytes can still be compared
        problem = _problem(formats[0], error)
        if same and not (_beside(left) or _beside(right)):
            return Difference(name, Verdict.IDENTICAL, _size(left), _size(right), problem)
        return raw.difference(name, left.source, right.source, problem)


def _one_packed(
    name: str,
    left: FileSide,
    right: FileSide,
    formats: tuple[Format | None, Format | None],
    options: CompareOptions,
    depth: int,
) -> Difference | None:
    """Return what is compressed against what is not; None where not one of them is, or only bytes can be compared."""
    packed = [format_ is not None and format_.name in PACKED for format_ in formats]
    if packed[0] == packed[1] or depth > options.limits.depth:
        return None
    sides, place = [left, right], packed.index(True)
    side, format_ = sides[place], formats[place]
    assert format_ is not None
    try:
        within = next(part for part in format_.read(side.source, options.limits) if isinstance(part, Within))
        sides[place] = FileSide(within.source, _unpacked_name(side.name))
        found = compare(name, sides[0], sides[1], options, depth + 1)
    except ArtifactDamaged:
        return None
    _release(within)
    if raw.AS_BYTES in found.figures:
        return None
    return _same(found.name, "compression: one of them has none") if found.verdict is Verdict.IDENTICAL else found


def _refers(side: FileSide) -> bool:
    """Return whether a file may have parts of it in others beside it."""
    format_ = side.format()
    return format_ is not None and format_.beside and getattr(side.source, "beside", None) is not None


def _beside(side: FileSide) -> bool:
    """Return whether files beside this one were read."""
    return bool(getattr(getattr(side.source, "beside", None), "opened", ()))


def _formats(left: FileSide, right: FileSide) -> tuple[Format | None, Format | None]:
    """Return the formats of two files; where only their names tell them apart, one name holds for both."""
    own = left.format(), right.format()
    if own[0] == own[1]:
        return own
    by_name = [
        (replace(left, name=name).format(), replace(right, name=name).format()) for name in (left.name, right.name)
    ]
    same = [one for one, other in by_name if one is not None and one == other]
    special = min(same, key=FORMATS.index, default=None) or _common(left, right)
    return own if special is None else (special, special)


def _common(left: FileSide, right: FileSide) -> Format | None:
    """Return what both files are besides their own formats: archives are told apart by their first members."""
    heads = left.source.read(0, HEAD), right.source.read(0, HEAD)
    general = (one for one in FORMATS if one.name in GENERAL)
    both = (one for one in general if one.matches(left.name, heads[0]) and one.matches(right.name, heads[1]))
    return next(both, None)


def _size(side: FileSide) -> str:
    return f"{side.source.size} bytes"


def _kinds(left: Format | None, right: Format | None) -> str:
    if left is right:
        return ""
    names = [format_.name if format_ else "of no format that is known" for format_ in (left, right)]
    return f"the left file is {names[0]}, the right one {names[1]}"


def _problem(format_: Format, error: Exception) -> str:
    text = str(error) if isinstance(error, ArtifactDamaged) else f"{type(error).__name__}: {error}"
    return f"cannot be read as {format_.name} ({text}); compared as bytes"


def _by_format(
    name: str, format_: Format, left: FileSide, right: FileSide, options: CompareOptions, depth: int
) -> Difference:
    if format_.pairwise:
        from reprokit.artifacts.formats import text

        return getattr(text, format_.pairwise)(name, left.source, right.source, options)  # type: ignore[no-any-return]
    return _Comparison(name, (left.name, right.name), options, depth).of(
        _parts("left", format_, left, options.limits), _parts("right", format_, right, options.limits)
    )


def compare_parts(name: str, left: Iterable[Part], right: Iterable[Part], options: CompareOptions) -> Difference:
    """Return the tree of two sets of parts; raises ArtifactDamaged where they cannot be read."""
    sides = _keyed("left", left, options.limits), _keyed("right", right, options.limits)
    return _Comparison(name, (name, name), options, 0).of(*sides)


def _parts(side: str, format_: Format, file: FileSide, limits: Limits) -> Iterator[tuple[Key, Part]]:
    return _keyed(side, format_.read(file.source, limits), limits)


def _keyed(side: str, parts: Iterable[Part], limits: Limits) -> Iterator[tuple[Key, Part]]:
    """Yield the parts of a file, within the limits, each with a key of its own."""
    seen: Counter[str] = Counter()
    held = 0
    try:
        for number, part in enumerate(parts):
            held += len(part.name) + (len(part.text) if isinstance(part, (Value, Noise)) else 0)
            limits.spent.parts += 1
            if number >= limits.parts or limits.spent.parts > 4 * limits.parts:
                raise ArtifactDamaged(f"it has more than {limits.parts} parts")
            if held > limits.header:
                raise ArtifactDamaged(f"names and values come to more than {limits.header} bytes")
            seen[part.name] += 1
            same = seen[part.name]
            yield (part.name, same), part if same == 1 else replace(part, name=f"{part.name} ({same})")
    except OSError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, ArtifactDamaged) else f"{type(error).__name__}: {error}"
        raise ArtifactDamaged(f"the {side} one: {text}") from error


class _Comparison:
    """The comparison of two files of one format, part by part."""

    def __init__(self, name: str, files: tuple[str, str], options: CompareOptions, depth: int):
        self._name, self._files, self._options, self._depth = name, files, options, depth
        self._differences: list[tuple[int, Difference]] = []
        self._differing: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()
        self._beyond = 0  # of the differing parts, those that no tolerance accepts
        self._near: set[str] = set()  # lists of numbers that are within the tolerance, by the name of the list
        self._noise: list[str] = []
        self._noise_is_noted = True
        self._sources: dict[int, Source] = {}  # of what is identical, in which damage could hide

    def of(self, left: Iterator[tuple[Key, Part]], right: Iterator[tuple[Key, Part]]) -> Difference:
        """Return the tree; parts are matched by key, and stand in the order of the left file."""
        index = {key: (number, part) for number, (key, part) in enumerate(left)}
        alone = RenamedTensors(self._options.limits)
        for number, (key, part) in enumerate(right):
            place, other = index.pop(key, (number, None))
            if other is None and isinstance(part, TensorPart):
                alone.add(number, part)
            else:
                self._add(place, other, part)
        for place, part in index.values():
            self._add(place, part, alone.take(part))
        for place, part in alone.rest():
            self._add(place, None, part)
        return self._tree()

    def _add(self, place: int, left: Part | None, right: Part | None) -> None:
        if isinstance(left or right, Noise) and isinstance(right or left, Noise):
            texts = [part.text if isinstance(part, Noise) else "" for part in (left, right)]
            if texts[0] != texts[1]:
                self._noise.append((left or right).name)  # type: ignore[union-attr]
            return
        kind = _KINDS[type(left or right)]
        self._compared[kind] += 1
        try:
            found = self._pair(left, right)
        finally:
            _release(left, right)
        if found is None or not found.verdict.not_bitwise:
            if found is not None and found.detail:  # such as the noise of a file within
                name = found.name.removeprefix(f"{self._name}/")
                self._noise.append(f"{name} ({found.figures.get(OTHER, found.detail)})")
            sources = [getattr(part, "source", None) for part in (left, right)]
            self._sources.update((id(source), source) for source in sources if source is not None)
            return
        self._differing[kind] += 1
        self._beyond += found.verdict.differs
        if sum(self._differing.values()) <= MOST_LEAVES:
            self._differences.append((place, found))

    def _pair(self, left: Part | None, right: Part | None) -> Difference | None:
        if left is None or right is None:
            return self._one_sided(left, right)
        name = f"{self._name}/{left.name or 'content'}"
        if left.name != right.name:
            return renamed(self._name, left, right)
        if isinstance(left, TensorPart) and isinstance(right, TensorPart):
            return self._tensors(name, left, right)
        if isinstance(left, Value) and isinstance(right, Value):
            return self._values(name, left, right)
        if isinstance(left, Blob) and isinstance(right, Blob):
            return None if raw.same(left.source, right.source) else raw.difference(name, left.source, right.source)
        if isinstance(left, Within) and isinstance(right, Within):
            return self._within(name, left, right)
        return Difference(name, Verdict.DIFFERENT, described(left), described(right), "a part of another kind")

    def _one_sided(self, left: Part | None, right: Part | None) -> Difference:
        self._noise_is_noted = False  # the sums over all members say nothing where members are missing
        part = left or right
        assert part is not None
        texts = (described(left) if left else "", described(right) if right else "")
        return missing(f"{self._name}/{part.name}", *texts, f"only the {'left' if left else 'right'} file has it")

    def _values(self, name: str, left: Value, right: Value) -> Difference | None:
        found = value_difference(name, left.text, right.text, tolerance=self._options.values)
        if found is not None and left.name.endswith(AS_WRITTEN) and left.name.removesuffix(AS_WRITTEN) in self._near:
            return replace(found, judged=Verdict.TOLERATED, detail="the digest of numbers within the tolerance")
        return found

    def _within(self, name: str, left: Within, right: Within) -> Difference:
        names = [part.name or _unpacked_name(file) for part, file in zip((left, right), self._files, strict=True)]
        sides = FileSide(left.source, names[0]), FileSide(right.source, names[1])
        found = compare(name, *sides, self._options, self._depth + 1)
        if left.check != right.check and found.verdict is Verdict.IDENTICAL and not found.detail:
            meaning = "the same bytes under different check sums: one of the containers is damaged"
            return Difference(name, Verdict.DIFFERENT, left.check, right.check, meaning)
        return found

    def _tensors(self, name: str, left: TensorPart, right: TensorPart) -> Difference | None:
        limits = self._options.limits
        for tensor in (left, right):
            tensors.check(tensor, limits)
        if left.dtype != right.dtype or left.shape != right.shape:
            what = "type" if left.dtype != right.dtype else "shape"
            return Difference(name, Verdict.DIFFERENT, described(left), described(right), f"another {what}")
        found = tensors.compare(left, right, limits, self._options.tolerance)
        if self._options.tolerance is not None and not found.beyond and left.name.endswith(NUMBERS):
            self._near.add(left.name.removesuffix(NUMBERS))
        if not found.differing:
            return None
        return tensor_difference(name, left, right, found, self._options.tolerance)

    def _tree(self) -> Difference:
        if not self._beyond:
            for source in self._sources.values():
                verify(source)
        if not self._differing:
            return _same(self._name, self._noises())
        self._differences.sort(key=lambda pair: pair[0])
        children = [child for _, child in self._differences]
        if (more := sum(self._differing.values()) - len(children)) > 0:
            verdict = Verdict.DIFFERENT if self._beyond else Verdict.TOLERATED
            children.append(Difference(f"{self._name}: {more} more", verdict, detail="not named one by one"))
        counts = "; ".join(counted(n, self._compared[kind], kind) for kind, n in sorted(self._differing.items()))
        return group(self._name, tuple(children), counts + (f"; also in {noise}" if (noise := self._noises()) else ""))

    def _noises(self) -> str:
        if not self._noise or not self._noise_is_noted:
            return ""
        return listed(self._noise, MOST_NOISE)


def _same(name: str, other: str) -> Difference:
    """Return the leaf of what is equal but for the noise of a container."""
    if not other:
        return Difference(name, Verdict.IDENTICAL, detail=f"{SAME} in other bytes, which carry nothing")
    return Difference(name, Verdict.IDENTICAL, detail=f"{SAME}; other {other}", figures={OTHER: other})


def _unpacked_name(name: str) -> str:
    """Return the name of what a compressed file of this name holds."""
    stem, dot, ending = name.rpartition(".")
    if ending.lower() in ("tgz", "tbz", "txz"):
        return f"{stem}.tar"
    return stem if dot and ending.lower() in ("gz", "bz2", "xz", "lzma") else name


def _release(*parts: Part | None) -> None:
    """Give back what was unpacked for the comparison of a pair."""
    for part in parts:
        release = getattr(getattr(part, "source", None), "release", None)
        if release is not None:
            release()
