"""What the user declares that it may differ does not count, is always said, and never covers weights or results."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from reprokit.core.difference import IgnoredThing, Verdict
from reprokit.core.errors import BadConfig, IgnoreRefused, NothingComparable
from reprokit.model.outputs import OutputFile
from reprokit.run_files.console import PrintedPiece
from reprokit.run_files.user_config import find
from reprokit.verify import pattern_search
from reprokit.verify.bookkeeping.names import names_result, names_weights
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores, PathPattern, configured, declared
from reprokit.verify.runs import compare
from reprokit.verify.show.comparison import document
from reprokit.verify.verdict import verdict_line
from tests.diff import samples
from tests.verify.runs import Building, digest, recording, replayed, training
from tests.verify.test_cli import reprokit, schema

Pair = tuple[Building, Building]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("log.txt", ["log.txt", "a/b/log.txt", "log.txt/part"], ["xlog.txt", "log.txt2", "log.TXT"]),
        ("*.log", ["a.log", "x/y.log", "/tmp/z.log"], ["a.log2", "log"]),
        ("logs/*.txt", ["logs/a.txt"], ["x/logs/a.txt", "logs/b/a.txt"]),
        ("logs/**/*.txt", ["logs/a.txt", "logs/b/c/a.txt"], ["a.txt"]),
        ("logs", ["logs/b/a.txt", "x/logs/c"], ["logs2/a"]),
        ("/tmp/*/x", ["/tmp/a/x"], ["a/tmp/b/x", "/tmp/a/b/x"]),
        ("./out/a", ["out/a"], ["b/out/a"]),
        ("[!a]?.txt", ["bc.txt"], ["ac.txt", "b.txt"]),
        ("a[:]b[[]*]", ["a:b[x]"], ["a:bx"]),
        ("**/**/**/**/**/**/x", ["a/b/c/d/e/f/g/x"], ["/".join("ab" * 2000)]),
    ],
)
def test_paths_are_matched_as_in_gitignore(pattern: str, matching: list[str], others: list[str]) -> None:
    glob = PathPattern(pattern)
    assert [path for path in matching if not glob.matches(path)] == []
    assert [path for path in others if glob.matches(path)] == []


def test_keys_of_several_names_stand_anywhere() -> None:
    key = PathPattern("run/*/id", floats=True)
    assert key.matches("value/deep/run/3/id")
    assert key.matches("run/3/id/more")
    assert not key.matches("value/run/3/4/id")


@pytest.mark.parametrize(
    "rule",
    [
        *("*", "**", "**/*", "*.*", "?*", "[a-z]*", "./*", "/**", "*/*", "*:*", "**:**"),
        *("weights", "trail", "Random_States", "loss", "predictions", "metrics", "samples", "val-loss", "seeds"),
        *("*.pt", "out/model.safetensors", "best.keras", "*.h5", "**/*.onnx", "x.ubj", "model.CBM", "*.ckpt"),
        *("m.json:loss", "m.json:eval/val_loss", "*.csv:accuracy", "*:*loss*", "a.json:predictions", "x.npz:weights"),
        *("state.json:rng_state", "m.yaml:testF1", "m.json:mean-squared-error/mse"),
    ],
)
def test_what_would_hide_weights_or_results_is_refused_at_once(rule: str) -> None:
    with pytest.raises(IgnoreRefused, match="--ignore "):
        declared([rule], ())


@pytest.mark.parametrize("rule", [".*", ".+", r"\d+", r"[\d.]+", r"\S+", r"\w+", "(?s).*?$", "[a-z]+", r"(\d|\.)+"])
def test_expressions_that_match_anything_are_refused_at_once(rule: str) -> None:
    with pytest.raises(IgnoreRefused, match="any word or any number"):
        declared((), [rule])


@pytest.mark.parametrize("rule", ["", "(", "a**", "*", "x" * 1001])
def test_what_is_no_expression_is_refused_with_a_line(rule: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|characters"):
        declared((), [rule])


@pytest.mark.parametrize(
    ("name", "is_result"),
    [
        *((name, True) for name in ("loss", "valLoss", "test_f1", "R2", "auc@5", "y_pred", "train-RMSE", "rng_state")),
        *((name, False) for name in ("loss_time", "started", "run_id", "lossless", "score_seconds", "flossy", "host")),
    ],
)
def test_results_are_known_by_their_names(name: str, is_result: bool) -> None:
    assert names_result(name, is_number=True) is is_result


def test_arrays_of_weights_are_known_by_their_names() -> None:
    assert all(map(names_weights, ("w", "b1", "fc2", "conv1.kernel", "running_mean", "exp_avg", "coef_", "loss")))
    assert not any(map(names_weights, ("when", "seconds", "step_seconds", "ids", "wall_time")))


# Files


def wrote(pair: Pair, name: str, *contents: bytes | str) -> None:
    """Let both runs have written a file, of which they kept copies; one content alone: only the left run did."""
    for run, content in zip(pair, contents, strict=False):
        wrote_one(run, name, content)


def wrote_one(run: Building, name: str, content: bytes | str) -> None:
    data = content.encode() if isinstance(content, str) else content
    kept = len(run.outputs)
    sha256 = f"sha256:{hashlib.sha256(data).hexdigest()}"
    run.outputs.append(OutputFile(path=name, size=len(data), digest=sha256, kept=kept))
    (run.path / "outputs").mkdir(parents=True, exist_ok=True)
    (run.path / "outputs" / str(kept)).write_bytes(data)


@pytest.fixture
def runs(tmp_path: Path) -> Pair:
    left = training(tmp_path / "left")
    left.outputs.clear()
    return left, replayed(left, tmp_path / "right")


def verified(pair: Pair, *outputs: str, console: Sequence[str] = ()) -> Comparison:
    paths = [run.path if (run.path / "run.json").exists() else run.write() for run in pair]
    return compare(paths[0], paths[1], ignores=declared(outputs, console))


def times(comparison: Comparison) -> dict[str, int]:
    return {use.rule.text: use.times for use in comparison.ignores}


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, data in members.items():
            packed.writestr(name.replace("_", "."), data)
    return file.getvalue()


JSON = '{{"loss": 0.5, "started": "{0}", "run": {{"id": "{0}", "host": "x"}}, "seconds": [{1}, {1}]}}'
KEYED = [
    ("m.json", JSON, "m.json:started", 1),
    ("m.json", JSON, "*.json:run", 1),
    ("m.json", JSON, "m.json:run/id", 1),
    ("m.json", JSON, "*:seconds", 2),
    ("m.jsonl", '{{"step": 1, "t": "{0}"}}\n{{"step": 2, "t": "{0}"}}\n', "m.jsonl:t", 2),
    ("m.csv", "step,loss,note\n1,0.5,{0}\n2,0.4,{0}\n", "m.csv:note", 2),
    ("rows.csv", "1,0.5,{1}7\n2,0.4,{1}8\n", "rows.csv:column 3", 2),
    ("m.yaml", "a:\n  when: {0}\n  loss: 0.5\nb: [1]\n", "m.yaml:a/when", 1),
    ("m.toml", '[a.b]\nid = "{0}"\nother = 1\n', "m.toml:b/id", 1),
    ("m.ini", "[a]\nid = {0}\nother = 1\n", "m.ini:id", 1),
    ("m.ipynb", '{{"cells": [], "metadata": {{"signature": "{0}"}}}}', "m.ipynb:signature", 1),
    ("log.txt", "began {0}\nloss 0.5\n", "log.txt", 1),
    ("unknown.bin", "\0\1\2{0}", "*.bin", 1),
]


@pytest.mark.parametrize(("name", "text", "rule", "count"), KEYED)
def test_declared_values_of_a_file_do_not_count(runs: Pair, name: str, text: str, rule: str, count: int) -> None:
    wrote(runs, name, text.format("abc", 1), text.format("xyz", 2))
    assert not verified(runs).identical
    rest = compare(runs[0].path, runs[1].path, ignores=declared([rule, "never.txt"], ()))
    remaining = [leaf.name for leaf in rest.tree.leaves() if leaf.verdict.differs]
    assert times(rest) == {rule: count, "never.txt": 0}
    assert rest.identical == (not remaining)
    if name != "m.json":
        assert remaining == []
        assert verdict_line(rest).endswith(" ignored as declared")


def test_what_is_not_declared_still_counts(runs: Pair) -> None:
    wrote(runs, "m.json", JSON.format("abc", 1), JSON.format("xyz", 1).replace("0.5", "0.25"))
    comparison = verified(runs, "m.json:started", "m.json:id")
    assert [leaf.name for leaf in comparison.tree.leaves() if leaf.verdict.differs] == ["m.json/value/loss"]
    assert verdict_line(comparison).endswith("; 2 values were ignored as declared")


def test_a_table_with_thousands_of_ignored_cells_counts_all(runs: Pair) -> None:
    table = "step,note\n" + "".join(f"{row},{{0}}\n" for row in range(3000))
    wrote(runs, "m.csv", table.format("a"), table.format("b"))
    comparison = verified(runs, "m.csv:note")
    assert comparison.identical
    assert times(comparison) == {"m.csv:note": 3000}
    assert sum(1 for leaf in comparison.tree.leaves() if leaf.verdict is Verdict.IGNORED) < 100


def test_values_in_files_within_files_and_in_arrays(runs: Pair) -> None:
    for number, run in enumerate(runs):
        wrote_one(run, "run.zip", archive(note_json=json.dumps({"id": "ab"[number]}).encode(), a_txt=b"same"))
        wrote_one(run, "t.npz", samples.npz({"elapsed": np.array(number + 0.5), "steps": np.arange(3)}))
    comparison = verified(runs, "run.zip:note.json/id", "t.npz:elapsed")
    assert comparison.identical
    assert verdict_line(comparison).endswith("; 2 values were ignored as declared")


def test_a_file_of_one_run_alone_and_one_whose_bytes_are_gone(runs: Pair) -> None:
    wrote(runs, "extra.log", "only here")
    for run, text in zip(runs, "ab", strict=True):
        run.outputs.append(OutputFile(path="gone.log", size=9, digest=digest(text)))
    assert not verified(runs, "extra.log").identical
    comparison = compare(runs[0].path, runs[1].path, ignores=declared(["*.log"], ()))
    assert comparison.identical
    assert verdict_line(comparison).endswith("; 2 files were ignored as declared")
    assert not compare(runs[0].path, runs[1].path, ignores=declared(["gone.log:id", "extra.log"], ())).identical


def pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=4)


FLOATS, OTHERS = np.arange(6.0), np.arange(6.0) + 1
PROTECTED = [
    ("data.bin", samples.npz({"a": FLOATS}), samples.npz({"a": OTHERS}), "data.bin"),
    ("t.npz", samples.npz({"w": FLOATS, "t": np.array(1)}), samples.npz({"w": FLOATS, "t": np.array(2)}), "*.npz"),
    ("t.npz", samples.npz({"a": FLOATS.reshape(2, 3)}), samples.npz({"a": OTHERS.reshape(2, 3)}), "t.npz:a"),
    ("t.npz", samples.npz({"w1": FLOATS}), samples.npz({"w1": OTHERS}), "t.npz:w*"),
    ("e.pkl", pickled({"coef": list(FLOATS) * 9}), pickled({"coef": list(OTHERS) * 9}), "e.pkl"),
    ("m.json", '{"score": 0.5}', '{"score": 0.25}', "m.json"),
    ("m.json", '{"eval": {"acc": [0.5, 0.25]}}', '{"eval": {"acc": [0.5, 0.75]}}', "m.json:eval"),
    ("m.csv", "step,error\n1,0.5\n", "step,error\n1,0.25\n", "m.csv"),
    ("m.yaml", "best:\n  score: 0.5\n", "best:\n  score: 0.25\n", "m.yaml:best"),
    ("log.txt", "12:00 loss 0.5\n", "12:01 loss 0.25\n", "log.txt"),
    ("predictions.csv", "a,b\n1,2\n", "a,b\n1,3\n", "*.csv"),
    ("model.txt", "tree\nversion=v4\n1\n", "tree\nversion=v4\n2\n", "*.txt"),
    ("final_model.bin", b"\0\1\2", b"\0\1\3", "*.bin"),
    ("sub/model.pt", b"\0\1\2", b"\0\1\3", "sub"),
    ("ckpt.data-00000-of-00001", b"\0\1\2", b"\0\1\3", "ckpt*"),
]


@pytest.mark.parametrize(("name", "left", "right", "rule"), PROTECTED)
def test_what_holds_weights_or_results_is_refused(
    runs: Pair, name: str, left: bytes | str, right: bytes | str, rule: str
) -> None:
    wrote(runs, name, left, right)
    with pytest.raises(IgnoreRefused, match="always compared"):
        verified(runs, rule)


def test_a_file_of_weights_is_refused_although_it_is_equal(runs: Pair) -> None:
    wrote(runs, "sub/x.npz", samples.npz({"a": FLOATS}), samples.npz({"a": FLOATS}))
    with pytest.raises(IgnoreRefused, match="in which a is an array of 6 numbers"):
        verified(runs, "sub")


def test_where_only_ignored_files_are_left_nothing_is_compared(tmp_path: Path) -> None:
    left = recording(tmp_path / "left")
    pair = left, replayed(left, tmp_path / "right")
    wrote(pair, "a.log", "1", "2")
    with pytest.raises(NothingComparable):
        verified(pair, "*.log")


# Printed lines


def printed(pair: Pair, *texts: str) -> None:
    for run, text in zip(pair, texts, strict=True):
        printed_one(run, text)


def printed_one(run: Building, text: str) -> None:
    run.printed = {"0": [PrintedPiece(0, "m", text.encode())]}


def test_declared_text_in_lines_does_not_count(runs: Pair) -> None:
    printed(runs, "loss 0.5\nrun abc begins\n", "loss 0.5\nrun xyz begins\n")
    assert not verified(runs).identical
    comparison = compare(runs[0].path, runs[1].path, ignores=declared((), [r"run \w+", "never"]))
    assert comparison.identical
    assert times(comparison) == {r"run \w+": 1, "never": 0}
    assert comparison.ignores[0].counts == ((IgnoredThing.LINE, 1),)
    assert verdict_line(comparison).endswith("bit for bit; 1 line was ignored as declared")


def test_a_line_that_is_left_out_as_a_whole_needs_no_partner(runs: Pair) -> None:
    printed(runs, "a\nretry 3\nloss 0.5\n", "a\nloss 0.5\nretry 1\nretry 2\n")
    comparison = verified(runs, console=[r"^retry \d+$"])
    assert comparison.identical
    assert times(comparison) == {r"^retry \d+$": 2}


def test_the_rest_of_a_line_still_counts(runs: Pair) -> None:
    printed(runs, "run abc loss 0.5\n", "run xyz loss 0.25\n")
    comparison = verified(runs, console=[r"run \w+"])
    assert not comparison.identical
    assert "'run abc loss 0.5'" in verdict_line(comparison), "quoted as it was printed"


@pytest.mark.parametrize("rule", ["loss.*", r"0\.\d+", r"\{.*\}", "(?i)LOSS: [0-9.]+"])
def test_an_expression_that_covers_a_result_is_refused(runs: Pair, rule: str) -> None:
    printed(runs, "{'loss: 0.5', 't': 1}\n", "{'loss: 0.5', 't': 2}\n")
    with pytest.raises(IgnoreRefused, match=r"it matches 0\.5, a result, in the line"):
        verified(runs, console=[rule])


@pytest.mark.slow
def test_an_expression_without_end_is_ended_and_named(runs: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_search, "SECONDS", 1)
    printed(runs, f"{'a' * 4000}!\n", f"{'a' * 4000}?\n")
    with pytest.raises(IgnoreRefused, match=r"--ignore-console '\(a\+\)\+\$': a search by it did not end within 2 s"):
        verified(runs, console=["never", r"(a+)+$"])


def test_lines_of_several_threads(runs: Pair) -> None:
    for run, pieces in zip(runs, ((b"x 1a\n", b"y 0.5\n"), (b"y 0.5\n", b"x 2b\n")), strict=True):
        run.printed = {"0": [PrintedPiece(0, piece.decode()[0], piece) for piece in pieces]}
    comparison = verified(runs, console=[r"x \w+"])
    assert comparison.identical
    assert sum(times(comparison).values()) == 1


# The command and the configuration


@pytest.fixture
def project(runs: Pair, tmp_path: Path) -> Path:
    """A repository with two runs that differ by one value and one line."""
    wrote(runs, "m.json", '{"started": "abc", "loss": 0.5}', '{"started": "xyz", "loss": 0.5}')
    printed(runs, "run abc\nloss 0.5\n", "run xyz\nloss 0.5\n")
    for run in runs:
        run.write()
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    return tmp_path


RULES = ("--ignore", "m.json:started", "--ignore-console", r"run \w+")
CONFIG = "ignore = ['m.json:started']\nignore_console = ['run \\w+']\n"


def test_the_command_says_what_it_ignored(project: Path) -> None:
    done = reprokit("verify", "-q", "left", "right", *RULES, cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("; 1 value and 1 line were ignored as declared")
    assert "ignored: --ignore m.json:started: 1 value" in lines
    assert r"ignored: --ignore-console 'run \w+': 1 line" in lines
    assert any(line.split()[:5] == ["outputs", "ignored", "1", "value", "ignored"] for line in lines)
    assert reprokit("verify", "-q", "left", "right", *RULES[:2], cwd=project).returncode == 1


def test_the_document_has_each_rule_with_its_count(project: Path) -> None:
    done = reprokit("verify", "--json", "left", "right", *RULES, "--ignore", "stale.txt", cwd=project)
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert (found["verdict"], [rule["times"] for rule in found["ignores"]]) == ("identical", [1, 0, 1])
    assert found["ignores"][0]["origin"] == "the command line"
    assert "ignores" not in json.loads(reprokit("verify", "--json", "left", "right", cwd=project).stdout)


@pytest.mark.parametrize(
    ("place", "name", "head"), [("deep/er", "reprokit.toml", ""), (".", "pyproject.toml", "[tool.reprokit]\n")]
)
def test_the_configuration_counts_from_the_root_of_the_repository_on(
    project: Path, place: str, name: str, head: str
) -> None:
    (project / name).write_text(head + CONFIG)
    (project / place / "pyproject.toml").touch()
    done = reprokit("verify", "-q", project / "left", project / "right", cwd=project / place)
    assert done.returncode == 0, done.stderr
    assert "1 value and 1 line were ignored as declared" in done.stdout.splitlines()[0]
    assert f"of {project / name if place != '.' else name}: 1 value" in done.stdout
    strict = reprokit("verify", "-q", project / "left", project / "right", "--no-ignores", cwd=project / place)
    assert strict.returncode == 1


def test_the_nearest_directory_counts_alone_and_reprokit_toml_goes_first(project: Path) -> None:
    (project / "reprokit.toml").write_text(CONFIG)
    (project / "pyproject.toml").write_text("[tool.reprokit]\nignore = ['a']\n")
    (project / "deep" / "pyproject.toml").write_text("[tool.reprokit]\nignore = ['b']\n")
    found = [find(place) for place in (project, project / "deep" / "er")]
    assert [config and config.path.relative_to(project) for config in found] == [
        Path("reprokit.toml"),
        Path("deep/pyproject.toml"),
    ]


def test_the_command_line_adds_to_the_configuration(project: Path) -> None:
    (project / "reprokit.toml").write_text("ignore = ['m.json:started']\n")
    done = reprokit("verify", "--json", "left", "right", *RULES, cwd=project)
    rules = json.loads(done.stdout)["ignores"]
    assert [(rule["rule"], rule["origin"]) for rule in rules] == [
        ("m.json:started", "the command line"),
        (r"run \w+", "the command line"),
    ]


def test_no_run_directory_brings_rules_with_it(project: Path) -> None:
    """Not where it lies, not where one stands in it, not as the working directory that it names."""
    for place in (project / "left", project / "right"):
        (place / "reprokit.toml").write_text(CONFIG)
        (place / "sub").mkdir()
        (place / "sub" / "pyproject.toml").write_text(f"[tool.reprokit]\n{CONFIG}")
        assert find(place) is None
        assert find(place / "sub") is None
    assert reprokit("verify", "-q", project / "left", project / "right", cwd=project / "left" / "sub").returncode == 1


def test_without_a_repository_only_the_working_directory_counts(project: Path) -> None:
    (project / ".git").rmdir()
    (project / "reprokit.toml").write_text(CONFIG)
    assert find(project) is not None
    assert find(project / "deep") is None


def configured_in(place: Path) -> Ignores:
    return configured(find(place))


BAD: list[tuple[str, str, str]] = [
    ("reprokit.toml", "ignore = [1]", "ignore"),
    ("reprokit.toml", "ignored = []", "ignored"),
    ("reprokit.toml", "ignore = ['a:']", "ignore: 'a:' has no key"),
    ("reprokit.toml", "ignore_console = ['(']", "ignore_console: '(' is not a regular expression"),
    ("reprokit.toml", "ignore = ", "Invalid value"),
    ("reprokit.toml", "ignore = 'x'", "ignore"),
    ("reprokit.toml", "\xff", ""),
    ("pyproject.toml", "[tool.reprokit]\nignore_console = 3", "[tool.reprokit]"),
    ("pyproject.toml", "[tool.reprokit", "pyproject.toml"),
    ("pyproject.toml", "[tool]\nreprokit = 3", "[tool.reprokit]"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD)
def test_a_bad_configuration_is_one_line_with_file_and_key(project: Path, name: str, text: str, words: str) -> None:
    (project / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(BadConfig) as refused:
        configured_in(project)
    assert str(refused.value).startswith(f"{project / name}: ")
    assert "\n" not in str(refused.value)
    assert words in str(refused.value)


def test_the_command_refuses_a_bad_configuration(project: Path) -> None:
    (project / "reprokit.toml").write_text("ignore = [1]")
    done = reprokit("verify", "left", "right", cwd=project)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("reprokit: bad-config: ")


def test_a_rule_of_the_configuration_that_is_refused_names_the_file(project: Path) -> None:
    (project / "reprokit.toml").write_text("ignore = ['*.pt']\n")
    done = reprokit("verify", "left", "right", cwd=project)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("reprokit: ignore-refused: --ignore '*.pt' of reprokit.toml: such files hold weights")


def test_only_the_tool_table_of_a_project_counts(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.other]\nignore = [1]\n")
    assert find(project) is None
    (project / "pyproject.toml").write_text("[tool.reprokit]\nunknown = 1\n")
    with pytest.raises(BadConfig):
        find(project)


def test_the_tree_has_ignored_leaves_and_a_document(project: Path) -> None:
    comparison = compare(project / "left", project / "right", ignores=declared(["m.json:started"], [r"run \w+"]))
    found: dict[str, Any] = document(comparison)
    ignored = [leaf for leaf in comparison.tree.leaves() if leaf.verdict is Verdict.IGNORED]
    assert [leaf.name for leaf in ignored] == ["m.json/value/started", "stdout"]
    assert found["verdict"] == "identical"
