"""The loop, on made-up trainings."""

from __future__ import annotations

import msgspec
import pytest

from reprokit.core.errors import LaunchError, TrainingFailed
from reprokit.model.states import Uncovered
from reprokit.reproduce import diagnosis
from reprokit.reproduce.journal import CURE, DIFFERENT, IDENTICAL, LOCATE, PROFILE, SMALLEST, Outcome, RoundJournal
from reprokit.reproduce.trial import Trials
from reprokit.run_files.findings import ORDER, SOURCE, SUSPECT, CodePlace, Confirmed, Cure, Finding
from reprokit.run_files.recipe import RecipeSettings

from .world import Varying, World, entropy, guilty, operator, reproduced

INDEX = "aten::index_put_"
BINCOUNT = "Bincount"
OVERRIDE = f"torch-operator={INDEX}"


def phases(journal: RoundJournal) -> list[str]:
    return [one.phase for one in journal.rounds]


def test_a_training_that_repeats_by_itself_needs_nothing() -> None:
    journal = reproduced(World([]))
    assert (journal.verdict, phases(journal), journal.settings) == (IDENTICAL, ["bare"], RecipeSettings())
    assert [attempt.kind for attempt in journal.attempts()] == ["record", "replay", "record", "record"]


def test_entropy_alone_is_cured_by_a_replay() -> None:
    world = World([entropy()])
    journal = reproduced(world, pairs=3)
    assert (journal.verdict, journal.identical, journal.settings) == (IDENTICAL, 3, RecipeSettings())
    assert phases(journal) == ["bare", "entropy"]
    assert world.there == {"01-first", "02-replay-3"} == set(journal.pair)
    assert [attempt.directory for attempt in journal.attempts() if attempt.kept] == ["01-first", "02-replay-3"]


def test_a_guilty_operator_is_overridden_and_the_recipe_says_for_which_finding() -> None:
    world = World([entropy(), operator(INDEX, "torch-operator", "torch-deterministic")])
    journal = reproduced(world)
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, (OVERRIDE,))
    assert phases(journal) == ["bare", PROFILE, CURE]
    assert journal.changes[0].findings == [f"operator:{INDEX}"]
    assert "9 results in 30 repeats" in journal.changes[0].why
    assert "train.py:12 in step" in journal.changes[0].why
    assert world.there == set(journal.pair)


def test_the_first_divergent_operator_is_cured_without_a_profile() -> None:
    found = [operator(name, "torch-operator", "torch-deterministic") for name in (INDEX, "aten::cumsum")]
    one = reproduced(World(found[:1], locates=True))
    assert (one.verdict, one.settings.patches) == (IDENTICAL, (OVERRIDE,))
    assert phases(one) == ["bare", LOCATE, CURE]
    assert len(list(reproduced(World(found[:1], locates=True), pairs=1).attempts())) == 4
    assert one.rounds[1].conclusion == f"{INDEX} at train.py:12 in step is to blame"
    profiled = reproduced(World(found[:1]))
    assert [attempt.kind for attempt in profiled.attempts() if attempt.kind != "profile"] == [
        attempt.kind for attempt in one.attempts()
    ]
    two = reproduced(World(found, locates=True))
    assert phases(two)[:5] == ["bare", LOCATE, CURE, PROFILE, CURE]
    assert two.verdict == IDENTICAL


@pytest.mark.parametrize(("pairs", "trainings"), [(None, 4), (2, 5)])
def test_an_operator_by_which_runs_part_early_takes_four_trainings(pairs: int | None, trainings: int) -> None:
    world = World([operator(INDEX, "torch-operator")], locates=True, parts_early=True)
    journal = reproduced(world, pairs=pairs)
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, (OVERRIDE,))
    assert len(list(journal.attempts())) == trainings
    assert journal.identical == journal.pairs == trainings - 3


@pytest.mark.parametrize(("may_be_one", "first"), [(True, 1), (False, 2)])
def test_what_was_seen_to_be_rare_is_asked_more_often_even_where_it_parts_early(may_be_one: bool, first: int) -> None:
    journal = RoundJournal(reprokit="1", command=[], directory="/", started="now", pairs=2, max_rounds=9)
    trials = Trials(World([]), journal, keep_runs=False, may_be_one=may_be_one, save=lambda: None, say=print)
    early = Outcome(left="1", right="2", identical=False, words="", parted_early=True)
    for number, pairs in ((1, first), (3, 6), (1, 6)):
        trials.learn(number, early)
        assert trials.pairs == journal.pairs == pairs


ORDERED = Finding(id="o", kind=ORDER, subject="imap_unordered", cures=[Cure(patch="imap-ordered")], verdict=SUSPECT)


@pytest.mark.parametrize(("early", "trainings"), [(True, 4), (False, 5)])
@pytest.mark.parametrize("finding", [ORDERED, guilty("gblinear", "imap-ordered")])
def test_what_the_first_replay_shows_is_cured_without_a_profile(finding: Finding, early: bool, trainings: int) -> None:
    cause = Varying("cause", frozenset({"--patch imap-ordered"}), 1.0, finding)
    journal = reproduced(World([cause], observes=True, parts_early=early))
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, ("imap-ordered",))
    assert (phases(journal), len(list(journal.attempts()))) == (["bare", CURE], trainings)
    assert journal.identical == journal.pairs == trainings - 3


def test_several_suspects_are_measured_before_one_is_tried() -> None:
    causes = [operator(INDEX, "torch-operator"), operator("aten::cumsum", "torch-operator")]
    journal = reproduced(World(causes, observes=True))
    assert phases(journal)[:3] == ["bare", PROFILE, CURE]
    wrong = Finding(id="s", kind="setting", subject="x", cures=[Cure(patch="tf-data")], verdict=SUSPECT)
    other = reproduced(World([Varying("clock", frozenset({"--clock"}))], findings=[wrong], observes=True))
    assert (phases(other), other.settings) == (["bare", CURE, PROFILE, CURE, SMALLEST], RecipeSettings(clock=True))


@pytest.mark.parametrize(("results", "trainings"), [(9, 5), (2, 6)])
def test_what_was_measured_to_vary_often_is_asked_once(results: int, trainings: int) -> None:
    cause = Varying(
        "cause", frozenset({"--patch tf-threads"}), 1.0, guilty("x", "tf-threads", results=results, calls=20)
    )
    journal = reproduced(World([cause]))
    assert (journal.verdict, len(list(journal.attempts()))) == (IDENTICAL, trainings)
    assert journal.identical == journal.pairs == trainings - 4
    assert len(list(reproduced(World([cause]), pairs=2).attempts())) == 6


def test_the_next_cure_is_tried_where_the_first_does_not_cure() -> None:
    world = World([operator(INDEX, "torch-operator", "torch-deterministic", cured_by=["torch-deterministic"])])
    journal = reproduced(world)
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, ("torch-deterministic",))
    assert phases(journal) == ["bare", PROFILE, CURE, PROFILE, CURE, SMALLEST]
    assert [change.option for change in journal.excluded] == [f"--patch {OVERRIDE}"]


def test_a_switch_that_is_cheaper_takes_the_place_of_overrides() -> None:
    found = [operator(name, "torch-operator", "torch-deterministic") for name in (INDEX, "aten::cumsum")]
    world = World(found, seconds={OVERRIDE: 20.0})
    journal = reproduced(world)
    assert journal.settings.patches == ("torch-deterministic",)
    assert {change.option for change in journal.excluded} >= {f"--patch {OVERRIDE}"}
    assert "the switch is taken" in journal.rounds[-1].conclusion
    assert sorted(journal.changes[0].findings) == ["operator:aten::cumsum", f"operator:{INDEX}"]
    assert world.there == set(journal.pair)


def test_what_is_not_needed_is_taken_out_again() -> None:
    harmless = guilty("aten::harmless", "torch-deterministic")
    world = World([operator(BINCOUNT, "threads")], findings=[harmless])
    world.varying = [Varying(BINCOUNT, frozenset({"--patch threads=1"}), 1.0, guilty(BINCOUNT, "threads"))]
    journal = reproduced(world)
    assert journal.settings.patches == ("threads=1",)
    assert [change.option for change in journal.excluded] == ["--patch torch-deterministic"]
    assert journal.excluded[0].excluded == "not needed: without it replays were identical (2)"


def test_an_operator_too_rare_for_replays_keeps_its_patch() -> None:
    rare = guilty("aten::rare", "torch-deterministic", results=2, calls=1)
    world = World([operator(BINCOUNT, "threads=1")], findings=[rare])
    journal = reproduced(world)
    assert set(journal.settings.patches) == {"threads=1", "torch-deterministic"}
    assert any("so rare" in note for one in journal.rounds for note in one.notes)


def test_orders_come_before_suspects_and_suspects_before_general_cures() -> None:
    order = Finding(id="o", kind=ORDER, subject="imap_unordered", cures=[Cure(patch="imap-ordered")], verdict=SUSPECT)
    suspect = Finding(id="s", kind="setting", subject="x", cures=[Cure(patch="tf-data")], verdict=SUSPECT)
    world = World([Varying("all", frozenset({"--patch mkl-cbwr=COMPATIBLE"}))], findings=[suspect, order])
    journal = reproduced(world, automatic=["mkl-cbwr=COMPATIBLE"])
    tried = [[change.option for change in one.changes] for one in journal.rounds if one.phase == CURE]
    assert tried == [
        ["--patch imap-ordered"],
        ["--patch tf-data"],
        ["--clock"],
        ["--patch mkl-cbwr=COMPATIBLE"],
    ]
    assert journal.settings == RecipeSettings(patches=("mkl-cbwr=COMPATIBLE",))


def test_what_depends_on_timing_may_be_identical_by_luck() -> None:
    threads = Finding(id="t", kind=ORDER, subject="threading.Thread", where=[CodePlace("a.py", 5, "work")])
    world = World([Varying("all", frozenset({"--clock"}))], findings=[threads])
    journal = reproduced(world)
    assert journal.settings.clock
    assert journal.why.endswith(
        "and --clock in 4 replays, which can be luck: threading.Thread at a.py:5 in work depends on timing"
    )
    cured = msgspec.structs.replace(threads, verdict=SUSPECT, cures=[Cure(patch="imap-ordered")])
    assert reproduced(World([Varying("all", frozenset({"--patch imap-ordered"}))], findings=[cured])).identical == 2


def test_patches_that_cannot_matter_are_not_tried() -> None:
    world = World([Varying("all", frozenset({"--patch threads=1"}))])
    world.idle = {"cublas-workspace"}
    journal = reproduced(world, automatic=["cublas-workspace"])
    tried = [change.option for one in journal.rounds for change in one.changes]
    assert "--patch cublas-workspace" not in tried
    assert "--patch threads=1" in tried


RDRAND = Uncovered(source="instructions", text="RDRAND in librandom.so", module="/lib/librandom.so")


def test_a_source_that_nothing_recorded_is_hidden() -> None:
    world = World([Varying("rdrand", frozenset({"--hide-rdrand"}))], uncovered=(RDRAND,))
    journal = reproduced(world)
    assert (journal.settings, phases(journal)) == (RecipeSettings(hide_rdrand=True), ["bare", PROFILE, CURE])


def test_what_was_seen_is_tried_before_instructions_that_may_never_be_executed() -> None:
    seen = Finding(id="s", kind="setting", subject="x", cures=[Cure(patch="tf-data")], verdict=SUSPECT)
    race = Varying("race", frozenset({"--patch tf-data"}), 1.0, seen)
    world = World([race], uncovered=(RDRAND,), observes=True, parts_early=True)
    journal = reproduced(world)
    assert (journal.settings.patches, phases(journal), len(list(journal.attempts()))) == (
        ("tf-data",),
        ["bare", CURE],
        4,
    )


@pytest.mark.parametrize(("asked", "pairs"), [(None, 2), (1, 1)])
def test_a_cure_that_nothing_points_at_is_asked_twice(asked: int | None, pairs: int) -> None:
    world = World([Varying("rdrand", frozenset({"--hide-rdrand"}))], uncovered=(RDRAND,), parts_early=True)
    journal = reproduced(world, pairs=asked)
    assert (journal.settings, journal.identical) == (RecipeSettings(hide_rdrand=True), pairs)


def test_a_switch_that_the_machine_does_not_have_is_left_out_again_before_a_replay() -> None:
    world = World([Varying("rdrand", frozenset({"--patch threads=1"}))], uncovered=(RDRAND,))
    world.lacks = "CPUID cannot fault here"
    journal = reproduced(world)
    lacking = next(one for one in journal.rounds if one.settings.hide_rdrand)
    assert ([attempt.kind for attempt in lacking.attempts], lacking.outcomes) == (["record"], [])
    assert journal.settings == RecipeSettings(patches=("threads=1",))
    assert ("--hide-rdrand", "CPUID cannot fault here") in [
        (change.option, change.excluded) for change in journal.excluded
    ]


def test_a_finding_that_names_the_clock_has_it_recorded() -> None:
    source = Finding(id="c", kind=SOURCE, subject="time", cures=[Cure(does="record with --clock")], verdict=SUSPECT)
    world = World([Varying("clock", frozenset({"--clock"}))], findings=[source])
    journal = reproduced(world)
    assert (journal.settings, phases(journal)) == (RecipeSettings(clock=True), ["bare", PROFILE, CURE])


@pytest.mark.parametrize(("imports", "locates"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("cure", ["entropy", "--clock"])
def test_one_cause_takes_four_trainings(cure: str, imports: bool, locates: bool) -> None:
    world = World([Varying("cause", frozenset({cure}))], imports=imports, locates=locates)
    journal = reproduced(world)
    assert (journal.verdict, journal.settings.clock) == (IDENTICAL, cure == "--clock")
    assert len(list(journal.attempts())) == 4
    looks = ([LOCATE] if locates else [PROFILE] if imports else []) if cure == "--clock" else []
    assert phases(journal)[1:-1] == looks
    assert set(journal.pair) == world.there
    assert journal.identical == 2


def test_nothing_cures_a_custom_operator_which_is_named_at_the_end() -> None:
    custom = Finding(
        id="operator:my::racy",
        kind="operator",
        subject="my::racy",
        confirmed=Confirmed(repeats=30, results=4),
        cures=[Cure(does="let the operator add in a fixed order")],
        verdict="guilty",
    )
    journal = reproduced(World([Varying("racy", frozenset(), 1.0, custom)], withheld=3))
    assert journal.verdict == DIFFERENT
    assert journal.remaining == ["my::racy gave 4 results in 30 repeats here", "different: weights"]
    assert journal.alternatives[0] == "my::racy: let the operator add in a fixed order"
    assert "--include-crypto" in journal.alternatives[1]
    assert [change.option for change in journal.changes] == ["--clock", "--patch threads=1"]
    assert "no known cure" in journal.why
    assert len(journal.pair) == 2


def test_what_can_be_secret_is_never_recorded_unasked() -> None:
    journal = reproduced(World([Varying("keys", frozenset({"--include-crypto"}))], withheld=9))
    assert journal.verdict == DIFFERENT
    assert not any(one.settings.include_crypto for one in journal.rounds)


def test_lines_that_read_the_clock_are_named() -> None:
    place = CodePlace("train.py", 3)
    read = Finding(id="c", kind="setting", subject="time.time", where=[place], fact="python.clock", verdict="setting")
    world = World([Varying("clock", frozenset({"--clock"}))], findings=[read], observes=True, imports=False)
    journal = reproduced(world)
    assert [change.why for change in journal.changes] == ["the script at train.py:3 reads the clock"]
    assert len(list(journal.attempts())) == 4


def test_threads_that_race_need_no_profile_where_there_are_no_operators() -> None:
    threads = Finding(id="t", kind=ORDER, subject="threading.Thread", where=[CodePlace("a.py", 5, "work")])
    journal = reproduced(World([Varying("all", frozenset())], findings=[threads], observes=True, imports=False))
    assert PROFILE not in phases(journal)
    assert journal.remaining[0].startswith("threading.Thread at a.py:5 in work")


def test_the_rounds_are_bounded() -> None:
    journal = reproduced(World([Varying("all", frozenset())]), max_rounds=3)
    assert (journal.verdict, len(journal.rounds)) == (DIFFERENT, 3)
    assert "--max-rounds" in journal.why


def test_of_several_patches_at_once_the_one_that_breaks_the_training_is_found() -> None:
    varying = [operator(INDEX, "torch-operator", "threads=1"), operator(BINCOUNT, "tf-deterministic", "tf-threads")]
    world = World(varying, breaks=frozenset({"--patch tf-deterministic"}))
    journal = reproduced(world)
    assert journal.verdict == IDENTICAL
    assert set(journal.settings.patches) == {OVERRIDE, "tf-threads"}
    assert [(change.option, change.excluded) for change in journal.excluded] == [
        ("--patch tf-deterministic", "the training ended with exit status 3")
    ]


def test_a_patch_that_is_refused_before_the_start_is_left_out() -> None:
    world = World([operator(INDEX, "torch-operator", "threads=1")], refuses=frozenset({f"--patch {OVERRIDE}"}))
    journal = reproduced(world)
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, ("threads=1",))
    assert journal.excluded[0].excluded == "refused before the start"


def test_a_patch_that_nothing_applied_does_not_count() -> None:
    world = World([operator(INDEX, "torch-operator", "threads=1")], not_applied={OVERRIDE: "no such operator"})
    journal = reproduced(world)
    assert (journal.verdict, journal.settings.patches) == (IDENTICAL, ("threads=1",))
    assert journal.excluded[0].excluded == "not-applied"


def test_patches_that_cannot_be_together_are_tried_one_after_the_other() -> None:
    varying = [operator(INDEX, "torch-deterministic"), operator("aten::empty", "torch-deterministic-fill", "threads=1")]
    journal = reproduced(World(varying))
    assert (journal.verdict, set(journal.settings.patches)) == (IDENTICAL, {"torch-deterministic", "threads=1"})


def test_what_the_user_asked_for_stays() -> None:
    journal = reproduced(World([entropy()]), base=RecipeSettings(clock=True, patches=("tf-data",)))
    assert journal.settings == RecipeSettings(clock=True, patches=("tf-data",))
    assert journal.changes == []


def test_a_training_that_fails_is_not_made_to_repeat() -> None:
    with pytest.raises(TrainingFailed, match="exit status 3"):
        reproduced(World([], fails=True))


def test_an_error_of_the_first_runs_is_the_user_s() -> None:
    with pytest.raises(LaunchError, match="refused"):
        reproduced(World([], refuses=frozenset({"--clock"})), base=RecipeSettings(clock=True))


@pytest.mark.parametrize("seed", range(20))
def test_what_differs_seldom_is_asked_more_often_once_it_was_seen(seed: int) -> None:
    world = World([entropy(), operator(INDEX, "torch-deterministic", rate=0.4)])
    world.dice.seed(seed)
    journal = reproduced(world, pairs=4)
    assert journal.verdict == IDENTICAL
    assert journal.settings.patches in ((), ("torch-deterministic",))
    late = max(len(one.outcomes) for one in journal.rounds if not one.outcomes or not one.outcomes[-1].identical)
    assert journal.identical >= (2 * late if late > 1 else 4) or len(journal.rounds) == 1


@pytest.mark.parametrize(
    ("results", "calls", "expected"), [(30, 1, 1), (2, 1, None), (2, 100, 1), (2, 15, 6), (1, 5, 0)]
)
def test_how_many_replays_tell_that_an_operator_does_not_matter(results: int, calls: int, expected: int | None) -> None:
    assert diagnosis.replays_needed(guilty("a", results=results, calls=calls), 8) == expected
