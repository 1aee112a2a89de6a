"""What `reprokit rules` says of runs whose tensors are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
import pytest

from tests.rules import large_gradient
from tests.saved_tensors.writer import TensorWriter, run_directory
from tests.support import Reprokit

OWN = large_gradient.__file__


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A gradient of which only reductions were saved, that grows until it is infinite."""
    run = run_directory(tmp_path / "run")
    writer = TensorWriter(run)
    writer.name("gradient/fc.weight", "gradients", module="fc", place=["train.py", 7])
    for step, size in enumerate((1.0, 20.0, "inf")):
        writer.reduce(step, "gradient/fc.weight", l2=size, abs_max=size)  # type: ignore[arg-type]
        writer.pass_step(step)
    writer.end()
    return run


def test_an_alarm_says_what_where_and_why_and_is_kept(reprokit: Reprokit, run: Path) -> None:
    done = reprokit.run("rules", "run", "--rule", "exploding-tensor")
    assert done.returncode == 1, done.stderr
    assert "ExplodingTensor at step 2: gradient/fc.weight (train.py:7): it holds infinity" in done.stdout
    kept = json.loads((run / "findings.json").read_text())["findings"]
    assert [(one["kind"], one["verdict"], one["rule"], one["step"]) for one in kept] == [
        ("rule", "alarm", "ExplodingTensor", 2)
    ]


def test_alarms_that_a_rule_raises_at_once_are_one_line_and_each_is_kept(reprokit: Reprokit, tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "many"))
    names = [f"gradient/{number:02}.weight" for number in range(30)]
    for name in names:
        writer.name(name, "gradients")
    for step in range(2):
        writer.save(step, {name: numpy.full((2, 2), [1.0, numpy.inf][step], "float32") for name in names[step:]})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "many", "--rule", "ExplodingTensor")
    first = "ExplodingTensor at step 1: gradient/01.weight: it holds infinity"
    more = f"(and 28 more: {', '.join(names[2:5])} and 25 more)"
    assert first in done.stdout
    assert more in done.stdout
    kept = json.loads((tmp_path / "many" / "findings.json").read_text())["findings"]
    assert [one["subject"] for one in kept] == names[1:]


def test_what_follows_from_parameters_that_are_no_numbers_is_only_counted(reprokit: Reprokit, tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "ruined"))
    names = [f"{number}.weight" for number in range(3)]
    for name in names:
        writer.name(name, "weights")
    for step in range(4):  # the first has NaN at step 1, all from step 2 on
        values = [numpy.nan if step > 1 or (step == 1 and name == names[0]) else 1.0 for name in names]
        saved = {name: numpy.full((2, 2), value, "float32") for name, value in zip(names, values, strict=True)}
        writer.save(step, saved)
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "ruined", "--rule", "ExplodingTensor")
    assert "ExplodingTensor at step 1: 0.weight: it holds NaN\n" in done.stdout
    assert "1.weight" not in done.stdout
    assert "note: not reported: 2 further alarms after step 1, which left NaN in parameters" in done.stdout


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ([0.0, 0.0, 0.0], ""),
        (
            [0.0, 0.0, 1e-6],
            "at step 2: fc.weight: {ranks} apart by 1e-06 of their size; it was equal",
        ),
        (
            [1e-3, 1e-3, 1e-3],
            "at step 0: fc.weight: {ranks} apart by 0.001 of their size; so near",
        ),
        ([5.0, 5.0, 5.0], ""),
    ],
    ids=["equal", "parted", "parted-before-it-was-seen", "shards"],
)
def test_weights_of_ranks_that_were_equal_or_near_must_stay_so(
    reprokit: Reprokit, tmp_path: Path, shift: list[float], words: str
) -> None:
    run = run_directory(tmp_path / "ranks")
    for rank in range(2):
        writer = TensorWriter(run, f"{rank:016x}-1", process=f"rank{rank}", rank=str(rank))
        writer.name("fc.weight", "weights")
        for step, distance in enumerate(shift):
            writer.save(step, {"fc.weight": numpy.full((4, 4), 1 + rank * distance, "float64")})
            writer.pass_step(step)
        writer.end()
    done = reprokit.run("rules", "ranks", "--rule", "RankWeightsDiverge")
    assert done.returncode == bool(words), done.stdout + done.stderr
    words = words.format(ranks="ranks 0, 1 have other values,")
    assert (f"RankWeightsDiverge {words}" in done.stdout) == bool(words)


@pytest.mark.parametrize(("changed", "status"), [(None, 0), ("rank2", 1)])
def test_ranks_with_other_parts_of_a_weight_are_no_copies(
    reprokit: Reprokit, tmp_path: Path, changed: str | None, status: int
) -> None:
    """All begin with ones, of which ranks 0 and 2 have one half, and 1 and 3 the other."""
    run = run_directory(tmp_path / "ranks")
    for rank in range(4):
        writer = TensorWriter(run, f"{rank:016x}-1", process=f"rank{rank}", rank=str(rank))
        writer.name("fc.weight", "weights", placement=f"Replicate(), Shard(dim=0) {rank % 2 + 1} of 2")
        for step in range(3):
            value = 1 + step * (rank % 2) + (0.5 if (changed, step) == (f"rank{rank}", 2) else 0)
            writer.save(step, {"fc.weight": numpy.full((4, 4), value, "float64")})
            writer.pass_step(step)
        writer.end()
    done = reprokit.run("rules", "ranks", "--rule", "RankWeightsDiverge")
    assert done.returncode == status, done.stdout + done.stderr
    words = "RankWeightsDiverge at step 2: fc.weight: ranks 0, 2 have other values, apart by 0.5 of their size"
    assert (words in done.stdout) == bool(status)


def test_the_bias_of_keys_in_an_attention_of_keras_needs_no_gradient(reprokit: Reprokit, tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "attention"))
    small, large = numpy.full((2, 8), 1e-11, "float32"), numpy.ones((2, 8), "float32")
    names = {"query/kernel": large, "key/bias": small}
    for name in names:
        writer.name(f"gradient/attention/{name}", "gradients")
    for step in range(4):
        writer.save(step, {f"gradient/attention/{name}": value for name, value in names.items()})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "attention", "--rule", "VanishingGradient")
    assert (done.returncode, "no alarms of 1 rules in 4 steps, 0 to 3\n" in done.stdout) == (0, True), done.stdout


def test_a_weight_without_any_gradient_is_an_alarm_and_a_bias_is_none(reprokit: Reprokit, tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "zeros"))
    values = {f"gradient/critic.{name}": numpy.zeros((4, 4), "float32") for name in ("weight", "bias")}
    for name in values:
        writer.name(name, "gradients")
    for step in range(3):
        writer.save(step, values)
        writer.pass_step(step)
    writer.end()
    alarms = json.loads(reprokit.run("rules", "zeros", "--rule", "AllZero", "--json").stdout)["findings"]
    assert [alarm["subject"] for alarm in alarms] == ["gradient/critic.weight"]


@pytest.mark.parametrize(
    ("mean", "deviation", "has_alarm"), [(0.5, 1.0, False), (-0.8, 1.2, False), (3.0, 1.0, True), (127.0, 40.0, True)]
)
def test_images_normalized_by_the_statistics_of_others_are_no_alarm(
    reprokit: Reprokit, tmp_path: Path, mean: float, deviation: float, has_alarm: bool
) -> None:
    writer = TensorWriter(run_directory(tmp_path / "images"))
    writer.name("Net_input_0", "inputs")
    generator = numpy.random.default_rng(0)
    images = generator.normal(mean, deviation, (500, 3, 4, 4))
    writer.save(0, {"Net_input_0": images.astype("float32")})
    writer.pass_step(0)
    writer.end()
    done = reprokit.run("rules", "images", "--rule", "CheckInputImages")
    assert (done.returncode, "images are not normalized" in done.stdout) == (int(has_alarm), has_alarm), done.stdout


def test_a_rule_of_ones_own_takes_parameters(reprokit: Reprokit, run: Path) -> None:
    done = reprokit.run("rules", "run", "--json", "--rule", f"{OWN}:LargeGradient=threshold=5")
    [finding] = json.loads(done.stdout)["findings"]
    assert (finding["rule"], finding["step"], finding["calls"]) == ("LargeGradient", 1, 2)
    assert reprokit.run("rules", "run", "--rule", f"{OWN}:LargeGradient=threshold=1e400").returncode == 0


def test_a_rule_that_fails_is_reported_and_the_others_go_on(reprokit: Reprokit, run: Path) -> None:
    done = reprokit.run("rules", "run", "--rule", f"{OWN}:Broken", "--rule", "ExplodingTensor", "--rule", "Overfit")
    assert done.returncode == 1
    assert "note: Broken failed after step 0 and was not asked again: KeyError" in done.stdout
    assert "not judged, as nothing that they look at was saved: Overfit" in done.stdout


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("VanishingGradients", "near ones: VanishingGradient"),
        ("DyingReLU=depth=3", "has no parameter 'depth'"),
        ("DyingReLU=patience", "is not PARAM=VALUE"),
        ("DyingReLU=patience=often", "is not of the kind of 5"),
        ("nowhere.py:Rule", "cannot be imported"),
        (f"{OWN}:Nothing", "has no class Nothing"),
    ],
)
def test_what_is_no_rule_is_one_clear_line(reprokit: Reprokit, run: Path, spec: str, text: str) -> None:
    done = reprokit.run("rules", str(run), "--rule", spec)
    assert done.returncode == 2
    assert "reprokit: bad-rule: " in done.stderr
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_in_a_run_directory_is_executed(reprokit: Reprokit, run: Path) -> None:
    (run / "rule.py").write_text("open('executed', 'w')\nclass Rule:\n    def invoke_at_step(self, step): ...\n")
    done = reprokit.run("rules", "run", "--rule", "run/rule.py:Rule")
    assert done.returncode == 2
    assert "lies in the run directory" in done.stderr
    assert not (reprokit.directory / "executed").exists()


def test_labels_in_the_order_of_their_classes_are_found(reprokit: Reprokit, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "sorted")
    writer = TensorWriter(run)
    writer.name("CrossEntropyLoss_input_1", "inputs", layer="CrossEntropyLoss")
    for step in range(20):
        writer.save(step, {"CrossEntropyLoss_input_1": numpy.full(30, step // 10)})
        writer.pass_step(step)
    done = reprokit.run("rules", "sorted", "--rule", "ClassImbalance")
    assert "batches hold one class only: the data seem not to be shuffled" in done.stdout


def test_labels_that_are_no_classes_take_no_memory(reprokit: Reprokit) -> None:
    run = run_directory(reprokit.directory / "hostile")
    writer = TensorWriter(run)
    writer.name("CrossEntropyLoss_input_1", "inputs", layer="CrossEntropyLoss")
    for step in range(20):
        writer.save(step, {"CrossEntropyLoss_input_1": numpy.array([0, 1] * 20 + [1 << 60])})
        writer.pass_step(step)
    done = reprokit.run("rules", "hostile", "--rule", "ClassImbalance")
    assert (done.returncode, "no alarms" in done.stdout) == (0, True), done.stderr


def test_a_frozen_weight_may_stay_what_one_without_optimizer_may_not(reprokit: Reprokit) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "unchanged"))
    for name, *collections in (
        ("frozen", "frozen"),
        ("forgotten",),
        ("unused",),
        ("later",),
        ("trained",),
        ("converged",),
    ):
        writer.name(name, "weights", *collections)
    with_gradient = ("forgotten", "later", "trained")
    for name in (*with_gradient, "converged"):
        writer.name(f"gradient/{name}", "gradients")
    for step in range(6):
        values = dict.fromkeys(("frozen", "forgotten", "unused", "later"), numpy.ones((2, 2), "float32"))
        names = [name for name in with_gradient if name != "later" or step < 2]
        gradients = {f"gradient/{name}": numpy.ones((2, 2), "float32") for name in names}
        values["converged"] = numpy.full((2, 2), min(step, 1), "float32")
        gradients["gradient/converged"] = numpy.full((2, 2), 1e-8, "float32")
        writer.save(step, {**values, "trained": numpy.full((2, 2), step, "float32"), **gradients})
        writer.pass_step(step)
    writer.end()
    found = json.loads(reprokit.run("rules", "unchanged", "--json", "--rule", "UnchangedTensor").stdout)["findings"]
    assert {one["subject"]: one["why"] for one in found} == {
        "forgotten": "it is the same at 4 saved steps in a row, though it has a gradient",
        "unused": "it is the same at 4 saved steps in a row, as it gets no gradient",
    }


def test_each_call_of_a_shared_activation_is_judged(reprokit: Reprokit) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "shared"))
    writer.name("relu_output_0", "outputs", layer="ReLU")
    for step in range(6):
        for call, shape in enumerate(((8, 4), (8, 6))):
            writer.save(step, {"relu_output_0": numpy.full(shape, float(call == 0), "float32")}, call=call)
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "shared", "--rule", "DyingReLU")
    assert "relu_output_0: 100 % of its neurons were idle at 5 steps in a row" in done.stdout


def test_a_neuron_that_is_active_in_another_pass_of_the_model_is_not_idle(reprokit: Reprokit) -> None:
    alive, dead = numpy.eye(4, dtype="float32"), numpy.zeros((4, 4), "float32")
    for name, passes in (("critic", (alive, dead)), ("dead", (dead, dead))):
        writer = TensorWriter(run_directory(reprokit.directory / name))
        writer.name("model#1.1_output_0", "outputs", layer="ReLU")
        writer.name("model#1.Critic_output_0", "outputs", layer="Critic")
        for step in range(6):
            for call, value in enumerate(passes):
                writer.save(step, {"model#1.1_output_0": value, "model#1.Critic_output_0": value}, call=call)
            writer.pass_step(step)
        writer.end()
        assert reprokit.run("rules", name, "--rule", "DyingReLU").returncode == (name == "dead")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("CrossEntropyLoss_weight_0", numpy.array([1.0, 20.0])),
        ("BCEWithLogitsLoss_weight_0", numpy.array([20.0])),
        ("BinaryCrossentropy_input_2", numpy.array([1.0] * 39 + [20.0])),
    ],
)
def test_a_rare_class_that_the_loss_weights_is_no_alarm(reprokit: Reprokit, name: str, weights: object) -> None:
    labels = f"{name.partition('_')[0]}_input_1"
    for run, saved in (("weighted", {name: weights}), ("plain", {})):
        writer = TensorWriter(run_directory(reprokit.directory / run))
        for tensor in (labels, *saved):
            collections = ("labels",) if tensor == labels else ("inputs",)
            writer.name(tensor, *collections, layer=name.partition("_")[0])
        for step in range(20):
            writer.save(step, {labels: numpy.array([0] * 39 + [1]), **saved})
            writer.pass_step(step)
        writer.end()
        assert reprokit.run("rules", run, "--rule", "ClassImbalance").returncode == (run == "plain")


@pytest.mark.parametrize(("labels", "alarms"), [([[0] * 39 + [1]] * 2, 1), ([[0] * 40, [1] * 2], 0)])
def test_a_rare_class_is_found_where_gradients_of_two_optimizers_are_accumulated(
    reprokit: Reprokit, labels: list[list[int]], alarms: int
) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "accumulated"))
    for name, collection in (("loss", "losses"), ("CrossEntropyLoss_input_1", "labels"), ("model#1.weight", "weights")):
        writer.name(name, collection, layer="CrossEntropyLoss")
    for step in range(20):
        for call, some in enumerate(labels):
            saved = {"loss": numpy.float32(1), "CrossEntropyLoss_input_1": numpy.array(some)}
            writer.save(step, {**saved, **({} if call else {"model#1.weight": numpy.ones(2)})}, call=call)
        writer.pass_step(step)
    writer.end()
    assert reprokit.run("rules", "accumulated", "--rule", "ClassImbalance").returncode == alarms


def test_infinite_weights_make_no_warning_of_numpy(reprokit: Reprokit) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "infinite"))
    writer.name("fc.weight", "weights")
    for step in range(2):
        writer.save(step, {"fc.weight": numpy.full((2, 2), numpy.inf, "float32")})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "infinite")
    assert ("fc.weight: it holds infinity" in done.stdout, done.stderr) == (True, "")


@pytest.mark.parametrize("second", ["model#1.0.weight", "1.weight"])
def test_losses_of_models_that_train_against_each_other_need_not_fall(reprokit: Reprokit, second: str) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "losses"))
    writer.name("loss", "losses")
    for name in ("0.weight", second):
        writer.name(name, "weights")
    for step in range(40):
        writer.save(step, {"loss": numpy.float32(1), "0.weight": numpy.ones(2), second: numpy.ones(2)})
        writer.save(step, {"loss": numpy.float32(2)}, call=1)  # as of accumulated gradients, if there is one model
        writer.pass_step(step)
    writer.end()
    assert reprokit.run("rules", "losses", "--rule", "LossNotDecreasing").returncode == (second == "1.weight")


@pytest.mark.parametrize("layer", ["Embedding", "EmbeddingBag", "Dense"])
def test_padding_is_found_in_the_input_of_a_model_of_keras_that_embeds_it(reprokit: Reprokit, layer: str) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "padded"))
    writer.name("sequential_input_0", "inputs")
    writer.name("labels/tags", "inputs", "labels")
    writer.name("sequential/first_output_0", "outputs", layer=layer)
    padded, tags = numpy.repeat([[7] * 3 + [0] * 17], 40, axis=0), numpy.zeros((40, 20), "int64")
    writer.save(0, {"sequential_input_0": padded, "labels/tags": tags, "sequential/first_output_0": numpy.ones(3)})
    writer.pass_step(0)
    writer.end()
    found = json.loads(reprokit.run("rules", "padded", "--json", "--rule", "NLPSequenceRatio").stdout)["findings"]
    assert [one["why"] for one in found] == ["85 % of the tokens are 0"] * (layer != "Dense")


def conduct(reprokit: Reprokit, name: str, steps: Sequence[Mapping[str, tuple[float, ...]]], rule: str) -> list[str]:
    """What a rule finds in a run of which such numbers are noted in each step."""
    writer = TensorWriter(run_directory(reprokit.directory / name))
    for step, numbers in enumerate(steps):
        for tensor in numbers:
            writer.name(tensor, "conduct", module="1 (Dropout)")
        writer.save(step, {tensor: numpy.array(value) for tensor, value in numbers.items()})
        writer.pass_step(step)
    writer.end()
    found = json.loads(reprokit.run("rules", name, "--json", "--rule", rule).stdout)["findings"]
    return [f"{one['step']}: {one['why']}" for one in found]


@pytest.mark.parametrize(("noted", "alarms"), [("loss_scale", 0), ("", 1)])
def test_a_loss_may_rise_where_it_is_scaled_more(reprokit: Reprokit, noted: str, alarms: int) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "scaled"))
    writer.name("loss", "losses")
    writer.name("loss_scale", "conduct")
    for step in range(90):
        scale = numpy.array([2.0 ** (step // 30)])
        values = {"loss": scale / (1 + step / 50), "loss_scale": scale}
        writer.save(step, {name: value for name, value in values.items() if name in ("loss", noted)})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "scaled", "--json", "--rule", "LossNotDecreasing")
    assert len(json.loads(done.stdout)["findings"]) == alarms, done.stdout


@pytest.mark.parametrize(("second", "alarms"), [("optimizer#1", 0), ("optimizer#0", 1)])
def test_another_optimizer_begins_another_training_with_a_higher_loss(
    reprokit: Reprokit, second: str, alarms: int
) -> None:
    writer = TensorWriter(run_directory(reprokit.directory / "phases"))
    writer.name("loss", "losses")
    for step in range(60):
        name = f"gradients_kept/{second if step >= 30 else 'optimizer#0'}"
        writer.name(name, "conduct")
        loss = 1 / (1 + step) if step < 30 else 5 / (1 + (step - 30) / 50)
        writer.save(step, {"loss": numpy.array([loss]), name: numpy.zeros(2)})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "phases", "--json", "--rule", "LossNotDecreasing")
    assert len(json.loads(done.stdout)["findings"]) == alarms, done.stdout


def test_gradients_are_kept_where_three_updates_in_a_row_use_those_of_the_one_before(reprokit: Reprokit) -> None:
    kept, zeroed = {"gradients_kept/optimizer#0": (4.0, 4.0)}, {"gradients_kept/optimizer#0": (0.0, 4.0)}
    expected = "at 3 updates in a row, 4 of 4 gradients still held that of the update before: it was not zeroed"
    assert conduct(reprokit, "kept", [zeroed, kept, kept, kept], "GradientsNeverZeroed") == [f"3: {expected}"]
    assert conduct(reprokit, "zeroed", [zeroed, kept, kept, zeroed, kept, kept], "GradientsNeverZeroed") == []
    assert conduct(reprokit, "empty", [{"gradients_kept/optimizer#0": ()}], "GradientsNeverZeroed") == []


def test_a_call_without_gradients_at_each_step_is_no_evaluation(reprokit: Reprokit) -> None:
    trained: dict[str, tuple[float, ...]] = {"Net_modes": (1.0, 0.0)}
    both = {**trained, "Net_dropout_without_gradients": (2.0,)}
    expected = "1 call without gradients, after 4 steps of training without any, had 2 of its layers drop values out"
    steps = [trained, trained, trained, trained, both]
    assert conduct(reprokit, "evaluated", steps, "EvaluationWithDropout") == [f"4: {expected}"]
    assert conduct(reprokit, "generator", [both] * 6, "EvaluationWithDropout") == []
    assert conduct(reprokit, "trained on", [*steps, trained], "EvaluationWithDropout") == [f"5: {expected}"]
    assert conduct(reprokit, "labels", [*steps, both, both, trained], "EvaluationWithDropout") == []
    asked_again = {**trained, "Net_dropout_without_gradients": (2.0, 1.0)}
    assert conduct(reprokit, "meant", [trained] * 4 + [asked_again, trained], "EvaluationWithDropout") == []


def test_a_model_that_was_never_in_training_mode_was_not_left_in_eval_mode(reprokit: Reprokit) -> None:
    training, evaluating = {"Net_modes": (1.0, 0.0)}, {"Net_modes": (0.0, 1.0)}
    expected = "3 updates in a row came from calls in eval mode; it was last called in training mode at step 0"
    steps = [training, evaluating, evaluating, evaluating]
    assert conduct(reprokit, "left", steps, "TrainedInEvalMode") == [f"3: {expected}"]
    assert conduct(reprokit, "attacked", [training, {"Net_modes": (1.0, 9.0)}] * 3, "TrainedInEvalMode") == []
    assert conduct(reprokit, "frozen", [evaluating] * 6, "TrainedInEvalMode") == []


def test_alarms_that_may_have_one_reason_are_one(reprokit: Reprokit, tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "exploding"))
    names = [f"{number}.weight" for number in range(15)]
    for name in names:
        writer.name(name, "weights")
        writer.name(f"gradient/{name}", "gradients")
    writer.name("loss", "losses")
    for step in range(30):  # each layer a step later than the one before
        sizes = {name: 20.0 ** max(0, step - number) for number, name in enumerate(names)}
        saved = {f"gradient/{name}": numpy.full((2, 2), size, "float64") for name, size in sizes.items()}
        weights = {name: numpy.full((2, 2), size, "float64") for name, size in sizes.items()}
        writer.save(step, {**saved, **weights, "loss": numpy.float64(step)})
        writer.pass_step(step)
    writer.end()
    done = reprokit.run("rules", "exploding")
    first, usual, following, end = done.stdout.splitlines()[:4]
    assert first.startswith("FiniteExplosion at step 4: 0.weight: mean |weight| is 1.6e+05, 1.6e+05 times"), first
    assert "(and 15 more until step 18: " in first
    assert usual.startswith("    usually: a learning rate that is too large")
    assert following.startswith("    may follow from it: WeightUpdateRatio at step 1 (15 tensors), "), following
    assert "LossNotDecreasing at step 19" in following
    assert end.startswith("exploding: 1 alarm of "), end
