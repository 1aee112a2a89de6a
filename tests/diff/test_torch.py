"""PyTorch's files: every kind of tensor by its path, the old formats like the new one, damage as one clear line."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.difference import Verdict
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats.torch import read
from reprokit.diff.sources import BytesSource
from tests.diff.objects import meaning, named, same, shown
from tests.diff.samples import diff, tarred

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def saved(item: object, *, old: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(item, file, _use_new_zipfile_serialization=not old)
    return file.getvalue()


def checkpoint() -> dict[str, Any]:
    """A model and its optimizer after one step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "epoch": 1}


@pytest.mark.slow
def test_the_name_of_an_exported_program_is_that_of_its_archive(tmp_path: Path) -> None:
    def exported(name: str, weight: float = 1.0) -> bytes:
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, weight)
        torch.nn.init.zeros_(model.bias)
        torch.export.save(torch.export.export(model, (torch.zeros(1, 3),)), tmp_path / name)
        return (tmp_path / name).read_bytes()

    left = exported("left.pt2")
    found = diff(left, exported("right.pt2"), "m.pt2")
    assert (found.verdict, "(name of the archive)" in found.detail) == (Verdict.IDENTICAL, True)
    assert not diff(left, exported("other.pt2"), "m.bin").verdict.differs
    [leaf] = diff(left, exported("changed.pt2", 2.0), "m.pt2").leaves()
    assert leaf.name == "m.pt2/data/weights/weight_0"


def nudged(tensor: Any, place: tuple[int, ...]) -> None:
    tensor[place] = torch.nextafter(tensor[place], torch.tensor(9.0))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: nudged(c["model"]["0.weight"], (2, 1)), "model/0.weight"),
        (lambda c: nudged(c["optimizer"]["state"][0]["exp_avg"], (2, 1)), "optimizer/state/0/exp_avg"),
        (lambda c: c["rng"].__setitem__(100, c["rng"][100] ^ 1), "rng"),
        (lambda c: c.__setitem__("epoch", 2), "epoch"),
        (lambda c: c["optimizer"]["param_groups"][0].__setitem__("lr", 0.002), "optimizer/param_groups/0/lr"),
    ],
)
def test_what_changes_in_a_checkpoint_is_named(change: Callable[[Any], None], name: str, old: bool) -> None:
    left, other = saved(checkpoint(), old=old), checkpoint()
    assert same(left, saved(checkpoint(), old=old), "a.pt")
    change(other)
    found = named(left, saved(other, old=old), "a.pt")
    assert found.keys() == {name}
    if name.endswith(("weight", "exp_avg")):
        assert "first at [2, 1]" in found[name]
        assert "1 ULP" in found[name]


def kinds() -> dict[str, Any]:
    """Tensors of every type and layout."""
    found = {str(dtype): torch.ones(3).to(dtype) for dtype in TYPES}
    base = torch.arange(100.0)
    return {
        **found,
        "view": torch.arange(100.0)[10:20],
        "step": base[10:30:2],
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "channels": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "expanded": torch.full((1,), 2.0).expand(5),
        "windows": base.unfold(0, 50, 1),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "channelwise": torch.quantize_per_channel(
            torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
        ),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(3, device="meta"),
        "storage": torch.arange(3.0).storage(),
        "untyped": torch.ones(2).untyped_storage(),
        "empty": torch.zeros(3, 0),
        "scalar": torch.tensor(1.5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "subclass": torch.nn.Buffer(torch.ones(2)),
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
    }


TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip
CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    **{str(dtype): (lambda t: t.cpu().clone().zero_(), str(dtype)) for dtype in TYPES},
    "view": (lambda t: torch.arange(100.0)[11:21], "view"),
    "transposed": (lambda t: t.contiguous().add_(1), "transposed"),
    "channels": (lambda t: t.contiguous().neg_(), "channels"),
    "expanded": (lambda t: torch.full((1,), 2.0).expand(6), "expanded"),
    "conjugated": (lambda t: torch.ones(2, dtype=torch.complex64), "conjugated/(metadata)"),
    "quantized": (lambda t: torch.quantize_per_tensor(torch.ones(3), 0.2, 0, torch.quint8), "quantized/(quantizer)"),
    "coo": (lambda t: torch.eye(3).roll(1).to_sparse(), "coo/indices"),
    "csr": (lambda t: (2 * torch.eye(3)).to_sparse_csr(), "csr/values"),
    "meta": (lambda t: torch.empty(4, device="meta"), "meta/(arguments)/1"),
    "storage": (lambda t: torch.arange(1.0, 4.0).storage(), "storage"),
    "untyped": (lambda t: torch.zeros(2).untyped_storage(), "untyped"),
    "empty": (lambda t: torch.zeros(4, 0), "empty"),
    "scalar": (lambda t: torch.tensor(1.25), "scalar"),
    "parameter": (lambda t: torch.nn.Parameter(torch.ones(2), requires_grad=False), "parameter (tensor)"),
    "size": (lambda t: torch.Size([2, 1]), "size/(arguments)/0"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_every_kind_of_tensor(key: str) -> None:
    change, name = CHANGES[key]
    item = kinds()
    left = saved(item)
    item[key] = change(item[key])
    found = named(left, saved(item), "a.pt")
    assert name in found, found
    assert all(other.startswith(key) for other in found), found


def test_the_order_of_a_tensor_in_memory_is_noise() -> None:
    item = kinds()
    left = saved(item)
    item.update({key: item[key].contiguous() for key in ("transposed", "channels")})
    assert same(left, saved(item), "a.pt")


def test_the_stream_of_pickles_means_the_same_as_the_archive() -> None:
    assert same(saved(kinds()), saved(kinds(), old=True), "a.pt")
    module = torch.nn.Linear(2, 2)
    found = set(named(saved(module), saved(module, old=True), "a.pt"))
    assert all(name.startswith("(source of torch.nn.modules.linear.Linear)") for name in found)


def test_shared_storages_are_told_from_equal_ones() -> None:
    weight = torch.ones(4)
    tied, apart = saved({"a": weight, "b": weight[:]}), saved({"a": weight, "b": weight.clone()})
    assert named(tied, apart, "a.pt").keys() == {"b (storage)"}


def test_elements_that_no_tensor_shows_count_too() -> None:
    base, other = torch.zeros(10), torch.zeros(10)
    other[9] = 1
    found = named(saved({"x": base[:3]}), saved({"x": other[:3]}), "a.pt")
    assert found.keys() == {"x (all of its storage)"}


def test_modules_by_their_attributes() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    left = saved(model)
    nudged(model[0].weight.data, (1, 0))
    assert named(left, saved(model), "a.pt").keys() == {"Sequential/_modules/0/_parameters/weight"}


def test_torchscript(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.jit.script(torch.nn.Linear(2, 2))
    torch.jit.save(model, tmp_path / "one.pt")
    nudged(model.weight.data, (1, 0))
    torch.jit.save(model, tmp_path / "two.pt")
    left, right = ((tmp_path / name).read_bytes() for name in ("one.pt", "two.pt"))
    assert named(left, right, "a.pt").keys() == {"Linear/weight"}
    renamed = rewritten(left, lambda name, data: data.replace(b"linear", b"linaer"))
    assert any(name.startswith("code/__torch__/torch/nn/modules/linear.py") for name in named(left, renamed, "a.pt"))


def rewritten(archive: bytes, change: Callable[[str, bytes], bytes | None], top: str = "") -> bytes:
    """The archive with other members."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(zipfile.ZipInfo(name if not top else top + name[name.index("/") :]), data)
    return file.getvalue()


def test_what_the_archive_adds_is_noise() -> None:
    data = saved(checkpoint())
    other = rewritten(data, lambda name, data: b"7" * 40 if name.endswith("serialization_id") else data, top="renamed")
    assert data != other
    assert same(data, other, "a.pt")


def test_members_keep_their_order_in_an_archive_of_another_name() -> None:
    data = saved(checkpoint())
    renamed = rewritten(data, lambda _, data: data, top="renamed")
    detail = diff(rewritten(data, lambda _, data: data), renamed, "a.pt").detail
    assert "name of the archive" in detail
    assert "order of members" not in detail


def test_big_endian_archives() -> None:
    item = {"x": torch.arange(5.0), "n": torch.arange(5), "b": torch.tensor([1, 0], dtype=torch.bool)}
    sizes = {"0": "f", "1": "q", "2": "?"}

    def swapped(name: str, data: bytes) -> bytes:
        key = name.rpartition("/")[2]
        if "/data/" in name:
            count = len(data) // struct.calcsize(sizes[key])
            return struct.pack(f">{count}{sizes[key]}", *struct.unpack(f"<{count}{sizes[key]}", data))
        return b"big" if key == "byteorder" else data

    little = saved(item)
    big = rewritten(little, swapped)
    assert torch.load(io.BytesIO(big))["x"].equal(item["x"])
    assert same(little, big, "a.pt")
    nudged(item["x"], (3,))
    assert named(saved(item), big, "a.pt").keys() == {"x"}


def test_the_tar_of_the_first_versions_is_compared_as_bytes() -> None:
    members = {name: pickle.dumps({}, 2) for name in ("sys_info", "pickle", "tensors", "storages")}
    left, right = tarred(members), tarred({**members, "pickle": pickle.dumps([], 2)})
    found = diff(left, right, "a.pt")
    assert "cannot be read as tar of PyTorch before 0.1.10 (" in found.detail
    assert "save it again with a later PyTorch" in found.detail
    assert "compared as bytes" in found.detail
    assert diff(left, left, "a.pt").verdict is Verdict.IDENTICAL


def loaded(data: bytes) -> str | None:
    try:
        return repr(torch.load(io.BytesIO(data), weights_only=True))
    except Exception:
        return None


@pytest.mark.parametrize("old", [False, True])
def test_no_flipped_bit_or_cut_is_missed(old: bool) -> None:
    data = saved({"w": torch.arange(3.0), "v": torch.ones(2)[1:], "n": [1.5]}, old=old)
    right, value = shown(read, data), loaded(data)
    generator = random.Random(1)
    for place in {generator.randrange(8 * len(data)) for _ in range(400)}:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        if meaning(read, bytes(flipped)) == right:
            assert loaded(bytes(flipped)) in (value, None), f"bit {place % 8} of byte {place // 8}"
    for length in range(0, len(data), 1 if old else 7):
        assert meaning(read, data[:length]) is None


def refused(data: bytes, words: str) -> None:
    with pytest.raises(ArtifactDamaged, match=words) as caught:
        list(read(BytesSource(data), Limits()))
    assert "\n" not in str(caught.value)


def test_a_call_in_place_of_a_flag_counts() -> None:
    """Whether a parameter needs gradients may be said by nothing but a truth value."""
    data = saved({"x": torch.nn.Parameter(torch.ones(2))})

    def calling(letter: bytes) -> bytes:
        call = b"cos\nsystem\nX\x01\0\0\0" + letter + b"\x85R"
        return rewritten(data, lambda n, d: d.replace(b"\x88", call) if n.endswith("data.pkl") else d)

    assert b"cos\nsystem" in calling(b"a")
    assert named(calling(b"a"), calling(b"b"), "a.pt")


def test_damaged_archives() -> None:
    data = saved({"x": torch.arange(5.0), "y": torch.arange(3)})
    refused(
        rewritten(data, lambda n, d: d[:-4] if n.endswith("data/0") else d), "data/0 has 16 bytes, a tensor says 20"
    )
    refused(rewritten(data, lambda n, d: None if n.endswith("data/1") else d), "the file has no storage '1'")
    refused(rewritten(data, lambda n, d: b"middle" if n.endswith("byteorder") else d), "byteorder is 'middle'")
    refused(rewritten(data, lambda n, d: d[:40] if n.endswith("data.pkl") else d), "data.pkl: the pickle ends")
    extra = rewritten(data, lambda n, d: d + b"x" if n.endswith("data.pkl") else d)
    assert named(data, extra, "a.pt").keys() == {"(after the end)"}
    two = io.BytesIO(data)
    with zipfile.ZipFile(two, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data/0", bytes(20))
    refused(two.getvalue(), "same name")


def test_absurd_sizes() -> None:
    def grown(name: str, data: bytes) -> bytes:
        return data.replace(b"K\x00K\x05\x85", b"K\x00\x8a\x08" + b"\xff" * 7 + b"\x7f\x85")

    data = saved({"x": torch.arange(5.0)})
    assert grown("", zipfile.ZipFile(io.BytesIO(data)).read("archive/data.pkl")) in rewritten(data, grown)
    refused(rewritten(data, grown), "x goes beyond the 20 bytes")
    old = saved({"x": torch.arange(5.0)}, old=True)
    place = old.rindex(struct.pack("<q", 5))
    refused(
        old[:place] + struct.pack("<q", 1 << 60) + old[place + 8 :], "storage 0 is to have 1152921504606846976 elements"
    )
    refused(old[:place] + struct.pack("<q", -1) + old[place + 8 :], "storage 0 is to have -1 elements")


def test_a_thousand_views_of_one_storage_are_quick() -> None:
    base = torch.zeros(1 << 18)
    views = [base[start:] for start in range(1000)]
    left = saved(views)
    base[7] = 1
    found = named(left, saved(views), "a.pt")
    assert {"0", "1"} <= found.keys()
    assert "0 (all of its storage)" in found
    assert len(found) < 10
