"""Facts: each file fits its schema, each mistake in one is named, and what is observed finds the facts about it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit import knowledge, patches
from reprokit.core.errors import KnowledgeError
from reprokit.knowledge import Fact, Match
from tests.support import imported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "profiles"
FILES = sorted(path.name for path in PROFILES.glob("*.toml"))
FACTS = knowledge.load()

GOOD = """
schema = 1
framework = "pytorch"

[[fact]]
id = "pytorch.index-put"
title = "index_put_"
verdict = "varies"
shows = ["run-to-run"]
versions = ">=1.7,<3"
devices = ["cpu"]
direction = ["forward", "backward"]
threads = 2
[fact.match]
operators = ["aten::index_put_", "aten::upsample_*"]
attributes = { accumulate = true }
dtypes = ["float32"]
functions = ["torch.Tensor.index_put_"]
settings = { "torch.backends.cudnn.benchmark" = true }
variables = ["OMP_NUM_THREADS"]
[[fact.mitigation]]
patch = "torch-deterministic"
cost = "slower"
[[fact.evidence]]
source = "torch 2.13.0"
how = "measured"
note = "7 results in 30 repeats"
"""


def schema() -> Any:
    return jsonschema.Draft202012Validator(json.loads((PROFILES / "schema.json").read_text()))


def loaded(directory: Path, text: str = GOOD, name: str = "pytorch.toml") -> tuple[Fact, ...]:
    (directory / name).write_text(text)
    return knowledge.load(directory)


@pytest.fixture
def fact(tmp_path: Path) -> Fact:
    (found,) = loaded(tmp_path)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_file_fits_the_schema(name: str) -> None:
    document = tomllib.loads((PROFILES / name).read_text())
    found = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in schema().iter_errors(document)]
    assert found == []
    assert document["framework"] == Path(name).stem


def test_the_schema_knows_the_keys_that_are_read_and_no_others() -> None:
    document = json.loads((PROFILES / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    kinds = {"fact": Fact, "match": Match, "mitigation": knowledge.Mitigation, "evidence": knowledge.Evidence}
    for name, kind in kinds.items():
        assert set(document["$defs"][name]["properties"]) == set(kind.__struct_fields__)
    schema().validate(tomllib.loads(GOOD))


def test_the_example_of_how_to_add_a_fact_is_a_good_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (PROFILES / "README.md").read_text(), re.DOTALL)
    text = "schema = 1\nframework = 'pytorch'\n" + block
    (fact,) = loaded(tmp_path, text)
    assert fact.mitigation
    assert fact.differs_on_one_machine
    schema().validate(tomllib.loads(text))


MISTAKES = [
    ('how = "measured"', 'how = "guessed"', "pytorch.index-put: Invalid enum value 'guessed'"),
    ('cost = "slower"', 'price = "slower"', "pytorch.index-put: Object contains unknown field `price`"),
    ('title = "index_put_"', "", "pytorch.index-put: Object missing required field `title`"),
    ('devices = ["cpu"]', 'devices = ["gpu"]', "pytorch.index-put: Invalid enum value 'gpu'"),
    ('devices = ["cpu"]', "devices = []", "pytorch.index-put: title, devices and evidence"),
    ("threads = 2", 'threads = "2"', "pytorch.index-put: Expected `int | null`, got `str`"),
    ("threads = 2", "threads = 0", "pytorch.index-put: threads = 0"),
    ('versions = ">=1.7,<3"', 'versions = "1.7 or so"', "pytorch.index-put: versions = '1.7 or so'"),
    ('shows = ["run-to-run"]', "", "pytorch.index-put: shows must say"),
    ('patch = "torch-deterministic"', "", "pytorch.index-put: each mitigation"),
    ('id = "pytorch.index-put"', 'id = "Index put"', "the id must be 'pytorch'"),
    ('framework = "pytorch"', 'framework = "tensorflow"', "the id must be 'tensorflow'"),
    ("schema = 1", "schema = 2", "Invalid enum value 2"),
    ("schema = 1", "schema = ", "not TOML"),
    ("schema = 1", "schema = 1\ncolor = 'red'", "unknown field `color`"),
]


@pytest.mark.parametrize(("good", "bad", "said"), MISTAKES)
def test_a_mistake_is_one_line_that_names_file_fact_and_key(tmp_path: Path, good: str, bad: str, said: str) -> None:
    assert good in GOOD
    wrong = GOOD.replace(good, bad, 1)
    with pytest.raises(KnowledgeError) as error:
        loaded(tmp_path, wrong)
    assert said in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "pytorch.toml"))
    assert "\n" not in str(error.value)


BEYOND_A_SCHEMA = ("versions = '1.7 or so'", "the id must be 'tensorflow'", "not TOML")


@pytest.mark.parametrize(("good", "bad", "said"), [row for row in MISTAKES if not row[2].endswith(BEYOND_A_SCHEMA)])
def test_the_schema_finds_the_same_mistakes(good: str, bad: str, said: str) -> None:
    assert not schema().is_valid(tomllib.loads(GOOD.replace(good, bad, 1))), said


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(KnowledgeError, match="not TOML"):
        knowledge.load(tmp_path)


def test_an_id_is_given_once_in_all_files(tmp_path: Path) -> None:
    again = GOOD[GOOD.index("[[fact]]") :]
    with pytest.raises(KnowledgeError, match=r"two facts have the id 'pytorch\.index-put'"):
        loaded(tmp_path, GOOD + again)


def test_a_directory_without_facts_is_said(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="no facts"):
        knowledge.load(tmp_path)


def test_patches_and_facts_name_each_other() -> None:
    named = {way.patch for fact in FACTS for way in fact.mitigation if way.patch}
    cures = {patch.id for patch in patches.CATALOGUE} - {"seed"}  # which is for studies, and cures nothing
    assert {name.partition("=")[0] for name in named} == cures
    for name in named:
        patch, value = patches.find(name.partition("=")[0]), name.partition("=")[2]
        assert not value or re.fullmatch(patch.pattern, value), name


def test_no_fact_was_left_unfinished_and_none_names_a_place_of_the_writer_s() -> None:
    for name in FILES:
        text = (PROFILES / name).read_text()
        assert not re.search(r"TODO|FIXME|\?\?|/root/|/work/|/tmp/|/home/", text), name
    assert not [fact.id for fact in FACTS if fact.verdict in ("varies", "raises") and not (fact.mitigation or fact.why)]


# Matching


def operators(facts: tuple[Fact, ...], name: str = "aten::index_put_", **change: Any) -> tuple[Fact, ...]:
    call: dict[str, Any] = {
        "framework": "pytorch",
        "version": "2.13.0+cpu",
        "device": "cpu",
        "attributes": {"accumulate": True, "unsafe": False},
        "direction": "backward",
        "dtypes": ["float32", "int64"],
    }
    return knowledge.matching_operator(facts, name=name, **{**call, **change})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"name": "aten::upsample_bilinear2d"},
        {"direction": "update"},
        {"direction": "data"},
        {"direction": ""},
        {"version": ""},
        {"version": "2.0.0a1"},
        {"version": "git of yesterday"},
        {"dtypes": ["torch.float32"]},
        {"dtypes": []},
        {"device": "cpu:0"},
        {"device": "/job:localhost/replica:0/task:0/device:CPU:0"},
    ],
)
def test_an_operator_finds_its_fact(fact: Fact, change: dict[str, Any]) -> None:
    assert operators((fact,), **change) == (fact,)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "aten::index_put"},
        {"framework": "tensorflow"},
        {"version": "1.6.1"},
        {"version": "3.0"},
        {"device": "cuda:0"},
        {"device": "/device:GPU:0"},
        {"attributes": {"accumulate": False}},
        {"attributes": {"accumulate": 1}},
        {"attributes": {}},
        {"dtypes": ["float64", "int64"]},
    ],
)
def test_another_operator_does_not(fact: Fact, change: dict[str, Any]) -> None:
    assert operators((fact,), **change) == ()


def test_directions_and_overloads_narrow_a_fact(tmp_path: Path) -> None:
    text = GOOD.replace('"forward", "backward"', '"backward"').replace("dtypes =", 'overloads = ["out"]\ndtypes =')
    facts = loaded(tmp_path, text)
    assert operators(facts, overload="out") == facts
    assert operators(facts, overload="") == ()
    assert operators(facts, overload="out", direction="forward") == ()


def test_what_tf_data_calls_is_forward_and_a_direction_of_its_own(tmp_path: Path) -> None:
    forward = loaded(tmp_path)
    assert operators(forward, direction="data") == forward
    data = loaded(tmp_path, GOOD.replace('"forward", "backward"', '"data"'))
    assert operators(data, direction="data") == data
    assert operators(data, direction="forward") == ()


def test_functions_settings_and_variables_find_their_facts(fact: Fact) -> None:
    facts = (fact,)
    assert knowledge.matching_function(facts, "torch.Tensor.index_put_", "2.13.0") == facts
    assert knowledge.matching_function(facts, "torch.Tensor.index_put_", "1.0") == ()
    assert knowledge.matching_function(facts, "torch.Tensor.index_put_", device="cuda") == ()
    assert knowledge.matching_setting(facts, "torch.backends.cudnn.benchmark", True) == facts
    assert knowledge.matching_setting(facts, "torch.backends.cudnn.benchmark", False) == ()
    assert knowledge.matching_setting(facts, "torch.backends.cudnn.benchmark", 1) == ()
    assert knowledge.matching_setting(facts, "torch.backends.cudnn.enabled", True) == ()
    assert knowledge.matching_variable(facts, "OMP_NUM_THREADS") == facts
    assert knowledge.matching_variable(facts, "MKL_CBWR") == ()


def test_words_are_searched_everywhere_and_names_come_first(tmp_path: Path) -> None:
    mentions = GOOD[GOOD.index("[[fact]]") :].replace("index-put", "other").replace("aten::index_put_", "aten::add")
    mentions = mentions.replace("torch.Tensor.index_put_", "torch.add").replace('title = "index_put_"', 'title = "add"')
    facts = loaded(tmp_path, GOOD + mentions.replace('cost = "slower"', 'cost = "as index_put_"'))
    assert [fact.id for fact in knowledge.search(facts, ["INDEX_PUT"])] == ["pytorch.index-put", "pytorch.other"]
    assert [fact.id for fact in knowledge.search(facts, ["index_put", "slower"])] == ["pytorch.index-put"]
    assert knowledge.search(facts, ["index_put", "nowhere"]) == ()
    assert knowledge.search(facts, []) == facts
    assert knowledge.near(facts, "pytorch.index-puts")[0] == "pytorch.index-put"


CALLS = [
    ("pytorch.index-put-accumulate", "aten::index_put", {"accumulate": True}, ["float32", "int64"], "cpu"),
    ("pytorch.index-put-duplicates", "aten::index_put_", {"accumulate": False}, ["float64", "int64"], "cpu"),
    ("pytorch.scatter-add-cuda", "aten::scatter_add", {"dim": 0}, ["float32", "int64"], "cuda:0"),
    ("pytorch.interpolate-cuda", "aten::upsample_bicubic2d_backward", {}, ["float32"], "cuda"),
]  # fmt: skip


@pytest.mark.parametrize(("identity", "name", "attributes", "dtypes", "device"), CALLS)
def test_what_pytorch_s_dispatch_shows_is_known(
    identity: str, name: str, attributes: dict[str, Any], dtypes: list[str], device: str
) -> None:
    found = operators(FACTS, name, attributes=attributes, dtypes=dtypes, device=device)
    assert identity in [fact.id for fact in found]
    assert any(fact.differs_on_one_machine for fact in found)


@pytest.mark.parametrize("name", ["aten::scatter_add", "aten::embedding_dense_backward", "aten::convolution_backward"])
def test_what_repeats_on_one_machine_is_not_accused(name: str) -> None:
    found = operators(FACTS, name, attributes={}, dtypes=["float32"])
    assert found
    assert not [fact.id for fact in found if fact.differs_on_one_machine]


def test_float_bincount_is_known_in_tensorflow() -> None:
    found = operators(
        FACTS,
        "DenseBincount",
        framework="tensorflow",
        version="2.21.0",
        attributes={},
        dtypes=["int32", "float32"],
        direction="forward",
    )
    assert [fact.id for fact in found if fact.differs_on_one_machine] == ["tensorflow.bincount-float"]
    assert [way.patch for way in found[0].mitigation][:2] == ["tf-threads", "threads=1"]


# The names of operators are the frameworks' own


def unknown(framework: str, known: set[str]) -> list[str]:
    """Names and globs of a framework's facts that no operator has."""
    named = {name for fact in FACTS if fact.framework == framework for name in fact.match.operators}
    return sorted(
        name
        for name in named
        if name not in known and not ("*" in name and any(fnmatchcase(other, name) for other in known))
    )


def operators_of(framework: str) -> set[str]:
    script = ROOT / "tests" / "trainings" / "listed_operators.py"
    done = subprocess.run([sys.executable, str(script), framework], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.torch
def test_pytorch_has_every_operator_and_its_tag_is_on_the_random_ones() -> None:
    pytest.importorskip("torch")
    known = operators_of("torch")
    assert unknown("pytorch", known) == [], "no operator has such a name"
    (random,) = (fact for fact in FACTS if fact.id == "pytorch.random")
    assert [
        name for name in random.match.operators if name.startswith("aten::") and f"random:{name}" not in known
    ] == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_every_operator_of_tensorflow_exists() -> None:
    imported("tensorflow")
    assert unknown("tensorflow", operators_of("tensorflow")) == [], "no operator has such a name"
