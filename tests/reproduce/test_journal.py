"""journal.md for people, journal.json for machines."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from reprokit.core.pages.markdown import code, escaped
from reprokit.model.states import Uncovered
from reprokit.reproduce import journal as journals
from reprokit.reproduce.journal import FORMAT, Attempt, Change, Outcome, PatchOutcome, RoundJournal
from reprokit.reproduce.narrative import markdown
from reprokit.run_files.findings import CodePlace, Confirmed, Cure, Finding
from reprokit.run_files.recipe import RecipeSettings
from tests.support import schema_of, shipped_schema

from .world import World, entropy, guilty, operator, reproduced

HOSTILE = "\x1b[31m`**[x](http://y)<b>\u202e\udc80\n# head"


TITLE = "journal.json, and what reprokit reproduce --json prints"


def validate(journal: RoundJournal) -> dict[str, object]:
    found: dict[str, object] = json.loads(journals.document(journal))
    jsonschema.Draft202012Validator(shipped_schema("journal")).validate(found)
    return found


def test_the_schema_is_what_the_code_says() -> None:
    assert shipped_schema("journal") == schema_of(RoundJournal, f"urn:reprokit:journal:{FORMAT}", title=TITLE)
    jsonschema.Draft202012Validator.check_schema(shipped_schema("journal"))


def test_the_journal_of_a_search_fits_the_schema_and_is_read_again() -> None:
    journal = reproduced(World([entropy(), operator("aten::index_put_", "torch-operator", "torch-deterministic")]))
    found = validate(journal)
    assert found["verdict"] == "identical"
    assert msgspec.json.decode(journals.document(journal), type=RoundJournal) == journal
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(shipped_schema("journal")).validate({**found, "verdict": "fine"})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(shipped_schema("journal")).validate({**found, "surprise": 1})


def test_the_story_says_what_was_run_found_and_done_in_this_order() -> None:
    index, seconds = "aten::index_put_", {"torch-operator=aten::index_put_": 20.0, "torch-deterministic": 30.0}
    world = World([entropy(), operator(index, "torch-operator", "torch-deterministic")], seconds=seconds)
    story = markdown(reproduced(world, pairs=2))
    parts = [
        "Round 1: the training as it is, and whether it repeats",
        "The training does not repeat, not even with the same entropy.",
        "Round 2: a profile",
        "train.py:12 in step, 100 calls: measured, gave 9 results in 30 repeats here",
        "Applied: `--patch torch-operator=aten::index_put_`, since",
        "Verify: identical: all of it (2 times)",
        "in place of",
        "## The recipe",
        "record --recipe recipe.toml -- train",
        "identical in 2 of 2 comparisons",
        "## What it costs",
        "## The final pair",
    ]
    found = [story.index(part) for part in parts]
    assert found == sorted(found)


def test_the_story_of_a_failure_names_what_remains_and_what_was_tried() -> None:
    custom = msgspec.structs.replace(guilty("my::racy"), cures=[Cure(does="add in a fixed order", cost="time")])
    story = markdown(reproduced(World([operator("my::racy", cured_by=["none"])], findings=[custom], withheld=2)))
    for part in (
        "**not reproduced**: no known cure is left",
        "## What remains",
        "my::racy at train.py:12 in step gave 9 results in 30 repeats here",
        "Applied, and not enough:",
        "`--patch threads=1`",
        "## What you can do",
        "add in a fixed order (time)",
        "--include-crypto",
    ):
        assert part in story


def hostile() -> RoundJournal:
    """A journal with escapes and markup wherever a text may stand."""
    journal = RoundJournal(reprokit="1", command=[HOSTILE], directory=HOSTILE, started="now", pairs=2, max_rounds=9)
    finding = Finding(
        id=HOSTILE,
        kind="operator",
        subject=HOSTILE,
        where=[CodePlace(HOSTILE, 1, HOSTILE)],
        why=HOSTILE,
        confirmed=Confirmed(repeats=3, results=2),
        cures=[Cure(does=HOSTILE)],
        verdict="guilty",
    )
    one = journal.begin("profile", HOSTILE, RecipeSettings(), [Change(option=HOSTILE, why=HOSTILE, cost=HOSTILE)])
    one.findings, one.notes, one.conclusion = [finding], [HOSTILE], HOSTILE
    patched = PatchOutcome(text=HOSTILE, state="refused", why=HOSTILE)
    one.attempts = [
        Attempt(
            kind="record",
            directory=HOSTILE,
            ended=HOSTILE,
            patches=[patched],
            uncovered=[Uncovered(source="program", text=HOSTILE)],
            fidelity=HOSTILE,
        )
    ]
    one.outcomes = [
        Outcome(
            left="a", right="b", identical=False, words=HOSTILE, trail=HOSTILE + "2", causes=[HOSTILE], notes=[HOSTILE]
        )
    ]
    journal.verdict, journal.remaining, journal.alternatives = "different", [HOSTILE], [HOSTILE]
    journal.pair, journal.why = [HOSTILE], HOSTILE
    return journal


def test_nothing_in_a_journal_acts_on_a_terminal_or_makes_markup_of_its_own() -> None:
    story = markdown(hostile())
    assert all(character == "\n" or character.isprintable() for character in story)
    assert "\n# head" not in story
    assert "\n# head" not in story.replace("\\", "")
    assert len([line for line in story.splitlines() if line.startswith("#")]) == 5
    validate(hostile())


@pytest.mark.parametrize(("text", "shown"), [("a", "`a`"), ("a`b", "``a`b``"), ("``", "``` `` ```")])
def test_code_is_code_whatever_is_in_it(text: str, shown: str) -> None:
    assert code(text) == shown


def test_plain_text_has_no_markup() -> None:
    assert escaped("a_b <c> [d](e)") == r"a\_b \<c\> \[d\](e)"


def test_a_journal_is_replaced_whole_and_is_its_owner_s(tmp_path: Path) -> None:
    place = tmp_path / "journal.md"
    for text in ("one\udc80", "two"):
        journals.write_text(place, text)
    assert place.read_text() == "two"
    assert place.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["journal.md"]
