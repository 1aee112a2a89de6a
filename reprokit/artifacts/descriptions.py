"""Says in words what parts are and how they differ."""

from __future__ import annotations

from reprokit import dtypes
from reprokit.artifacts.elements import Noise, Part, TensorPart, Value
from reprokit.artifacts.sources import exactly
from reprokit.artifacts.statistics import Extreme, StatisticsJudgment, TensorStatistics, document, multi_index
from reprokit.artifacts.tensors import strides_of
from reprokit.difference import Difference

LONGEST = 200  # characters of a value


def cut(text: str) -> str:
    """A value short enough to be read."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def described(part: Part) -> str:
    """A part in a few words."""
    if isinstance(part, TensorPart):
        return f"{part.dtype} {shape_text(part.shape)}"
    if isinstance(part, (Value, Noise)):
        return cut(part.text) or "(empty)"
    return f"{part.source.size} bytes"


def counted(differing: int, compared: int, kind: str) -> str:
    """How many of how many things differ."""
    things = {"file within": "files within"}.get(kind, f"{kind}s")
    return f"{differing} of {compared} {things if compared != 1 else kind} differ{'s' if differing == 1 else ''}"


def element(tensor: TensorPart, at: int) -> bytes:
    """The element of this index, little-endian."""
    dtype = dtypes.named(tensor.dtype)
    if dtype.packed:
        return _packed_element(tensor, dtype, at)
    steps = zip(multi_index(at, tensor.shape), strides_of(tensor), strict=True)
    place = sum(index * stride for index, stride in steps) if tensor.strides else at
    size = dtype.element_size
    found = exactly(tensor.source, tensor.offset + place * size, size)
    if not tensor.big_endian or dtype.kind == dtypes.RAW:
        return found
    return b"".join(found[i : i + dtype.size][::-1] for i in range(0, size, dtype.size))


def _packed_element(tensor: TensorPart, dtype: dtypes.Dtype, at: int) -> bytes:
    first = at * dtype.bits
    last = (first + dtype.bits - 1) // 8
    word = int.from_bytes(exactly(tensor.source, tensor.offset + first // 8, last - first // 8 + 1), "little")
    return bytes([word >> first % 8 & ((1 << dtype.bits) - 1)])


def tensor_difference(
    name: str, left: TensorPart, right: TensorPart, found: TensorStatistics, judgement: StatisticsJudgment
) -> Difference:  # fmt: skip
    """The leaf of two tensors that differ."""
    assert found.first is not None
    dtype = dtypes.named(left.dtype)
    at = found.first if judgement.at is None else judgement.at
    elements = element(left, at), element(right, at)
    texts = [dtypes.shown(dtype, one) for one in elements]
    if texts[0] == texts[1]:
        texts = [dtypes.shown(dtype, one, exact=True) for one in elements]
    return Difference(
        name,
        judgement.verdict,
        texts[0],
        texts[1],
        "; ".join(filter(None, (judgement.sentence or sentence(found, left.shape, left.dtype), judgement.remark))),
        figures={"dtype": left.dtype, "shape": list(left.shape), **document(found, left.shape)},
    )


def sentence(found: TensorStatistics, shape: tuple[int, ...], dtype: str) -> str:
    """How many elements differ, where first, and by how much at most."""
    assert found.first is not None
    number = f"{found.differing} of {found.elements} elements" if found.elements > 1 else "the only element"
    pieces = [f"{number} of {dtype} {shape_text(shape)} differ{'s' if found.differing == 1 else ''}"]
    if found.elements > 1:
        pieces[0] += f", first at {shape_text(tuple(multi_index(found.first, shape)))}"
    pieces += _distances(found, shape)
    special = (
        (found.sign_change, "with another sign"),
        (found.zero_sign, "+0 against -0"),
        (found.nan_payload, "NaN against another NaN"),
        (found.nan, "NaN against a number"),
        (found.infinite, "infinity against another value"),
    )
    pieces += [f"{count} {text}" for count, text in special if count]
    return "; ".join(pieces)


def _distances(found: TensorStatistics, shape: tuple[int, ...]) -> list[str]:
    def place(extreme: Extreme) -> str:
        return shape_text(tuple(multi_index(extreme.at, shape)))

    if found.absolute is None or found.relative is None or found.ulp is None or found.ulp.whole == 0:
        return []
    absolute, relative, ulp = found.absolute, found.relative, found.ulp
    if found.elements == 1:
        return [f"by {absolute.value:.6g}, relative {relative.value:.3g}, {ulp.whole} ULP"]
    return [
        f"at most {absolute.value:.6g} at {place(absolute)}, relative {relative.value:.3g} at {place(relative)},"
        f" {ulp.whole} ULP at {place(ulp)}"
    ]
