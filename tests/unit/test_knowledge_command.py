"""``reprokit knowledge``: what it finds, shows and prints as JSON, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from reprokit import knowledge
from reprokit.cli.main import reprokit
from reprokit.core.errors import KnowledgeError, UsageError

PAGE = (Path(__file__).parents[2] / "docs" / "commands" / "knowledge.md").read_text()
FACTS = knowledge.load()


def run(*arguments: str) -> str:
    done = CliRunner().invoke(reprokit, ["knowledge", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def found(*arguments: str) -> list[dict[str, Any]]:
    document = json.loads(run(*arguments, "--json"))
    schema = json.loads(resources.files("reprokit").joinpath("schemas/knowledge.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
    facts: list[dict[str, Any]] = document["facts"]
    return facts


def test_without_words_it_counts_what_there_is_of_each_framework() -> None:
    lines = run().splitlines()
    assert lines[0] == f"{len(FACTS)} facts"
    for framework in {fact.framework for fact in FACTS}:
        assert any(
            line.split()[:2] == [framework, str(len([f for f in FACTS if f.framework == framework]))] for line in lines
        )
    assert len(lines) < 25


def test_json_holds_every_fact_whole() -> None:
    assert [fact["id"] for fact in found()] == [fact.id for fact in FACTS]
    (fact,) = found("tensorflow.bincount-float")
    assert fact["framework"] == "tensorflow"
    assert "DenseBincount" in fact["match"]["operators"]
    assert fact["evidence"][0]["how"] == "measured"


def test_words_narrow_and_one_fact_is_shown_in_full() -> None:
    lines = run("bincount").splitlines()
    assert lines[0] == f"{len(lines) - 2} facts"
    assert "tensorflow.bincount-float" in "".join(lines[1:-1])
    whole = run("tensorflow.bincount-float")
    for text in ("verdict", "varies, shows run-to-run", "--patch tf-threads", "measured", "DenseBincount", "cost: "):
        assert text in whole
    assert run("densebincount", "ragged") == whole


def test_a_long_list_is_one_screen_unless_all_is_asked_for() -> None:
    short, whole = run("--framework", "pytorch").splitlines(), run("--framework", "pytorch", "--all").splitlines()
    assert len(short) == 33
    assert len(whole) == len([fact for fact in FACTS if fact.framework == "pytorch"]) + 2
    assert "more: give more words, or --all" in short[-2]


def test_frameworks_and_devices_filter() -> None:
    assert {fact["framework"] for fact in found("--framework", "jax")} == {"jax"}
    assert all("npu" in fact["devices"] for fact in found("--device", "npu"))
    assert found("--device", "npu", "--framework", "collectives")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["tensorflow.bincount-flaot"], KnowledgeError, "did you mean tensorflow.bincount-float"),
        (["zzzz", "qqqq"], KnowledgeError, "no fact has 'zzzz' and 'qqqq'"),
        (["--framework", "caffe"], UsageError, "no facts of 'caffe', but of blas, "),
        (["--framework", "jax", "--device", "npu"], KnowledgeError, "no fact has that"),
    ],
)
def test_what_is_not_there_is_one_line(arguments: list[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        CliRunner().invoke(reprokit, ["knowledge", *arguments], catch_exceptions=False)


def test_it_exits_with_2_where_nothing_is_found() -> None:
    done = subprocess.run([sys.executable, "-m", "reprokit", "knowledge", "zzzz"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reprokit: knowledge: no fact has 'zzzz'")


def test_the_example_on_the_page_is_what_it_prints() -> None:
    shown = "$ reprokit knowledge xgboost.gblinear-shotgun\n" + run("xgboost.gblinear-shotgun")
    assert f"```console\n{shown}```\n" in PAGE
