"""A recipe is data from somewhere: what is written is read again, and what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from reprokit.core.errors import BadRecipe
from reprokit.run_files import recipe
from reprokit.run_files.recipe import Recipe, RecipeSettings
from tests.support import Reprokit

ASKED = RecipeSettings(clock=True, patches=("threads=1", "torch-operator=aten::index_put_"))


def recipe_in(path: Path, text: str | bytes) -> Path:
    place = path / "recipe.toml"
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    written = Recipe(schema=1, record=ASKED, why={"--patch threads=1": ["operator:Bincount"], "--clock": []})
    recipe.write(path, written, "Found on a Monday.\nWith care.")
    found, used = recipe.read(path)
    assert found == written
    assert used.path == str(path)
    assert path.read_text().startswith("# Found on a Monday.\n# With care.\nschema = 1\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["recipe.toml"]


@settings(max_examples=50, deadline=None)
@given(some.text(max_size=60), some.lists(some.text(max_size=60), max_size=3), some.text(max_size=60))
def test_texts_from_anywhere_make_a_recipe_that_can_be_read(key: str, findings: list[str], comment: str) -> None:
    text = recipe.dumps(Recipe(schema=1, why={key: findings}), comment)
    assert recipe.loads(text).record == RecipeSettings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = 2", "upgrade reprokit"),
        ("schema = 0", "reads 1"),
        ("", "missing required field `schema`"),
        ("schema = true", "Expected `int`"),
        ("schema = 1\nsurprise = 1", "unknown field `surprise`"),
        ("schema = 1\n[record]\nclok = true", "unknown field `clok`"),
        ("schema = 1\n[record]\nclock = 1", "Expected `bool`"),
        ("schema = 1\n[record]\ncommand = ['rm']", "unknown field `command`"),
        ("schema = 1\n[record]\npatches = ['../../x']", "regex"),
        ('schema = 1\n[record]\npatches = ["threads=\\u001b[31m"]', "regex"),
        ('schema = 1\n[record]\npatches = ["threads=1\\n"]', "regex"),
        (f"schema = 1\n[record]\npatches = {['threads=1'] * 65}", "length"),
        ("schema = 1\n[why]\na = 'b'", "Expected `array`"),
        ("schema = ", "Invalid value"),
        ("a = " + "[" * 20_000, "recursion"),
        (b"\xff\xfe", "UTF-8"),
        ("#" * 70_000, "larger than"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(BadRecipe) as refused:
        recipe.read(recipe_in(tmp_path, text))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["/dev/zero", "/nowhere/at/all", "."])
def test_what_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(BadRecipe, match="name the recipe"):
        recipe.read(Path(name))


def test_recipe_and_command_line_are_followed_together() -> None:
    asked = RecipeSettings(hide_rdrand=True, patches=("threads=1", "tf-data"))
    assert recipe.merged(Recipe(schema=1, record=ASKED), asked) == RecipeSettings(
        clock=True, hide_rdrand=True, patches=("threads=1", "torch-operator=aten::index_put_", "tf-data")
    )


def test_a_recipe_alone_does_not_have_secret_keys_recorded() -> None:
    greedy = Recipe(schema=1, record=RecipeSettings(include_crypto=True))
    with pytest.raises(BadRecipe, match="--include-crypto"):
        recipe.merged(greedy, RecipeSettings())
    assert recipe.merged(greedy, RecipeSettings(include_crypto=True)).include_crypto


def test_record_follows_a_recipe_and_its_replay_does_too(reprokit: Reprokit) -> None:
    recipe_in(reprokit.directory, "schema = 1\n[record]\nclock = true\nkeyed = true\npatches = ['threads=1']")
    done = reprokit.run("record", "--recipe", "recipe.toml", "-o", "run", "--", "sh", "-c", "echo $OMP_NUM_THREADS")
    assert (done.returncode, done.stdout) == (0, "1\n")
    facts = reprokit.facts("run")
    assert (facts["clock"], facts["keyed"], facts["hide_rdrand"]) == (True, True, False)
    assert facts["recipe"]["path"] == "recipe.toml"
    assert facts["recipe"]["digest"].startswith("sha256:")
    assert [(patch["id"], patch["value"], patch["state"]) for patch in facts["patches"]] == [
        ("threads", "1", "applied")
    ]
    again = reprokit.run("replay", "run", "-o", "again")
    assert (again.returncode, again.stdout) == (0, "1\n")
    assert reprokit.facts("again")["recipe"] == facts["recipe"]


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("schema = 1\n[record]\npatches = ['thread']", "unknown-patch"),
        ("schema = 1\n[record]\npatches = ['torch-deterministic', 'torch-deterministic-fill']", "conflicting-patches"),
        ("schema = 1\n[record]\npatches = ['threads=none']", "usage"),
        ("schema = 3", "recipe"),
    ],
)
def test_a_recipe_that_cannot_be_followed_starts_nothing(reprokit: Reprokit, text: str, slug: str) -> None:
    recipe_in(reprokit.directory, text)
    done = reprokit.run("record", "--recipe", "recipe.toml", "--", "touch", "started")
    assert done.returncode == 125
    assert done.stderr.startswith(f"reprokit: {slug}: ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in reprokit.directory.iterdir()] == ["recipe.toml"]
