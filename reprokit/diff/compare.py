"""Compares two files: byte by byte, or part by part if their format is known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from reprokit.core.difference import BookkeepingKind, Difference, Verdict, bookkeeping, group, missing, more_bookkeeping
from reprokit.core.errors import ArtifactDamaged
from reprokit.core.printable import listed
from reprokit.diff import raw, tensors
from reprokit.diff.descriptions import counted, described, judged_value, tensor_difference, value_difference
from reprokit.diff.elements import (
    Blob,
    CompareOptions,
    Format,
    Limits,
    NestedFile,
    Noise,
    Part,
    Source,
    TensorPart,
    Value,
)
from reprokit.diff.formats import FORMATS, HEAD, detect
from reprokit.diff.ignored_parts import IgnoredParts
from reprokit.diff.sources import verify

MOST_LEAVES = 2000  # differences of one file that are listed individually
MOST_KEYS = 100  # that are looked at beside a value
MOST_BOOKKEEPING = 100  # the same of bookkeeping
MOST_NOISE = 4
LONGEST_TEXT = 1 << 16  # bytes of a text in which bookkeeping is looked for
SHORT_NOISE = 100  # characters of the longest that is shown
SAME = "same content"
PACKED = ("joblib", "gzip", "bzip2", "xz")  # formats that compress a single file
_KINDS = {TensorPart: "tensor", Value: "value", Blob: "piece", NestedFile: "file within", Noise: "value"}
OTHER = "other"  # key in the figures of identical files: the noise that differs
Key: TypeAlias = tuple[str, int]  # of a part: its name, and its number among the parts of that name
# How the JSON reader names a long list of numbers, and the digest of its text.
NUMBERS, AS_WRITTEN = "/numbers", "/as written"
MOST_COMPARED = 2000  # pairs of tensors of the same dtype and shape that are compared


@dataclass(frozen=True)
class FileSide:
    """One of the two files: its source, and its name, which helps to detect its format."""

    source: Source
    name: str

    def format(self) -> Format | None:
        return detect(self.name, self.source.read(0, HEAD))


def compare(
    name: str, left: FileSide, right: FileSide, options: CompareOptions | None = None, depth: int = 0
) -> Difference:
    """Compare two files; return one leaf if they are identical, else a tree with the differences as children."""
    options = options or CompareOptions()
    same = raw.same(left.source, right.source)
    if same and (depth > options.limits.depth or not (_may_refer_to_siblings(left) and _may_refer_to_siblings(right))):
        return Difference(name, Verdict.IDENTICAL, _size_text(left), _size_text(right))
    formats = _formats(left, right)
    if formats[0] is None or formats[0] != formats[1]:
        return _against_unpacked(name, left, right, formats, options, depth) or raw.difference(
            name, left.source, right.source, _format_mismatch(*formats)
        )
    if depth > options.limits.depth:
        problem = f"files within files are opened {options.limits.depth} deep, and this one stands deeper"
        return raw.difference(name, left.source, right.source, problem)
    try:
        difference = _by_format(name, formats[0], left, right, options, depth)
        return difference if difference.verdict.not_bitwise or not same else replace(difference, detail="")
    except OSError:
        raise
    except Exception as error:  # a reader may fail in any way on a hostile file; its bytes can still be compared
        problem = _read_problem(formats[0], error)
        if same and not (_has_read_siblings(left) or _has_read_siblings(right)):
            return Difference(name, Verdict.IDENTICAL, _size_text(left), _size_text(right), problem)
        return raw.difference(name, left.source, right.source, problem)


def _against_unpacked(
    name: str,
    left: FileSide,
    right: FileSide,
    formats: tuple[Format | None, Format | None],
    options: CompareOptions,
    depth: int,
) -> Difference | None:
    """Compare a compressed file with an uncompressed one; return None if not exactly one is, or only bytes differ."""
    packed = [format_ is not None and format_.name in PACKED for format_ in formats]
    if packed[0] == packed[1] or depth > options.limits.depth:
        return None
    sides, index = [left, right], packed.index(True)
    side, format_ = sides[index], formats[index]
    assert format_ is not None
    try:
        unpacked_file = next(part for part in format_.read(side.source, options.limits) if isinstance(part, NestedFile))
        sides[index] = FileSide(unpacked_file.source, _unpacked_name(side.name))
        result = compare(name, sides[0], sides[1], options, depth + 1)
    except ArtifactDamaged:
        return None
    _release(unpacked_file)
    if raw.AS_BYTES in result.figures:
        return None
    return (
        _equal_content(result.name, "compression: one of them has none")
        if result.verdict is Verdict.IDENTICAL
        else result
    )


def _may_refer_to_siblings(side: FileSide) -> bool:
    """Return whether parts of a file may be in other files beside it."""
    format_ = side.format()
    return format_ is not None and format_.has_siblings and getattr(side.source, "beside", None) is not None


def _has_read_siblings(side: FileSide) -> bool:
    """Return whether any of the files beside this one were opened."""
    return bool(getattr(getattr(side.source, "beside", None), "opened", ()))


def _formats(left: FileSide, right: FileSide) -> tuple[Format | None, Format | None]:
    """Return the formats of both files; if they differ only by file name, use one name for both."""
    formats = left.format(), right.format()
    if formats[0] == formats[1]:
        return formats
    by_name = [
        (replace(left, name=name).format(), replace(right, name=name).format()) for name in (left.name, right.name)
    ]
    common = [first for first, second in by_name if first is not None and first == second]
    special = min(common, key=FORMATS.index, default=None) or _general_format(left, right)
    return formats if special is None else (special, special)


def _general_format(left: FileSide, right: FileSide) -> Format | None:
    """Return a general format of both files: archives get specific formats by their first members."""
    heads = left.source.read(0, HEAD), right.source.read(0, HEAD)
    named = (left.name, heads[0]), (right.name, heads[1])
    general = (format_ for format_ in FORMATS if format_.is_general)
    return next((format_ for format_ in general if all(format_.matches(*side) for side in named)), None)


def _size_text(side: FileSide) -> str:
    return f"{side.source.size} bytes"


def _format_mismatch(left: Format | None, right: Format | None) -> str:
    if left is right:
        return ""
    names = [format_.name if format_ else "of no format that is known" for format_ in (left, right)]
    return f"the left file is {names[0]}, the right one {names[1]}"


def _read_problem(format_: Format, error: Exception) -> str:
    text = str(error) if isinstance(error, ArtifactDamaged) else f"{type(error).__name__}: {error}"
    return f"cannot be read as {format_.name} ({text}); compared as bytes"


def _by_format(
    name: str, format_: Format, left: FileSide, right: FileSide, options: CompareOptions, depth: int
) -> Difference:
    is_read = format_.is_read_alone if options.judge is None else format_.is_read_for_judge
    if format_.pairwise is None or is_read:
        try:
            return _Comparison(name, (left.name, right.name), options, depth, format_).of(
                _parts("left", format_, left, options.limits), _parts("right", format_, right, options.limits)
            )
        except ArtifactDamaged:
            if format_.pairwise is None:
                raise
    return format_.pairwise(name, left.source, right.source, options)


def compare_parts(
    name: str, left: Iterable[Part], right: Iterable[Part], options: CompareOptions, format_: Format | None = None
) -> Difference:
    """Compare two sequences of parts; raises ArtifactDamaged if they cannot be read."""
    sides = _with_keys("left", left, options.limits), _with_keys("right", right, options.limits)
    return _Comparison(name, (name, name), options, 0, format_).of(*sides)


def _parts(side: str, format_: Format, file: FileSide, limits: Limits) -> Iterator[tuple[Key, Part]]:
    return _with_keys(side, format_.read(file.source, limits), limits)


def _with_keys(side: str, parts: Iterable[Part], limits: Limits) -> Iterator[tuple[Key, Part]]:
    """Yield the parts of a file with unique keys; raises ArtifactDamaged beyond the limits."""
    occurrences: Counter[str] = Counter()
    length = 0
    try:
        for number, part in enumerate(parts):
            length += len(part.name) + (len(part.text) if isinstance(part, (Value, Noise)) else 0)
            limits.spent.parts += 1
            if number >= limits.parts or limits.spent.parts > 4 * limits.parts:
                raise ArtifactDamaged(f"it has more than {limits.parts} parts")
            if length > limits.header:
                raise ArtifactDamaged(f"names and values come to more than {limits.header} bytes")
            occurrences[part.name] += 1
            nth = occurrences[part.name]
            yield (part.name, nth), part if nth == 1 else replace(part, name=f"{part.name} ({nth})")
    except OSError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, ArtifactDamaged) else f"{type(error).__name__}: {error}"
        raise ArtifactDamaged(f"the {side} one: {text}") from error


class _Comparison:
    """Compares two files of the same format part by part."""

    def __init__(
        self, name: str, files: tuple[str, str], options: CompareOptions, depth: int, format_: Format | None
    ):  # without a format: the arrays of a checkpoint in several files
        self._name, self._files, self._options, self._depth = name, files, options, depth
        self._format = format_
        self._ignored = IgnoredParts(MOST_LEAVES)
        self._differences: list[tuple[int, Difference]] = []
        self._bookkeeping: list[tuple[int, Difference]] = []
        self._more_bookkeeping: Counter[BookkeepingKind] = Counter()
        self._differing: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()
        self._keys: dict[str, list[str]] = defaultdict(list)  # of the left file, by what they stand below
        self._beyond = 0  # differing parts that the tolerance does not accept
        self._tolerated: set[str] = set()  # names of the lists of numbers that are within the tolerance
        self._noise: list[str] = []
        self._reports_noise = True
        self._identical: dict[int, Source] = {}  # sources of identical parts, whose checksums are verified

    def of(self, left: Iterator[tuple[Key, Part]], right: Iterator[tuple[Key, Part]]) -> Difference:
        """Return the tree of differences; parts are matched by key, in the order of the left file."""
        index = {key: (number, part) for number, (key, part) in enumerate(left)}
        if self._options.judge is not None:
            self._note_keys(name for name, _ in index)
        right_only = RenamedTensors(self._options.limits)
        for number, (key, part) in enumerate(right):
            position, left_part = index.pop(key, (number, None))
            if left_part is None and isinstance(part, TensorPart):
                right_only.add(number, part)
            else:
                self._add(position, left_part, part)
        for position, part in index.values():
            self._add(position, part, right_only.take(part))
        for position, part in right_only.rest():
            self._add(position, None, part)
        return self._tree()

    def _note_keys(self, names: Iterable[str]) -> None:
        """Keep the keys below each path, which stand beside a value, or beside the list that holds it."""
        for name in names:
            parent, _, key = name.rpartition("/")
            if parent and parent not in self._keys:
                self._note_key(*parent.rpartition("/")[::2])
            self._note_key(parent, key)

    def _note_key(self, parent: str, key: str) -> None:
        self._keys[parent] += [key] if len(self._keys[parent]) < MOST_KEYS else []

    def _add(self, position: int, left: Part | None, right: Part | None) -> None:
        if isinstance(left or right, Noise) and isinstance(right or left, Noise):
            texts = [part.text if isinstance(part, Noise) else "" for part in (left, right)]
            if texts[0] != texts[1]:
                self._add_noise(position, left or right, texts)  # type: ignore[arg-type]
            return
        kind = _KINDS[type(left or right)]
        self._compared[kind] += 1
        try:
            difference = self._declared(self._pair(left, right), left, right)
        finally:
            _release(left, right)
        if difference is not None and difference.verdict is Verdict.IGNORED:
            self._ignored.add(difference, position)
            return
        if difference is None or not difference.verdict.not_bitwise:
            if difference is not None and difference.verdict is Verdict.BOOKKEEPING:
                self._add_bookkeeping(position, difference)
            elif difference is not None and difference.detail:  # such as the noise of a nested file
                name = difference.name.removeprefix(f"{self._name}/")
                self._noise.append(f"{name} ({difference.figures.get(OTHER, difference.detail)})")
            sources = [getattr(part, "source", None) for part in (left, right)]
            self._identical.update((id(source), source) for source in sources if source is not None)
            return
        self._differing[kind] += 1
        self._beyond += difference.verdict.differs
        if sum(self._differing.values()) <= MOST_LEAVES:
            self._differences.append((position, difference))

    def _add_noise(self, position: int, part: Noise, texts: list[str]) -> None:
        """Count what a container added; where a judge is asked, times and ids of the run are bookkeeping."""
        if part.kind is not None and self._options.judge is not None:
            shown = [text if len(text) <= SHORT_NOISE else "" for text in texts]
            self._add_bookkeeping(position, bookkeeping(f"{self._name}/{part.name}", shown[0], shown[1], part.kind))
        else:
            self._noise.append(part.name)

    def _add_bookkeeping(self, position: int, difference: Difference) -> None:
        if len(self._bookkeeping) < MOST_BOOKKEEPING:
            self._bookkeeping.append((position, difference))
        else:
            self._more_bookkeeping.update(difference.bookkeeping())

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
            return self._blobs(name, left, right)
        if isinstance(left, NestedFile) and isinstance(right, NestedFile):
            return self._nested(name, left, right)
        return Difference(name, Verdict.DIFFERENT, described(left), described(right), "a part of another kind")

    def _declared(self, difference: Difference | None, left: Part | None, right: Part | None) -> Difference | None:
        """Return the result for a part, as ignored where it differs and the user declared that it may."""
        part, declared = left or right, self._options.declared
        if declared is None or difference is None or part is None or not difference.may_be_declared:
            return difference
        root = f"{self._format.root}/" if self._format is not None else ""
        paths = dict.fromkeys((f"{self._name}/{part.name.removeprefix(root)}", f"{self._name}/{part.name}"))
        is_bookkeeping = difference.verdict is Verdict.BOOKKEEPING
        of_model = self._format is None or self._format.is_model
        ignored = declared(list(paths), left, right, of_model=of_model, is_bookkeeping=is_bookkeeping)
        return difference if ignored is None else replace(difference, judged=Verdict.IGNORED, ignored=(ignored,))

    def _one_sided(self, left: Part | None, right: Part | None) -> Difference:
        self._reports_noise = False  # summaries over all members mean nothing if members are missing
        part = left or right
        assert part is not None
        texts = (described(left) if left else "", described(right) if right else "")
        return missing(f"{self._name}/{part.name}", *texts, f"only the {'left' if left else 'right'} file has it")

    def _values(self, name: str, left: Value, right: Value) -> Difference | None:
        difference = value_difference(name, left.text, right.text, tolerance=self._options.values)
        if difference is not None and self._options.judge is not None:
            parent, _, key = left.name.rpartition("/")
            parent = parent.rpartition("/")[0] if key.isdecimal() else parent  # an item of a list, as of a column
            texts = left.text, right.text
            difference = judged_value(self._options.judge, difference, left.name, texts, tuple(self._keys[parent]))
        if (
            difference is not None
            and left.name.endswith(AS_WRITTEN)
            and left.name.removesuffix(AS_WRITTEN) in self._tolerated
        ):
            return replace(difference, judged=Verdict.TOLERATED, detail="the digest of numbers within the tolerance")
        return difference

    def _blobs(self, name: str, left: Blob, right: Blob) -> Difference | None:
        if raw.same(left.source, right.source):
            return None
        judge = self._options.judge
        if judge is not None and max(left.source.size, right.source.size) <= LONGEST_TEXT:
            texts = [blob.source.read(0, LONGEST_TEXT).decode("utf-8", "surrogateescape") for blob in (left, right)]
            difference = judge.value(name, left.name.removesuffix(" (contents)"), (texts[0], texts[1]))
            if difference is not None:
                return difference
        return raw.difference(name, left.source, right.source)

    def _nested(self, name: str, left: NestedFile, right: NestedFile) -> Difference:
        names = [part.name or _unpacked_name(file) for part, file in zip((left, right), self._files, strict=True)]
        sides = FileSide(left.source, names[0]), FileSide(right.source, names[1])
        difference = compare(name, *sides, self._options, self._depth + 1)
        if left.check != right.check and difference.verdict is Verdict.IDENTICAL and not difference.detail:
            meaning = "the same bytes under different check sums: one of the containers is damaged"
            return Difference(name, Verdict.DIFFERENT, left.check, right.check, meaning)
        return difference

    def _tensors(self, name: str, left: TensorPart, right: TensorPart) -> Difference | None:
        limits = self._options.limits
        for tensor in (left, right):
            tensors.check(tensor, limits)
        if left.dtype != right.dtype or left.shape != right.shape:
            property_ = "type" if left.dtype != right.dtype else "shape"
            return Difference(name, Verdict.DIFFERENT, described(left), described(right), f"another {property_}")
        statistics = tensors.compare(left, right, limits, self._options.tolerance)
        if self._options.tolerance is not None and not statistics.beyond and left.name.endswith(NUMBERS):
            self._tolerated.add(left.name.removesuffix(NUMBERS))
        if not statistics.differing:
            return None
        difference = tensor_difference(name, left, right, statistics, self._options.tolerance)
        if self._options.judge is None:
            return difference
        texts, path = (difference.left, difference.right), left.name.removesuffix(NUMBERS)
        return self._options.judge.numbers(name, path, texts, statistics.differing) or difference

    def _tree(self) -> Difference:
        if not self._beyond:
            for source in self._identical.values():
                verify(source)
        if not self._differing and not self._ignored.count and not self._bookkeeping:
            return _equal_content(self._name, self._noise_text())
        named = [*self._differences, *self._bookkeeping, *self._ignored.children(self._name)]
        children = [child for _, child in sorted(named, key=lambda pair: pair[0])]
        children += more_bookkeeping(self._name, self._more_bookkeeping)
        if (more := sum(self._differing.values()) - len(self._differences)) > 0:
            verdict = Verdict.DIFFERENT if self._beyond else Verdict.TOLERATED
            children.append(Difference(f"{self._name}: {more} more", verdict, detail="not named one by one"))
        counted_kinds = [counted(n, self._compared[kind], kind) for kind, n in sorted(self._differing.items())]
        counts = "; ".join(filter(None, (*counted_kinds, self._ignored.words))) or "the same but for bookkeeping"
        noise = self._noise_text()
        return group(self._name, tuple(children), counts + (f"; also in {noise}" if noise else ""))

    def _noise_text(self) -> str:
        if not self._noise or not self._reports_noise:
            return ""
        return listed(self._noise, MOST_NOISE)


def _equal_content(name: str, other: str) -> Difference:
    """Return the leaf of two files whose contents are equal; bytes that their reader leaves out may differ."""
    if not other:
        return Difference(name, Verdict.IDENTICAL, detail=f"{SAME}, written in other bytes")
    return Difference(name, Verdict.IDENTICAL, detail=f"{SAME}; other {other}", figures={OTHER: other})


def _unpacked_name(name: str) -> str:
    """Return the name of the file within a compressed file of this name."""
    stem, dot, ending = name.rpartition(".")
    if ending.lower() in ("tgz", "tbz", "txz"):
        return f"{stem}.tar"
    return stem if dot and ending.lower() in ("gz", "bz2", "xz", "lzma") else name


def _release(*parts: Part | None) -> None:
    """Release the data that was unpacked to compare a pair of parts."""
    for part in parts:
        release = getattr(getattr(part, "source", None), "release", None)
        if release is not None:
            release()


class RenamedTensors:
    """The tensors that only the right file has, with their positions, by dtype and shape."""

    def __init__(self, limits: Limits):
        self._limits, self._comparisons_left = limits, MOST_COMPARED
        self._right_only: dict[tuple[str, tuple[int, ...]], list[tuple[int, TensorPart]]] = defaultdict(list)

    def add(self, position: int, tensor: TensorPart) -> None:
        """Add a tensor that only the right file has."""
        self._right_only[tensor.dtype, tensor.shape].append((position, tensor))

    def take(self, part: Part) -> TensorPart | None:
        """Remove and return a tensor equal to `part`, which only the left file has; None if there is none."""
        candidates = self._right_only.get((part.dtype, part.shape), []) if isinstance(part, TensorPart) else []
        for number, (_, tensor) in enumerate(candidates):
            if self._are_equal(part, tensor):
                return candidates.pop(number)[1]
        return None

    def _are_equal(self, left: Part, right: TensorPart) -> bool:
        self._comparisons_left -= 1
        if self._comparisons_left < 0 or not isinstance(left, TensorPart) or 0 in left.shape:
            return False
        try:
            return not tensors.compare(left, right, self._limits).differing
        except ArtifactDamaged:
            return False

    def rest(self) -> Iterator[tuple[int, TensorPart]]:
        """Yield the tensors that were not taken, with their positions."""
        for tensors_of_digest in self._right_only.values():
            yield from tensors_of_digest


def renamed(file: str, left: Part, right: Part) -> Difference:
    """Return the leaf of a tensor that has another name in the right file."""
    detail = f"renamed: {right.name} in the right file has equal content"
    return Difference(f"{file}/{left.name}", Verdict.DIFFERENT, described(left), described(right), detail)
