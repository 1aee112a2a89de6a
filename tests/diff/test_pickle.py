"""Pickles: what is in them is named, what changes is found, and nothing of it is ever run."""

from __future__ import annotations

import collections
import io
import math
import os
import pickle
import resource
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprokit.core.difference import Verdict
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats.pickle import read
from reprokit.diff.formats.pickle_unpickler import InertUnpickler
from reprokit.diff.sources import BytesSource, FileSource, ForwardReader
from tests.diff.objects import meaning, named, same, shown
from tests.diff.samples import diff
from tests.support import rest_slow

PROTOCOLS = range(6)


def everything() -> dict[str, Any]:
    """An object of everything that protocols write in different ways."""
    found: dict[str, Any] = {
        "big-endian": np.arange(6, dtype=">f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "large": np.arange(5000.0) / 7,
        "set": {3, 1, "x"},
        "frozenset": frozenset("abc"),
        "ordered": collections.OrderedDict(a=1, b=[1.5, math.nan]),
        "bytes": b"\x80" * 10,
        "many bytes": bytes(range(256)) * 40,
        "bytearray": bytearray(b"\x80abc"),
        "dates": np.array(["2020-01-01"], dtype="M8[D]"),
        "records": np.zeros(3, dtype=[("a", "f8"), ("b", "i8", (2,))]),
        "objects": np.array([1, "a", None], dtype=object),
        "scalar": np.float32(1.25),
        "texts": np.array(["ab", "c"]),
        "long": -(2**100),
        "complex": 1 + 2j,
        "tuple": (1, (2, 3), ()),
        "floats": [0.1 * number for number in range(100)],
        "text": "é" * 3000,
        "none": None,
        "true": True,
        "type": np.dtype("f4"),
        "random": np.random.RandomState(3),
    }
    found["again"] = found["large"]
    return found


EVERYTHING = everything()


def dumped(item: object, protocol: int = 4) -> bytes:
    return pickle.dumps(item, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_protocols_mean_the_same(protocol: int) -> None:
    assert same(dumped(EVERYTHING, 4), dumped(EVERYTHING, protocol), "a.pkl")
    assert shown(read, dumped(EVERYTHING, 4)) == shown(read, dumped(EVERYTHING, protocol))


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("set", {3, 1, "y"}, "set"),
        ("frozenset", frozenset("abd"), "frozenset"),
        ("ordered", collections.OrderedDict(b=[1.5, math.nan], a=1), "ordered (order of keys)"),
        ("bytes", b"\x81" + b"\x80" * 9, "bytes"),
        ("many bytes", bytes(range(256)) * 39 + bytes(255) + b"x", "many bytes (contents)"),
        ("bytearray", b"\x80abc", "bytearray"),
        ("long", 2**100, "long"),
        ("complex", 1 - 2j, "complex"),
        ("true", 1, "true"),
        ("none", "None", "none"),
        ("scalar", np.float64(1.25), "scalar"),
        ("tuple", [1, (2, 3), ()], "tuple"),
        ("text", "é" * 2999 + "e", "text (contents)"),
        ("type", np.dtype(">f4"), "type"),
        ("dates", np.array(["2020-01-01"], dtype="M8[h]"), "dates (type)"),
        ("texts", np.array(["ab", "d"]), "texts"),
        ("objects", np.array([1, "b", None], dtype=object), "objects/1"),
        ("random", np.random.RandomState(4), "random/state/key"),
    ],
)
def test_what_changes_is_named(protocol: int, key: str, value: object, name: str) -> None:
    changed = {**EVERYTHING, key: value}
    found = named(dumped(EVERYTHING, protocol), dumped(changed, protocol), "a.pkl")
    assert name in found, found
    assert all(other.startswith(key) for other in found), found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_ulp_of_an_array_a_list_and_a_number(protocol: int) -> None:
    array, numbers = EVERYTHING["large"].copy(), list(EVERYTHING["floats"])
    array[77] = math.nextafter(array[77], 9.0)
    numbers[50] = math.nextafter(numbers[50], 9.0)
    other = {**EVERYTHING, "large": array, "again": array, "floats": numbers}
    found = named(dumped(EVERYTHING, protocol), dumped(other, protocol), "a.pkl")
    assert found.keys() == {"large", "floats"}
    assert "first at [77]" in found["large"]
    assert "first at [50]" in found["floats"]
    assert all("1 ULP" in text for text in found.values())


@pytest.mark.parametrize("other", [0.0, math.nextafter(1.0, 2), -1.0, math.inf, math.nan])
def test_numbers_are_compared_by_their_bits(other: float) -> None:
    base = {"x": 1.0, "zero": -0.0}
    assert named(dumped(base), dumped({**base, "x": other}), "a.pkl").keys() == {"x"}
    assert named(dumped(base), dumped({**base, "zero": 0.0}), "a.pkl").keys() == {"zero"}
    payload = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    assert same(dumped({"x": math.nan}), dumped({"x": math.nan}), "a.pkl")
    assert not same(dumped({"x": math.nan}), dumped({"x": payload}), "a.pkl")


def test_the_order_of_an_array_in_memory_is_noise() -> None:
    one = dumped({"x": np.asfortranarray(np.arange(6.0).reshape(2, 3))})
    assert same(one, dumped({"x": np.arange(6.0).reshape(2, 3)}), "a.pkl")
    assert named(one, dumped({"x": np.arange(6.0).reshape(3, 2).T}), "a.pkl").keys() == {"x"}


def test_the_order_of_a_dict_counts_and_that_of_a_set_does_not() -> None:
    assert named(dumped({"a": 1, "b": 2}), dumped({"b": 2, "a": 1}), "a.pkl").keys() == {"(root) (order of keys)"}
    words = [f"word {number}" for number in range(50)]
    sets = {pickle.dumps(set(order), 4) for order in (words, words[::-1])}
    one, other = b"\x8f\x94(K\x01K\x02\x90.", b"\x8f\x94(K\x02K\x01\x90."
    assert same(b"\x80\x04" + one, b"\x80\x04" + other, "a.pkl")
    assert all(same(next(iter(sets)), data, "a.pkl") for data in sets)
    assert not same(b"\x80\x04\x8f(K\x01G?\xf0\0\0\0\0\0\0\x90.", b"\x80\x04\x8f(G?\xf0\0\0\0\0\0\0K\x01\x90.", "a.pkl")


def test_a_forest_has_readable_paths() -> None:
    from sklearn.ensemble import RandomForestClassifier

    x = np.random.default_rng(1).random((40, 3))
    forest = RandomForestClassifier(n_estimators=2, random_state=1).fit(x, x[:, 0] > 0.5)
    left = dumped(forest)
    state = forest.estimators_[1].tree_.__getstate__()
    state["values"][0, 0, 0] = np.nextafter(state["values"][0, 0, 0], 9)
    state["nodes"]["threshold"][0] = np.nextafter(state["nodes"]["threshold"][0], 9)
    forest.estimators_[1].tree_.__setstate__(state)
    tree = "RandomForestClassifier/estimators_/1/tree_"
    assert named(left, dumped(forest), "a.pkl").keys() == {f"{tree}/values", f"{tree}/nodes/threshold"}


def test_objects_within_themselves_are_shown_once() -> None:
    loop: list[object] = [1]
    loop.append(loop)
    ring: dict[str, object] = {"list": loop, "two": loop}
    ring["self"] = ring
    found = shown(read, dumped(ring))
    assert found["self"] == "the same object as (root)"
    assert found["list/1"] == found["two"] == "the same object as list"
    apart = {**ring, "two": [1]}
    assert "two" in named(dumped(ring), dumped(apart), "a.pkl")


def test_several_pickles_and_bytes_behind_them() -> None:
    data = dumped({"a": 1}) + dumped({"a": 2})
    assert named(data, dumped({"a": 1}) + dumped({"a": 3}), "a.pkl").keys() == {"(2)/a"}
    assert named(data + b"x", data + b"y", "a.pkl").keys() == {"(after the end)"}


def test_python_2() -> None:
    """Written by Python 2.7: pickle.dumps({'w': numpy.arange(2.), 's': 'a\\x80', 'i': Old()}, protocol 2 and 0)."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02\x85"
    array += b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x10"
    array += struct.pack("<2d", 0, 1) + b"tb"
    binary = b"\x80\x02}(U\x01w" + array + b"U\x01sU\x02a\x80U\x01i(c__main__\nOld\no}U\x01xK\x01sbu."
    found = shown(read, binary)
    assert found["w"].startswith("float64 (2,)")
    assert found["s"] == r"str8 b'a\x80'"
    assert found["i/x"] == "1"
    text = b"(dp0\nS's'\nS'a\\x80'\ns."
    assert shown(read, text)["s"] == found["s"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"cos\nsystem\n(S'a'\ntR0I1\n.", b"I1\n."),  # a call whose result is thrown away
        (b"cos\nsystem\n(S'a'\ntR0I1\n.", b"cos\nsystem\n(S'b'\ntR0I1\n."),
        (b"(cos\na\n)Rp0\n0cos\nb\n)Rg0\nl.", b"(cos\nb\n)Rp0\n0cos\na\n)Rg0\nl."),  # other calls, other order
        (b"((cos\na\n)Rcos\nb\n)Rt.", b"(cos\nb\n)Rp0\n0(cos\na\n)Rg0\nt."),
        (b"\x80\x04]q\0cos\nf\nh\0\x85Rh\0K\x01a0.", b"\x80\x04]q\0K\x01acos\nf\nh\0\x85R."),  # a list changed later
        (b"\x80\x04cos\nf\n]q\0\x85Rh\0K\x01a0.", b"\x80\x04cos\nf\n]q\0K\x01a\x85R."),  # one made for the call
        (b"\x80\x04\x8c\x02os\x8c\x09path.join\x93.", b"\x80\x04\x8c\x07os.path\x8c\x04join\x93."),
        (b"\x80\x04}(K\x01K\x02\x88K\x03u.", b"\x80\x04}(K\x01K\x03u."),  # the key 1 twice
        (b"\x80\x02\x82\x01.", b"\x80\x02\x82\x02."),  # an extension
        (b"\x80\x02K\x01Q.", b"\x80\x02K\x02Q."),  # a persistent id
        (b"\x80\x05\x97.", b"\x80\x05\x97\x98."),  # a buffer from outside
        (b"\x80\x04]\x94.", b"\x80\x04).",),
        (b"\x80\x04](h\x01.", b"\x80\x04]."),
    ],
)  # fmt: skip
def test_other_meaning_is_never_the_same(left: bytes, right: bytes) -> None:
    assert not same(left, right, "a.pkl")


class Whitelist(pickle.Unpickler):
    """Loads what a few harmless names mean."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("collections", "OrderedDict"), ("builtins", "complex"), ("builtins", "bytearray")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(name)


def loaded(data: bytes) -> str | None:
    try:
        return repr(Whitelist(io.BytesIO(data)).load())
    except Exception:
        return None


SMALL = {"a": [1.5, -2, b"b"], "o": collections.OrderedDict(x=(1, 2)), "s": {1}, "z": [0.5, 1 + 2j], "y": bytearray(3)}


@pytest.mark.parametrize("protocol", rest_slow(reversed(PROTOCOLS)))
def test_no_flipped_bit_or_cut_is_missed(protocol: int) -> None:
    data = dumped(SMALL, protocol)
    right, value = shown(read, data), loaded(data)
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        if meaning(read, bytes(flipped)) == right:
            assert loaded(bytes(flipped)) in (value, None), f"bit {place % 8} of byte {place // 8}"
    for length in range(len(data)):
        assert meaning(read, data[:length]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x06N.",
        b"\x80\x04\x8e\0\0\0\x80\0\0\0\0abc.",  # 2 GiB of bytes
        b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.",
        b"\x80\x02T\xff\xff\xff\xffabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
        b"\x80\x02\x8b\xff\xff\xff\xffabc.",
        b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
        b"\x80\x05\x96\0\0\0\0\x01\0\0\0a.",
        b"L" + b"9" * 100_000 + b"L\n.",
        b"p" + b"9" * 1000 + b"\n.",
        b"I1\np-1\n.",
        b"F1.2.3\n.",
        b"S'\\x'\n.",
        b"S'abc\n.",
        b"V\\u12\n.",
        b"cos\nsystem\nR.",
        b"\x80\x02K\x01K\x02R.",
        b"\x80\x02K\x01}b.",
        b"\x80\x02(K\x01d.",
        b"\x80\x04K\x01K\x02\x93.",
        b"\x80\x02h\x05.",
        b"\x80\x02X\x02\0\0\0\xff\xff.",
        b"(" * 1000 + b"l" * 1000 + b".",
    ],
)
def test_nonsense_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(ArtifactDamaged) as caught:
        list(read(BytesSource(data), Limits()))
    assert "\n" not in str(caught.value)


def laughs(depth: int) -> bytes:
    """Lists of ten times the same list, so deep that written out they were endless."""
    data = b"\x80\x02]q\0"
    for level in range(depth):
        data += b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 10 + b"e"
    return data + b"."


def test_a_billion_laughs_are_short() -> None:
    assert len(shown(read, laughs(100))) < 1200
    assert not same(laughs(99), laughs(100), "a.pkl")


@pytest.mark.slow
def test_deep_nesting_is_refused_without_recursion() -> None:
    data = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(ArtifactDamaged, match="nested more than 200"):
        list(read(BytesSource(data), Limits()))
    tuples = b"\x80\x02)" + b"\x85" * 200_000
    for data in (tuples + b".", tuples + b"\x85R.", tuples + b"Q.", b"\x80\x02cnumpy\ndtype\n" + tuples + b"R."):
        assert meaning(read, data) is None


ONE_ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01J\x00\x00\x02\x00\x85"
    b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8K\x00K\x01tR(K\x03X\x01\x00\x00\x00<NNN"
    b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89h\x00tb"
)


CALL = b"cos\nsystem\nX\x01\0\0\0%s\x85R"
TYPE = b"cnumpy\ndtype\n(X\x02\0\0\0f8%sK\x01tR(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xff%s%stb"


@pytest.mark.parametrize("place", range(3))
def test_a_call_within_the_type_of_an_array_counts(place: int) -> None:
    """It may stand where the alignment is, or another number that is not shown."""

    def array(letter: bytes) -> bytes:
        values = [b"K\0", b"J\xff\xff\xff\xff", b"K\0"]
        if letter:
            values[place] = CALL % letter
        start, end = ONE_ARRAY.index(b"cnumpy\ndtype"), ONE_ARRAY.index(b"\x89h")
        data = ONE_ARRAY[:start] + TYPE % tuple(values) + ONE_ARRAY[end:]
        return b"\x80\x03" + data.replace(b"J\0\0\2\0", b"K\1").replace(b"h\0tb", b"C\x08" + bytes(8) + b"tb.")

    assert shown(read, array(b"")) == shown(read, dumped(np.zeros(1)))
    assert named(array(b"a"), array(b"b"), "a.pkl")


def test_the_same_bytes_over_and_over_are_refused() -> None:
    """A thousand arrays of one megabyte, which stands there once."""
    data = b"\x80\x03B" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b"q\x000](" + ONE_ARRAY * 1000 + b"e."
    with pytest.raises(ArtifactDamaged, match="over and over"):
        for _ in read(BytesSource(data), Limits(header=1 << 20)):
            pass


def test_many_opcodes_and_long_texts_are_bounded() -> None:
    start = time.process_time()
    with pytest.raises(ArtifactDamaged, match="more than 8000 opcodes"):
        list(read(BytesSource(b"\x80\x02" + b"]" * 1_000_000 + b"."), Limits(parts=1000)))
    with pytest.raises(ArtifactDamaged, match="come to more than"):
        list(read(BytesSource(b"(" + b"S'" + b"a" * 1000 + b"'\n" + b"I1\n" * 3 + b"l."), Limits(header=100)))
    assert time.process_time() - start < 60


def test_a_large_array_is_not_held_in_memory(tmp_path: Path) -> None:
    for protocol in (2, 4, 5):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(dumped(np.arange(1 << 21) * 0.1, protocol))
        with path.open("rb") as file:
            tracemalloc.start()
            source = FileSource(os.dup(file.fileno()))
            parts = list(read(source, Limits()))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            source.close()
        assert peak < 4 << 20
        assert len(parts) == 2


def test_nothing_is_imported_or_run(tmp_path: Path) -> None:
    """An audit hook sees no import, no name looked up by pickle, and no code run because of the file."""
    (tmp_path / "trap.py").write_text("raise SystemExit('the module of a pickle was imported')")
    payloads = [
        b"ctrap\nTrap\n)R.",
        b"cos\nsystem\n(S'touch trapped'\ntR.",
        b"(itrap\nTrap\n.",
        b"c__builtin__\neval\n(S'1'\ntR.",
    ]
    payloads += [b"\x80\x04\x8c\x04trap\x8c\x04Trap\x93)\x81}b.", b"\x80\x04\x8c\x04trap\x8c\x04Trap\x93)}\x92."]
    payloads += [b"\x80\x02\x82\x01)R.", b"(ctrap\nTrap\no.", b"Ptrap\n.", b"\x80\x04\x8c\x04trapQ)R."]
    payloads += [b"cbuiltins\ngetattr\n(ctrap\nTrap\nS'run'\ntR(S'touch trapped'\ntR."]
    program = f"""
        import sys
        from reprokit.diff.formats import pickle
        from reprokit.diff.formats.pickle import read
        from reprokit.diff.elements import Limits
        from reprokit.diff.sources import BytesSource
        list(read(BytesSource(b"N."), Limits()))
        import copyreg
        copyreg.add_extension("trap", "Trap", 1)
        seen = []
        watched = ("import", "exec", "compile", "os.", "subprocess.", "pickle.", "open", "marshal.", "ctypes.")
        def hook(event, arguments):
            if event.startswith(watched) or event == "object.__getattr__":
                seen.append((event, arguments))
        sys.addaudithook(hook)
        for payload in {payloads!r}:
            assert list(read(BytesSource(payload), Limits()))
        assert seen == [], seen
        assert "trap" not in sys.modules
        __import__("trap_that_is_not_there") if 0 else None
        open("/dev/null").close()
        assert seen, "the hook sees nothing"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trapped").exists()


BIG = b"X" + struct.pack("<I", 4000) + b"\xc3\xa9" * 2000 + b"q\x000"  # as number 0 of the memo
NONES = b"(" + b"N" * 100_000
AGAIN = {
    "set": BIG + b"\x8f(" + b"h\x00" * 400_000 + b"\x90.",
    "dict": BIG + b"}(" + b"h\x00N" * 200_000 + b"u.",
    "bytes": BIG + b"c_codecs\nencode\nq\x01h\x00X\x06\0\0\0latin1\x86q\x020](" + b"h\x01h\x02R" * 100_000 + b"e.",
    "sets": b"]" + NONES + b"eq\x000c__builtin__\nset\nq\x01h\x00\x85q\x020](" + b"h\x01h\x02R" * 100_000 + b"e.",
    "types": b"cnumpy\ndtype\nq\x020}q\x00("
    + b"U\x01aN" * 4000
    + b"u0("
    + b"U\x01a" * 4000
    + b"tq\x010]("
    + b"h\x02(U\x02V8K\x00K\x01tR(K\x03U\x01<Nh\x01h\x00K\x08K\x01K\x00tb" * 50_000
    + b"e.",
    "objects": NONES + b"tq\x000ccopyreg\n__newobj__\nq\x010](" + b"h\x01h\x00R" * 100_000 + b"e.",
}


def test_arguments_that_calls_share_are_looked_at_once() -> None:
    start = time.process_time()
    data = b"\x80\x02" + NONES + b"tq\x000cos\nf\nq\x010](" + b"h\x01h\x00R" * 100_000 + b"e."
    loaded = InertUnpickler(ForwardReader(BytesSource(data), "the pickle"), Limits())
    assert isinstance(loaded.load(), list)
    assert loaded.lost == 0
    assert time.process_time() - start < 60


@pytest.mark.parametrize("data", rest_slow(AGAIN.values()), ids=AGAIN)
def test_what_the_memo_brings_again_and_again_is_bounded(data: bytes) -> None:
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert meaning(read, b"\x80\x02" + data) is None
    assert time.process_time() - start < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10


def test_a_long_number_is_shown_once() -> None:
    number = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b"q\x00"
    left = b"\x80\x02" + number + b"0](" + b"h\x00" * 1000 + b"e."
    assert shown(read, left)["999"] == "the same object as 0"
    assert named(left, left.replace(b"\x01\x01q", b"\x01\x02q"), "a.pkl").keys() == {"0 (contents)"}


def test_timings_of_gensim_are_bookkeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for its class, of which only the name is in a pickle."""
    module = types.ModuleType("gensim.models.word2vec")
    monkeypatch.setitem(sys.modules, "gensim.models.word2vec", module)
    monkeypatch.setitem(sys.modules, "gensim.models", types.ModuleType("gensim.models"))
    monkeypatch.setitem(sys.modules, "gensim", types.ModuleType("gensim"))
    model = type("Word2Vec", (), {"__module__": module.__name__})
    module.Word2Vec = model  # type: ignore[attr-defined]

    def saved(seconds: Any, second: int, words: int, speed: int) -> bytes:
        made, date = model(), f"2026-01-02T03:04:0{second}.000001"
        message = f"training on 750 raw words ({words} effective words) took 0.0s, {speed} effective words/s"
        made.__dict__.update(
            total_train_time=seconds, vector=[0.5, 1], lifecycle_events=[{"msg": message, "datetime": date}]
        )
        return pickle.dumps(made)

    left = saved(0.5, 1, 38, 10)
    found = diff(left, saved(0.75, 2, 38, 20), "m.model")
    names = ("total_train_time", "lifecycle_events/0/msg (speed)", "lifecycle_events/0/datetime")
    assert found.verdict is Verdict.IDENTICAL
    assert found.detail == f"same content; other {', '.join(f'Word2Vec/{name}' for name in names)}"
    assert set(named(left, saved("never", 1, 38, 10), "m.model")) == {"Word2Vec/total_train_time"}
    assert set(named(left, saved(0.5, 1, 39, 10), "m.model")) == {"Word2Vec/lifecycle_events/0/msg"}
    other = pickle.dumps({"total_train_time": 0.5}), pickle.dumps({"total_train_time": 0.75})
    assert set(named(*other, "m.model")) == {"total_train_time"}
