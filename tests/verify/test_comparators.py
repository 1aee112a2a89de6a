"""Each comparator with two inputs and the difference that must come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from reprokit.core.difference import BookkeepingKind, Difference, Verdict
from reprokit.core.errors import NothingComparable, RunDamaged, RunTooNew
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.model.run import RUNNING, Fidelity, ProcessKilled, ProfileFacts, ReplayOf, SignalSent
from reprokit.model.run_warning import RunWarning
from reprokit.model.states import not_loaded
from reprokit.run_files import rundir
from reprokit.run_files.console import PrintedPiece
from reprokit.verify.comparison import PRINTED_MORE, Comparison
from reprokit.verify.verdict import verdict_line

from .runs import Building, digest, float32, recording, replayed, tensor

Pair = tuple[Building, Building]
Compare = Callable[[Pair], Comparison]
First = Callable[[Pair], tuple[str, Difference]]


def line(run: Building, kind: str, index: int = 0) -> dict[str, Any]:
    """The n-th line of a kind."""
    return [one for one in run.lines if one["k"] == kind][index]


def category(comparison: Comparison, name: str) -> Difference:
    return next(child for child in comparison.tree.children if child.name == name)


def leaf(comparison: Comparison, *names: str) -> Difference:
    node = category(comparison, names[0])
    for name in names[1:]:
        node = next(child for child in node.children if child.name == name)
    return node


def test_a_faithful_replay_is_identical_in_every_category(pair: Pair, compared: Compare) -> None:
    comparison = compared(pair)
    assert comparison.identical
    verdicts = {child.name: child.verdict for child in comparison.tree.children}
    assert verdicts.pop("times") is Verdict.INFORMATION
    assert set(verdicts.values()) == {Verdict.IDENTICAL}, verdicts
    assert comparison.notes == ()


def test_categories_stand_in_causal_order(pair: Pair, compared: Compare) -> None:
    names = [child.name for child in compared(pair).tree.children]
    order = [
        "command",
        "environment",
        "entropy",
        "processes",
        "seeds",
        "samples",
        "trail",
        "process metrics",
        "weights",
    ]
    assert names == [*order, "evaluation metrics", "random states", "outputs", "console", "exit status", "times"]


def test_volatile_facts_are_left_out_and_listed(pair: Pair, compared: Compare) -> None:
    right = pair[1]
    right.run.host = "elsewhere"
    line(right, "agent")["pid"] = 1
    line(right, "seed")["where"] = "train.py:4"
    right.lines = [{**one, "t": one["t"] + 86400} for one in right.lines]
    comparison = compared(pair)
    assert comparison.identical
    expected = {"process ids", "host names", "run ids", "start times and durations"}
    assert expected <= set(comparison.normalizations)
    assert "the lines of the script that seeding calls stand in" in comparison.normalizations


class TestCommand:
    def test_another_argument(self, pair: Pair, first: First) -> None:
        pair[1].run.command[3] = "0.2"
        name, difference = first(pair)
        assert name == "command"
        assert difference.detail == "another command was run: word 3 is 0.1 on the left and 0.2 on the right"

    def test_a_further_argument(self, pair: Pair, first: First) -> None:
        pair[1].run.command.append("--fast")
        assert first(pair)[1].detail.endswith("word 4 is absent on the left and --fast on the right")

    def test_where_the_interpreter_lies_does_not_matter(self, pair: Pair, compared: Compare) -> None:
        pair[0].run.command[0], pair[1].run.command[0] = "/opt/a/bin/python3.11", "/opt/b/bin/python3.11"
        comparison = compared(pair)
        assert comparison.identical
        assert "the directory of the Python interpreter in the command" in comparison.normalizations

    def test_what_is_the_same_on_both_sides_was_not_normalized(self, pair: Pair, compared: Compare) -> None:
        for run in pair:
            run.run.command[0] = "/opt/a/bin/python3.11"
            run.outputs.append(OutputFile(path="/tmp/tmpabcdefgh/x", size=1, digest=digest("x")))
            run.add("seed", call="seed", argument="<object at 0x7f1234567890>", where="train.py:9")
        pair[1].run.command[3] = "0.2"
        assert compared(pair).normalizations == ("run ids", "start times and durations")

    def test_where_another_program_lies_does_matter(self, pair: Pair, first: First) -> None:
        pair[0].run.command[0], pair[1].run.command[0] = "/opt/a/bin/train", "/opt/b/bin/train"
        assert first(pair)[0] == "command"

    def test_the_working_directory_is_told(self, pair: Pair, compared: Compare) -> None:
        pair[1].run.working_directory = "/elsewhere"
        comparison = compared(pair)
        assert comparison.identical
        assert leaf(comparison, "command", "working directory").can_change_results

    def test_a_script_named_below_the_working_directory_is_the_same(self, pair: Pair, compared: Compare) -> None:
        pair[0].run.command[1] = "/home/somebody/project/train.py"
        assert compared(pair).identical


class TestEnvironment:
    @pytest.mark.parametrize(
        ("facts", "name", "can_change"),
        [
            ({"cpu": {"model": "6502"}}, "cpu.model", True),
            ({"system": {"kernel": "9.9"}}, "system.kernel", False),
            ({"gpus": ["H100, 550, 80 GiB"]}, "gpus", True),
            ({"files": [{"path": "train.py", "size": 9, "digest": "sha256:0"}]}, "files.train.py.digest", True),
            ({"never heard of": 1}, "never heard of", True),
        ],
    )
    def test_facts_of_the_host_are_told_with_what_they_can_do(
        self, pair: Pair, compared: Compare, facts: dict[str, Any], name: str, can_change: bool
    ) -> None:
        pair[1].environment.update(facts)
        comparison = compared(pair)
        assert comparison.identical
        found = next(one for one in category(comparison, "environment").leaves() if one.name == name)
        assert (found.verdict, found.can_change_results) == (Verdict.INFORMATION, can_change)
        assert found.detail.startswith("can change" if can_change else "cannot change")

    def test_variables_and_frameworks_can_change_results(self, pair: Pair, compared: Compare) -> None:
        pair[1].run.variables = {"OMP_NUM_THREADS": "4", "MKL_CBWR": "AVX2"}
        line(pair[1], "framework")["version"] = "2.12.0"
        found = {one.name: one for one in category(compared(pair), "environment").leaves() if one.can_change_results}
        assert set(found) == {"variables.OMP_NUM_THREADS", "variables.MKL_CBWR", "frameworks.torch"}
        assert (found["frameworks.torch"].left, found["frameworks.torch"].right) == ("2.13.0", "2.12.0")

    def test_a_missing_environment_is_a_difference(self, pair: Pair, first: First) -> None:
        pair[1].environment = {}
        name, difference = first(pair)
        assert (name, difference.name, difference.verdict) == ("environment", "host facts", Verdict.MISSING)


class TestEntropy:
    def test_a_replay_of_another_recording(self, pair: Pair, first: First) -> None:
        pair[1].run.replay_of = ReplayOf(path="x", run_id="another", profile_digest=digest("another"))
        name, difference = first(pair)
        assert (name, difference.detail) == ("entropy", "the replay was given the entropy of another recording")

    def test_a_recording_altered_since_it_was_replayed(self, pair: Pair, first: First) -> None:
        assert pair[0].run.profile is not None
        pair[0].run.profile = msgspec.structs.replace(pair[0].run.profile, digest=digest("altered"))
        assert "it was altered since" in first(pair)[1].detail

    def test_the_recording_may_stand_on_the_right(self, pair: Pair, compared: Compare) -> None:
        assert compared((pair[1], pair[0])).identical

    def test_two_recordings_have_entropy_of_their_own(self, pair: Pair, compared: Compare) -> None:
        right = pair[1].run
        right.kind, right.replay_of, right.fidelity = "record", None, None
        right.profile = ProfileFacts(digest=digest("another"))
        found = leaf(compared(pair), "entropy", "random profile")
        assert found.verdict is Verdict.INFORMATION
        assert found.detail == "two recordings, each with entropy of its own"

    def test_fidelity_is_told_and_never_rounded_up(self, pair: Pair, compared: Compare) -> None:
        pair[1].run.fidelity = Fidelity(exact=99_999, derived=1)
        comparison = compared(pair)
        found = leaf(comparison, "entropy", "replay fidelity")
        assert found.right == "99.9 % exact (99999 exact, 1 derived)"
        assert found.can_change_results
        assert comparison.identical


class TestProcesses:
    def test_a_process_that_one_run_lacks(self, pair: Pair, first: First) -> None:
        pair[1].lines = [one for one in pair[1].lines if one["p"] != "0/1"]
        name, difference = first(pair)
        assert (name, difference.name, difference.verdict) == ("processes", "process 0/1", Verdict.MISSING)

    def test_lines_that_were_lost_are_never_passed_over(self, pair: Pair, first: First) -> None:
        for run in pair:
            run.lines.remove(line(run, "log"))
        name, difference = first(pair)
        assert (name, difference.left) == ("processes", "16 lines, 1 lost")

    def test_a_training_process_that_did_not_end(self, pair: Pair, first: First) -> None:
        pair[1].lines.remove(line(pair[1], "end", 1))
        assert first(pair)[1].detail.startswith("it ended early in the right run; until then nothing")

    def test_a_helper_may_be_stopped_before_it_says_good_bye(self, pair: Pair, compared: Compare) -> None:
        pair[1].lines = [one for one in pair[1].lines if one["p"] != "0/1" or one["k"] == "agent"]
        assert compared(pair).identical

    def test_a_second_process_of_the_same_identity_is_compared_apart(self, bare: Pair, first: First) -> None:
        for run, numbers in zip(bare, ((1.0, 2.0), (1.0, 3.0)), strict=True):
            for number in numbers:
                run.numbers.clear()
                run.start("rank0")
                run.losses(number, process="rank0")
        assert first(bare)[1].name == "loss of process rank0 (start 2)"


class TestSeeds:
    def test_another_seed(self, pair: Pair, first: First) -> None:
        line(pair[1], "seed")["argument"] = "8"
        name, difference = first(pair)
        assert name == "seeds"
        assert "differs first at call 1 (train.py:3): random.seed(7) against random.seed(8)" in difference.detail

    def test_addresses_in_arguments_do_not_matter(self, pair: Pair, compared: Compare) -> None:
        line(pair[0], "seed")["argument"] = "<Thing at 0x7f0000001000>"
        line(pair[1], "seed")["argument"] = "<Thing at 0x7f0000002000>"
        comparison = compared(pair)
        assert comparison.identical
        assert "memory addresses in the arguments of seeding calls" in comparison.normalizations

    def test_a_replaced_seed_is_shown_and_no_difference(self, pair: Pair, compared: Compare) -> None:
        line(pair[1], "seed")["asked"] = "8"
        comparison = compared(pair)
        assert comparison.identical
        seeds = next(child for child in comparison.tree.children if child.name == "seeds")
        assert [leaf.verdict for leaf in seeds.leaves()] == [Verdict.IDENTICAL, Verdict.INFORMATION]
        replaced = list(seeds.leaves())[1]
        assert (replaced.name, replaced.left, replaced.right) == ("seeds replaced in process 0", "none", "1 seed")
        assert replaced.detail == "train.py:3: random.seed: recorded 7, asked for 8"

    def test_seeds_that_other_processes_took_are_no_difference(self, bare: Pair, compared: Compare) -> None:
        for number, run in enumerate(bare):
            run.start("0/1", pid=2)
            run.losses(1)
            for process, seed in (("0", number), ("0/1", 1 - number)):
                run.add("seed", process, call="random.Random", argument=str(seed), where="train.py:1", value=seed)
        assert compared(bare).identical

    def test_other_seeds_in_other_processes_are_a_difference(self, bare: Pair, compared: Compare) -> None:
        for number, run in enumerate(bare):
            run.start("0/1", pid=2)
            run.losses(1)
            for process, seed in (("0", number), ("0/1", 1 + number)):
                run.add("seed", process, call="random.Random", argument=str(seed), where="train.py:1", value=seed)
        assert not compared(bare).identical

    @pytest.mark.parametrize("count", [0, 1])
    @pytest.mark.parametrize("stopped", [2, 3])
    def test_seeds_for_which_a_process_was_stopped_too_early(
        self, bare: Pair, compared: Compare, count: int, stopped: int
    ) -> None:
        for number, run in enumerate(bare):
            run.start("0/1", pid=2)
            run.losses(1)
            run.run.signals = [SignalSent(number=15, target=2 if number else stopped)]
            for seed in range(2 if number else count):
                run.add("seed", "0/1", call="random.Random", argument=str(seed), where="train.py:1", value=seed)
        comparison = compared(bare)
        assert comparison.identical is (stopped == 2)
        if stopped == 2:
            detail = "not compared: process 0/1 of the left run was stopped before it recorded it"
            assert next(category(comparison, "seeds").leaves()).detail == detail

    def test_seeds_of_threads_are_series_of_their_own(self, bare: Pair, first: First) -> None:
        for number, run in enumerate(bare):
            run.losses(1)
            run.add("seed", call="random.seed", argument=str(number), where=None, thread="@loader")
            run.add("seed_count", call="random.seed", where="train.py:1", thread="", count=5000 + number)
        assert first(bare)[1].name == "seeds @loader of process 0"


class TestMetrics:
    def test_the_first_differing_step_is_named_with_decimals_and_bits(self, bare: Pair, first: First) -> None:
        bare[0].losses(*[1.0] * 137, 0.693147180, 5.0)
        bare[1].losses(*[1.0] * 137, 0.693147240, 6.0)
        name, difference = first(bare)
        assert name == "process metrics"
        expected = "loss of process 0 differs first at step 137: 0.6931472 (3f317218) against 0.69314724 (3f317219)"
        assert difference.detail == expected

    @pytest.mark.parametrize("step", [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 2999])
    def test_the_first_difference_is_found_wherever_chunks_end(self, bare: Pair, first: First, step: int) -> None:
        numbers = [float(number) for number in range(3000)]
        bare[0].losses(*numbers)
        numbers[step] += 0.5
        numbers[-1] += 0.25
        bare[1].losses(*numbers)
        assert f"differs first at step {step}:" in first(bare)[1].detail

    @pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 2048, 2999])
    def test_a_series_that_ends_early_is_different(self, bare: Pair, first: First, length: int) -> None:
        numbers = [float(number) for number in range(3000)]
        bare[0].losses(*numbers)
        bare[1].losses(*numbers[:length])
        detail = first(bare)[1].detail
        if length:
            assert f"differs first at step {length}: the right run ends before it" in detail

    def test_lines_of_several_processes_may_interleave(self, bare: Pair, compared: Compare) -> None:
        bare[0].losses(1, 2, 3, process="rank0")
        bare[0].losses(4, 5, 6, process="rank1")
        bare[1].losses(4, 5, 6, process="rank1")
        bare[1].losses(1, 2, 3, process="rank0")
        assert compared(bare).identical

    def test_equal_nan_bits_are_equal(self, bare: Pair, compared: Compare) -> None:
        for run in bare:
            run.losses(1.0, math.nan, -math.inf)
        comparison = compared(bare)
        assert comparison.identical

    def test_another_nan_is_different(self, bare: Pair, first: First) -> None:
        bare[0].add("loss", name="loss", step=0, value={"dtype": "float32", "bits": "7fc00000", "decimal": None})
        bare[1].add("loss", name="loss", step=0, value={"dtype": "float32", "bits": "7fc00001", "decimal": None})
        assert first(bare)[1].detail.endswith("step 0: nan (7fc00000) against nan (7fc00001)")

    def test_zero_and_minus_zero_are_different(self, bare: Pair, first: First) -> None:
        bare[0].losses(0.0)
        bare[1].losses(-0.0)
        assert first(bare)[1].detail.endswith("0 (00000000) against -0 (80000000)")

    def test_the_type_counts(self, bare: Pair, first: First) -> None:
        double = {"dtype": "float64", "bits": "3fe0000000000000", "decimal": 0.5}
        bare[0].losses(0.5)
        bare[1].add("loss", name="loss", step=0, value=double)
        assert "0.5 (3f000000) against 0.5 (3fe0000000000000)" in first(bare)[1].detail

    def test_how_a_decimal_is_spelt_does_not_count(self, bare: Pair, compared: Compare) -> None:
        bare[0].losses(0.1)
        bare[1].add("loss", name="loss", step=0, value={"dtype": "float32", "bits": "3dcccccd", "decimal": 0.1})
        assert compared(bare).identical

    def test_digests_of_several_loaders_are_counted_where_each_has_an_epoch_0(self, bare: Pair, first: First) -> None:
        for run, texts in zip(bare, ("ab", "ac"), strict=True):
            for text in texts:
                run.add("weights", at="epoch", epoch=0, object="model#0", **{"class": "Net"}, digest=digest(text))
        assert "weights of model#0 of process 0 differs first at epoch 0 (digest 2): " in first(bare)[1].detail

    @pytest.mark.parametrize(
        ("kind", "change", "sentence"),
        [
            ("log", {"value": {"dtype": "int", "decimal": 4}}, "log rate of process 0 differs first at step 1: 3"),
            ("log", {"step": 2}, "log rate of process 0 differs first at value 1: step 1 against step 2"),
            ("epoch", {"values": {"loss": float32(1.0)}}, "at epoch 0: loss 0.5 (3f000000) against loss 1 (3f800000)"),
            ("epoch", {"steps": 4}, "at epoch 0: 3 steps against 4 steps"),
            ("epoch", {"values": {}}, "at epoch 0: loss 0.5 (3f000000) against loss absent"),
            (
                "history",
                {"values": {"loss": [float32(0.5), float32(1)]}},
                "at epoch 1: loss 0.125 (3e000000) against loss 1 (3f800000)",
            ),
            ("history", {"values": {"loss": [float32(0.5)]}}, "at epoch 1: loss 0.125 (3e000000) against loss absent"),
            ("evaluate", {"values": {"accuracy": float32(1)}}, "at accuracy: 0.875 (3f600000) against 1 (3f800000)"),
            ("predict", {"shape": [3, 10]}, "at call 1: float32 [2, 10] sha256:"),
            ("predict", {"digest": digest("x")}, f"against float32 [2, 10] {digest('x')}"),
        ],
    )
    def test_every_kind_names_what_differs(
        self, pair: Pair, first: First, kind: str, change: dict[str, Any], sentence: str
    ) -> None:
        line(pair[1], kind).update(change)
        name, difference = first(pair)
        assert name == ("evaluation metrics" if kind in ("evaluate", "predict") else "process metrics")
        assert sentence in difference.detail

    def test_threads_may_log_their_steps_in_another_order(self, bare: Pair, compared: Compare) -> None:
        for run, steps in zip(bare, ([0, 1, 2, 3], [2, 0, 3, 1]), strict=True):
            for step in steps:
                run.add("log", name="x", step=step, epoch=None, value=float32(step))
        comparison = compared(bare)
        assert comparison.identical
        assert "the order in which threads wrote their lines" in comparison.normalizations

    def test_values_at_the_same_step_keep_their_order(self, bare: Pair, first: First) -> None:
        for run, values in zip(bare, ([1, 2], [2, 1]), strict=True):
            for value in values:
                run.add("log", name="x", step=5, epoch=None, value=float32(value))
        assert "at step 5" in first(bare)[1].detail

    def test_a_kind_from_the_future_is_compared(self, pair: Pair, first: First) -> None:
        for run, number in zip(pair, (1, 2), strict=True):
            run.add("gradient", name="norm", number=number)
        assert first(pair)[1].detail == "gradient norm of process 0 differs first at line 1: number 1 against number 2"

    def test_a_key_from_the_future_is_compared(self, pair: Pair, first: First) -> None:
        line(pair[1], "predict")["top"] = 5
        assert first(pair)[0] == "evaluation metrics"

    def test_one_side_without_any_metric_is_different(self, pair: Pair, first: First) -> None:
        pair[1].lines = []
        assert first(pair)[1].verdict is Verdict.MISSING

    @pytest.mark.parametrize(
        "value",
        [
            {"dtype": "float32", "bits": "3f800000", "decimal": 2.0},
            {"dtype": "float32", "bits": "3f800000", "decimal": None},
            {"dtype": "float32", "decimal": 1.0},
            {"dtype": "float32", "bits": "3f80", "decimal": 1.0},
            {"dtype": "float32", "bits": "3f80000g", "decimal": 1.0},
            {"dtype": "float32", "bits": "3f800000", "decimal": 1e300},
            {"dtype": "int"},
            {"dtype": "int", "decimal": "1"},
            7,
            None,
        ],
    )
    def test_values_that_make_no_sense_are_damage(self, bare: Pair, compared: Compare, value: Any) -> None:
        bare[0].add("loss", name="loss", step=0, value=value)
        with pytest.raises(RunDamaged, match=r"metrics\.jsonl, line 1: "):
            compared(bare)

    def test_an_agent_from_the_future_is_refused(self, pair: Pair, compared: Compare) -> None:
        line(pair[0], "agent")["agent"] = 2
        with pytest.raises(RunTooNew):
            compared(pair)


class TestWeights:
    def test_the_epoch_is_named(self, pair: Pair, first: First) -> None:
        line(pair[1], "weights", 0)["digest"] = digest("x")
        name, difference = first(pair)
        assert name == "weights"
        assert difference.detail.startswith("weights of model#0 of process 0 differs first at epoch 0: sha256:")

    def test_the_tensor_is_named(self, pair: Pair, first: First) -> None:
        tensors = [tensor("fc.bias", "bias"), tensor("fc.weight", "x")]
        line(pair[1], "weights", 1).update(digest=digest("x"), tensors=tensors)
        name, difference = first(pair)
        assert (name, difference.name) == ("weights", "fc.weight")
        assert difference.detail == "model#0 has other values there"

    def test_a_shape_counts_although_the_digest_is_the_same(self, pair: Pair, first: First) -> None:
        line(pair[1], "weights", 1)["tensors"][0][2] = [64, 10]
        assert first(pair)[1].detail == "model#0 has other shape or type there"

    def test_a_tensor_that_one_run_lacks(self, pair: Pair, first: First) -> None:
        line(pair[1], "weights", 1).update(tensors=[tensor("fc.bias", "bias")])
        difference = first(pair)[1]
        assert (difference.name, difference.verdict) == ("fc.weight", Verdict.MISSING)

    def test_a_digest_that_differs_alone_is_not_passed_over(self, pair: Pair, first: First) -> None:
        line(pair[1], "weights", 1)["digest"] = digest("x")
        assert first(pair)[1].name == "digest"

    def test_the_number_of_steps_counts(self, pair: Pair, first: First) -> None:
        line(pair[1], "optimizer")["steps"] = 4
        assert "SGD 3 steps against SGD 4 steps" in first(pair)[1].detail

    def test_a_model_that_one_run_lacks(self, pair: Pair, first: First) -> None:
        line(pair[1], "weights", 1)["object"] = "model#1"
        difference = first(pair)[1]
        assert difference.verdict is Verdict.MISSING
        assert difference.detail == "only the left run recorded it"


def test_another_random_state_at_the_end(pair: Pair, first: First) -> None:
    line(pair[1], "random_state", 1)["digest"] = digest("x")
    name, difference = first(pair)
    assert (name, difference.name) == ("random states", "random state random of process 0")


class TestOutputs:
    def change(self, run: Building, **changes: Any) -> None:
        run.outputs[0] = msgspec.structs.replace(run.outputs[0], **changes)

    def test_other_bytes(self, pair: Pair, first: First) -> None:
        self.change(pair[1], digest=digest("x"), content=digest("y"))
        name, difference = first(pair)
        assert (name, difference.detail) == ("outputs", "other bytes")

    def test_equal_content_in_another_container_is_identical_and_listed(self, pair: Pair, compared: Compare) -> None:
        self.change(pair[1], digest=digest("x"))
        comparison = compared(pair)
        assert comparison.identical
        assert comparison.tree.bookkeeping() == {BookkeepingKind.DATE: 1}

    def test_equal_content_by_another_rule_proves_nothing(self, pair: Pair, first: First) -> None:
        self.change(pair[1], digest=digest("x"), container="keras")
        assert first(pair)[0] == "outputs"

    def test_a_file_that_one_run_lacks(self, pair: Pair, first: First) -> None:
        del pair[1].outputs[1]
        assert first(pair)[1].detail == "only the left run wrote it"

    def test_a_file_that_nobody_read_is_not_called_identical(self, pair: Pair, compared: Compare) -> None:
        for run in pair:
            run.outputs.append(OutputFile(path="huge", size=9, digest="", note="not read: too large"))
        comparison = compared(pair)
        assert leaf(comparison, "outputs", "huge").verdict is Verdict.NOT_COMPARED
        assert (comparison.verdict, comparison.identical) == (Verdict.NOT_COMPARED, False)
        assert comparison.notes == ("not compared, as not read when the runs ended: 1 of the outputs, first huge",)

    def test_a_file_that_was_read_in_one_run_only(self, pair: Pair, compared: Compare) -> None:
        self.change(pair[1], digest="", content="", note="not read")
        comparison = compared(pair)
        assert comparison.verdict is Verdict.NOT_COMPARED
        assert comparison.tree.decisive() is leaf(comparison, "outputs", "model.pt")

    def test_a_file_of_unknown_size_is_not_called_another(self, pair: Pair, compared: Compare) -> None:
        self.change(pair[1], size=0, digest="", content="", note="it vanished while it was read")
        assert compared(pair).verdict is Verdict.NOT_COMPARED

    def test_another_size_is_a_difference_even_without_digests(self, pair: Pair, first: First) -> None:
        for run, size in zip(pair, (1, 2), strict=True):
            run.outputs.append(OutputFile(path="huge", size=size, digest=""))
        assert first(pair)[1].detail == "another size"

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ("out/tmpab12cd_x/a", "out/tmpzz99yy_w/a"),
            ("logs/events.out.tfevents.1700000000.here.77.0", "logs/events.out.tfevents.1800000000.there.8.0"),
        ],
    )
    def test_names_that_are_others_in_every_run(self, pair: Pair, compared: Compare, left: str, right: str) -> None:
        self.change(pair[0], path=left)
        self.change(pair[1], path=right)
        comparison = compared(pair)
        assert comparison.identical
        assert any("names" in one for one in comparison.normalizations)

    def test_several_files_of_one_temporary_name_are_matched_by_content(self, pair: Pair, first: First) -> None:
        contents = (("a", "b"), ("b", "c"))
        for run, texts in zip(pair, contents, strict=True):
            for name, text in zip(("tmpaaaaaaaa", "tmpbbbbbbbb"), texts, strict=True):
                run.outputs.append(OutputFile(path=name, size=1, digest=digest(text)))
        assert first(pair)[0] == "outputs"

    def test_files_beyond_the_bounds_are_told(self, pair: Pair, compared: Compare) -> None:
        paths = [run.write() for run in pair]
        for path, run in zip(paths, pair, strict=True):
            rundir.write_json(path / rundir.OUTPUTS, OutputsFile(files=run.outputs, left_out=3))
        from reprokit.verify.runs import compare

        comparison = compare(*paths)
        assert "first files beyond the bounds" in comparison.notes[0]


class TestExit:
    @pytest.mark.parametrize("change", [{"exit_code": 1}, {"exit_code": None, "signal": "SIGKILL"}])
    def test_another_ending(self, pair: Pair, first: First, change: dict[str, Any]) -> None:
        for key, value in change.items():
            setattr(pair[1].run, key, value)
        name, difference = first(pair)
        assert (name, difference.left) == ("exit status", "exit code 0")

    def test_both_failed_alike(self, pair: Pair, compared: Compare) -> None:
        for run in pair:
            run.run.exit_code = 3
        comparison = compared(pair)
        assert comparison.identical
        assert comparison.notes == ("both runs failed: exit code 3",)
        assert verdict_line(comparison).startswith("identical, and both failed (status 3): ")

    @pytest.mark.parametrize("numbers", [(9, 9), (9, 11)])
    def test_ranks_that_died_by_the_same_signal_or_by_others(
        self, bare: Pair, compared: Compare, numbers: tuple[int, int]
    ) -> None:
        for run, number in zip(bare, numbers, strict=True):
            run.start("rank0", pid=77)
            run.losses(1.0, process="rank0")
            run.run.killed = [ProcessKilled(number=number, process=77)]
        comparison = compared(bare)
        if numbers[0] == numbers[1]:
            assert verdict_line(comparison).startswith("identical, and both failed (rank 0 was killed by SIGKILL): ")
            return
        process = leaf(comparison, "processes", "process rank0")
        assert (process.left, process.right) == ("was killed by SIGKILL", "was killed by SIGSEGV")
        assert verdict_line(comparison).endswith("another signal ended it")

    def test_losses_that_end_earlier_come_before_what_follows(self, bare: Pair, compared: Compare) -> None:
        for run, count in zip(bare, (5, 3), strict=True):
            run.losses(*map(float, range(count)))
            run.add("seed", call="random.seed", argument="7", where="train.py:3", value=7)
            end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#0", "class": "Net"}
            run.add("weights", **end, digest=digest(f"weights {count}"))
        bare[0].add("seed", call="random.seed", argument="8", where="train.py:3", value=8)
        found = compared(bare).tree.first()
        assert found is not None
        assert found.detail.endswith("at step 3: the right run ends before it; what else differs may follow from it")

    def test_the_rank_that_died_is_named_where_the_steps_of_one_run_end(self, bare: Pair, compared: Compare) -> None:
        for run, count in zip(bare, (5, 3), strict=True):
            for rank, pid in (("rank0", 76), ("rank1", 77)):
                run.start(rank, pid=pid)
                run.losses(*map(float, range(count)), process=rank)
        bare[1].run.exit_code, bare[1].run.killed = 1, [ProcessKilled(number=9, process=77)]
        found = compared(bare).tree.first()
        assert found is not None
        ends = (
            "the right run ends before it; the right run failed with exit code 1; of the right run, rank 1 was killed"
        )
        assert f"{ends} by SIGKILL; what else differs may follow from it" in found.detail

    def test_losses_that_part_before_one_run_ends_come_first(self, bare: Pair, compared: Compare) -> None:
        for run, losses in zip(bare, ((1.0, 2.0, 3.0), (1.0, 2.5)), strict=True):
            run.losses(*losses)
            run.add("weights", at="end", epoch=None, object="model#0", **{"class": "Net"}, digest=digest(str(losses)))
        found = compared(bare).tree.first()
        assert found is not None
        assert found.detail == "loss of process 0 differs first at step 1: 2 (40000000) against 2.5 (40200000)"

    def test_what_a_run_warned_of_qualifies_the_verdict_once(self, pair: Pair, compared: Compare) -> None:
        pair[1].add("warning", text="a metric was not kept")
        pair[0].add("warning", text="")
        pair[0].run.warnings = [RunWarning("the disk was full", "disk-full")]
        pair[1].run.warnings = 2 * [RunWarning("the disk was full", "disk-full")]
        notes = compared(pair).notes
        assert notes[0] == "of the left run, the disk was full", "an empty warning hides no other"
        assert notes[-2:] == (
            "of the right run, the disk was full",
            "the right run's agent warns: a metric was not kept",
        )

    def test_what_agents_warn_of_is_said_once_by_code_and_path(self, pair: Pair, compared: Compare) -> None:
        for run in pair:
            for path in ("/tmp/a", "/tmp/b", "/tmp/a"):
                run.add("warning", text=f"{path} was there already", code="temporary-name-taken", path=path)
        pair[0].add("warning", text="/tmp/a was there, in other words", code="temporary-name-taken", path="/tmp/a")
        warnings = [note for note in compared(pair).notes if "was there" in note]
        assert warnings == ["both runs' agents warn: /tmp/a was there already (and 1 more: /tmp/b)"]

    def test_a_crashed_run_is_compared_with_a_note(self, pair: Pair, compared: Compare) -> None:
        pair[1].run.status, pair[1].run.exit_code = RUNNING, None
        comparison = compared(pair)
        assert not comparison.identical
        assert comparison.notes[0].startswith("the right run did not come to its end")

    def test_both_crashed(self, pair: Pair, compared: Compare) -> None:
        for run in pair:
            run.run.status, run.run.exit_code = RUNNING, None
        comparison = compared(pair)
        assert leaf(comparison, "exit status", "status").verdict is Verdict.NOT_RECORDED
        assert len(comparison.notes) == 2


class TestNothingComparable:
    def test_exit_status_alone(self, bare: Pair, compared: Compare) -> None:
        with pytest.raises(NothingComparable, match="neither run recorded metrics, weights or outputs"):
            compared(bare)

    def test_seeds_and_random_states_alone(self, bare: Pair, compared: Compare) -> None:
        for run in bare:
            run.start()
            run.add("seed", call="random.seed", argument="1", where=None)
            run.add("random_state", name="random", digest=digest("x"))
            run.add("end")
        with pytest.raises(NothingComparable):
            compared(bare)

    def test_files_that_nobody_read(self, bare: Pair, compared: Compare) -> None:
        for run in bare:
            run.outputs.append(OutputFile(path="huge", size=9, digest=""))
            run.run.agent = not_loaded("no Python process of the run began it")
        with pytest.raises(NothingComparable, match="agent not loaded: no Python process"):
            compared(bare)

    def test_one_output_is_enough(self, bare: Pair, compared: Compare) -> None:
        for run in bare:
            run.outputs.append(OutputFile(path="model", size=9, digest=digest("m")))
        comparison = compared(bare)
        assert comparison.identical
        assert comparison.notes == ("no metrics and no weights were recorded: the verdict rests on the outputs alone",)


def test_a_run_is_told_when_it_is_compared_with_itself(pair: Pair) -> None:
    from reprokit.verify.runs import compare

    path = pair[0].write()
    assert "compares a run with itself" in compare(path, path).notes[0]


def test_what_was_not_loaded_is_told(pair: Pair, compared: Compare) -> None:
    pair[1].run.shim = not_loaded("static Python")
    assert "the right run's shim was not loaded: static Python" in compared(pair).notes


def test_a_replay_equals_its_recording_whoever_built_it(tmp_path: Any) -> None:
    """The builder itself: a change of the copy leaves the original alone."""
    left = recording(tmp_path / "left")
    left.losses(1.0)
    right = replayed(left, tmp_path / "right")
    right.lines[0]["step"] = 5
    assert left.lines[0]["step"] == 0
    assert replace(left) == left


class TestConsole:
    def printed(self, *pieces: tuple[int, str, bytes]) -> dict[str, list[PrintedPiece]]:
        return {"0": [PrintedPiece(*piece) for piece in pieces]}

    def test_another_number_is_a_difference(self, pair: Pair, first: First) -> None:
        pair[1].printed = self.printed((0, "m", b"loss 0.75\nloss "), (0, "m", b"0.25\n"))
        name, difference = first(pair)
        assert name == "console"
        assert difference.detail == "stdout: line 2 is 'loss 0.5' in the left run and 'loss 0.25' in the right one"

    def test_lines_that_only_one_run_has(self, pair: Pair, first: First) -> None:
        pair[1].printed = self.printed((0, "m", b"loss 0.75\nloss 0.5\nmore\nand\x1b more\n"))
        assert first(pair)[1].detail == "stdout: only the right run goes on, with 2 more lines, from line 3 on: 'more'"

    @pytest.mark.parametrize(
        ("text", "detail", "more"),
        [
            (b"new\nloss 0.75\nloss 0.5\n", "only the right run printed line 1, 'new'", 1),
            (b"loss 0.75\na\nb\nloss 0.5\nc\n", "only the right run printed line 2, 'a', and 2 more lines", 3),
            (b"loss 0.5\n", "only the left run printed line 1, 'loss 0.75'", -1),
            (b"new\nloss 0.75\nloss 0.25\n", "only the right run printed line 1, 'new'; 1 further place differs", None),
            (
                b"loss 0.25\nloss 0.5\nmore\n",
                "line 1 is 'loss 0.75' in the left run and 'loss 0.25' in the right one; 1 further place differs",
                None,
            ),
        ],
    )
    def test_lines_in_between_are_one_difference(
        self, pair: Pair, first: First, text: bytes, detail: str, more: int | None
    ) -> None:
        pair[1].printed = self.printed((0, "m", text))
        found = first(pair)[1]
        assert (found.detail, found.figures.get(PRINTED_MORE)) == (f"stdout: {detail}", more)

    def test_a_line_in_between_is_found_beside_printed_times(self, pair: Pair, first: First) -> None:
        lines = [f"step {number} took 0.{number}{{}} s, loss 1.{number}" for number in range(8)]
        left, right = ("\n".join(lines).replace("{}", digit) for digit in "15")
        pair[0].printed = self.printed((0, "m", left.encode()))
        pair[1].printed = self.printed((0, "m", right.replace("step 4", "norm 0.3\nstep 4").encode()))
        assert first(pair)[1].detail == "stdout: only the right run printed line 5, 'norm 0.3'"

    def test_a_process_that_only_one_run_has(self, pair: Pair, first: First) -> None:
        pair[1].printed["0/1"] = [PrintedPiece(1, "m", b"warning\n")]
        assert first(pair)[1].name == "stderr of process 0/1"

    def test_threads_race_and_each_says_the_same(self, pair: Pair, compared: Compare, first: First) -> None:
        one, other, third = (0, "m.1", b"a 1\n"), (0, "m.2", b"b 2\n"), (0, "m.1", b"a 3\n")
        pair[0].printed, pair[1].printed = self.printed(one, other, third), self.printed(other, one, third)
        comparison = compared(pair)
        assert comparison.identical
        assert "order of lines of several threads" in "\n".join(comparison.notes)

    def test_a_thread_that_says_another_thing_is_a_difference(self, pair: Pair, first: First) -> None:
        one, other, third = (0, "m.1", b"a 1\n"), (0, "m.2", b"b 2\n"), (0, "m.1", b"a 3\n")
        pair[0].printed, pair[1].printed = self.printed(one, other, third), self.printed(third, other, one)
        assert first(pair)[0] == "console"

    def test_times_are_listed_and_no_difference(self, pair: Pair, compared: Compare) -> None:
        pair[0].printed = self.printed((0, "m", b"loss 0.75 in 3 s\nsaving took 4 s\n"))
        pair[1].printed = self.printed((0, "m", b"loss 0.75 in 4 s\nsaving took 5 s\n"))
        comparison = compared(pair)
        assert comparison.identical
        assert comparison.notes == ()
        listed = [(leaf.name, leaf.left, leaf.right) for leaf in comparison.tree.leaves() if leaf.kind is not None]
        assert listed == [("stdout: line 1", "3 s", "4 s"), ("stdout: line 2", "4 s", "5 s")]

    def test_a_time_that_nothing_names_is_a_difference_with_advice(self, pair: Pair, first: First) -> None:
        pair[0].printed = self.printed((0, "m", b"braking 4.1 s\n"))
        pair[1].printed = self.printed((0, "m", b"braking 4.2 s\n"))
        detail = first(pair)[1].detail
        assert "4.1 s and 4.2 s may be a duration" in detail
        assert "--ignore-console REGEX" in detail

    def test_a_run_of_which_nothing_was_kept(self, pair: Pair, compared: Compare) -> None:
        pair[1].printed = {}
        comparison = compared(pair)
        assert comparison.identical
        assert "of the right run nothing was kept of what it printed" in comparison.notes[0]


class TestPrintedTimes:
    @pytest.fixture
    def timed(self, pair: Pair) -> Pair:
        for run, text in zip(pair, (b"took 3 s\nloss 0.5, 1 s\n", b"took 4 s\n\nloss 0.5, 2 s\n"), strict=True):
            run.printed["0"] = [PrintedPiece(0, "m", b"step time 3 s, loss 0.75\n" + text)]
        return pair

    def test_the_verdict_says_of_how_many_lines_they_are_left_out_and_shows_the_first(
        self, timed: Pair, compared: Compare
    ) -> None:
        line = verdict_line(compared(timed))
        assert line.startswith("identical: ")
        assert line.endswith("; 2 durations differ (listed), left out of 2 printed lines, first 'took 3 s'")

    def test_a_strict_comparison_leaves_nothing_out(self, timed: Pair) -> None:
        from reprokit.verify.runs import compare

        first = compare(timed[0].write(), timed[1].write(), strict_console=True).tree.first()
        assert first is not None
        assert first.detail == "stdout: line 2 is 'took 3 s' in the left run and 'took 4 s' in the right one"

    def test_a_strict_comparison_sees_blank_lines(self, pair: Pair) -> None:
        from reprokit.verify.runs import compare

        for run, text in zip(pair, (b"loss 0.5\n", b"loss 0.5 \n\n"), strict=True):
            run.printed["0"] = [PrintedPiece(0, "m", text)]
        paths = [run.write() for run in pair]
        assert compare(*paths).identical
        assert not compare(*paths, strict_console=True).identical
