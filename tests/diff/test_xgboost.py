"""XGBoost's models as JSON and UBJSON: the list that differs is named, and hostile documents are refused."""

from __future__ import annotations

import random
import struct
from json import loads

import numpy as np
import pytest

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats.xgboost import read
from reprokit.diff.sources import BytesSource
from tests.diff.objects import meaning, named, same, shown

pytestmark = pytest.mark.xgboost
TREES = "learner/gradient_booster/model/trees"


def model(kind: str, rounds: int = 2) -> bytes:
    xgboost = pytest.importorskip("xgboost")  # here: it imports scikit-learn, which takes every worker a second
    x = np.random.default_rng(1).random((200, 4))
    parameters = {"objective": "binary:logistic", "max_depth": 4, "seed": 1, "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(x, label=x[:, 0] * x[:, 1] > 0.3), rounds)
    return bytes(booster.save_raw(kind))


@pytest.fixture(scope="module")
def ubj() -> bytes:
    return model("ubj")


@pytest.fixture(scope="module")
def json() -> bytes:
    return model("json")


def test_one_ulp_in_ubjson(ubj: bytes) -> None:
    place = ubj.index(b"base_weights[$d#L") + 17 + 8 + 4 * 3 + 3
    other = ubj[:place] + bytes([ubj[place] ^ 1]) + ubj[place + 1 :]
    found = named(ubj, other, "model.ubj")
    assert found.keys() == {f"{TREES}/0/base_weights"}
    assert "first at [3]" in found[f"{TREES}/0/base_weights"]
    assert "1 ULP" in found[f"{TREES}/0/base_weights"]


def test_one_digit_in_json(json: bytes) -> None:
    place = json.index(b"E", json.index(b'"base_weights":[')) - 1
    digit = b"1" if json[place : place + 1] != b"1" else b"2"
    assert named(json, json[:place] + digit + json[place + 1 :], "model.json").keys() == {f"{TREES}/0/base_weights"}


@pytest.mark.parametrize("kind", ["ubj", "json"])
def test_another_parameter_and_another_tree(kind: str, request: pytest.FixtureRequest) -> None:
    left: bytes = request.getfixturevalue(kind)
    assert same(left, model(kind), f"model.{kind}")
    other = left.replace(b"binary:logistic", b"binary:logitraw")
    assert set(named(left, other, f"model.{kind}")) == {"learner/objective/name"}
    assert f"{TREES}/2/base_weights" in named(left, model(kind, 3), f"model.{kind}")


@pytest.mark.parametrize("kind", ["ubj", "json"])
def test_no_flipped_bit_or_cut_is_missed(kind: str, request: pytest.FixtureRequest) -> None:
    data: bytes = request.getfixturevalue(kind)
    right = shown(read, data)
    generator = random.Random(1)
    for place in {generator.randrange(8 * len(data)) for _ in range(200)}:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        if meaning(read, bytes(flipped)) == right:  # 1E0 and 1e0 are one number
            assert kind == "json"
            assert loads(flipped) == loads(data), f"bit {place % 8} of byte {place // 8}"
    for length in {generator.randrange(len(data)) for _ in range(50)}:
        assert meaning(read, data[:length]) is None


def learner(value: bytes) -> bytes:
    """A document that begins like a model."""
    return b"{U\x07learner{U\x01x" + value + b"}}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"Z", "null"),
        (b"T", "true"),
        (b"NNF", "false"),
        (b"i\xff", "-1"),
        (b"I\x01\x00", "256"),
        (b"D" + struct.pack(">d", 0.1), "0.1"),
        (b"d" + bytes.fromhex("7fc00001"), "nan 7ff8000020000000"),
        (b"HU\x031e5", "number '1e5'"),
        (b"Ca", "character 'a'"),
        (b"SU\x02\xc3\xa9", "'é'"),
        (b"[#U\x02i\x01i\x02", "list of 2"),
        (b"[i\x01Ni\x02]", "list of 2"),
        (b"[$T#L" + struct.pack(">q", 1 << 60), f"list of {1 << 60} times true"),
        (b"{$i#U\x01U\x01a\x05", "object of 1"),
    ],
)
def test_ubjson_values(value: bytes, text: str) -> None:
    assert shown(read, learner(value))["learner/x"] == text


@pytest.mark.parametrize(
    "value",
    [
        b"q",
        b"",
        b"[$i#L" + b"\x7f" + b"\xff" * 7,
        b"[$i#L" + b"\xff" * 8,
        b"[$i" + b"i\x01]",
        b"SL\x00\x00\x01\x00\x00\x00\x00\x00",
        b"SU\x02\xff\xff",
        b"[" * 100_000,
        b"[$[#U\x01" * 10_000,
        b"ZZ",
    ],
)
def test_hostile_ubjson(value: bytes) -> None:
    with pytest.raises(ArtifactDamaged) as caught:
        list(read(BytesSource(learner(value)), Limits()))
    assert "\n" not in str(caught.value)
    assert not same(learner(value), learner(b"Z"), "model.ubj")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("[1,2,3,4,5,6,7,8]", "[1,2,3,4,5,6,7,9]"),
        ("[1,2,3,4,5,6,7,-0]", "[1,2,3,4,5,6,7,0]"),
        ("[" + "1E0," * 8 + "0.1]", "[" + "1E0," * 8 + "0.1000000000000000001]"),
        ("[" + "1E0," * 8 + "-0.0]", "[" + "1E0," * 8 + "0.0]"),
        ("[" + "1," * 8 + "9007199254740992]", "[" + "1," * 8 + "9007199254740993]"),
        ("[" + "1E0," * 8 + "1E-400]", "[" + "1E0," * 8 + "0E0]"),
        ('{"a":1}', '{"a":1,"a":1}'),
        ('{"a/b":1}', '{"a":{"b":1}}'),
    ],
)
def test_json_numbers_are_exact(left: str, right: str) -> None:
    documents = [f'{{"learner":{{"x":{value}}}}}'.encode() for value in (left, right)]
    assert not same(documents[0], documents[1], "model.json")
    assert None not in (meaning(read, documents[0]), meaning(read, documents[1]))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[1,]",
        "[,1]",
        "{1:2}",
        '{"a"}',
        "[" * 1000,
        "01",
        "[1 2]",
        '"a',
        '"\\x"',
        "nul",
        "[1,2,3,4,5,6,7,08]",
        "1}}x",
    ],
)
def test_hostile_json(value: str) -> None:
    with pytest.raises(ArtifactDamaged):
        list(read(BytesSource(f'{{"learner":{{"x":{value}}}}}'.encode()), Limits()))
