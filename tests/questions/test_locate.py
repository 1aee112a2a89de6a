"""reprokit locate: the first operator that gave another result, of real trainings; and how two logs are compared."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import pytest

from reprokit.core.errors import RunDamaged
from reprokit.model.divergence import FORMAT, TITLE, LocatedDivergence
from reprokit.questions import operator_logs
from reprokit.questions.operator_divergence import DivergenceKind, ThreadDivergence, first_of_each
from reprokit.questions.operator_logs import NO_OUTPUTS, UNREAD, CalledOperator, CallPlace, OperatorCall, ProcessLog
from reprokit.run_files.rundir import ANSWERS, RunDirectory
from tests.support import Done, Reprokit, schema_of, shipped_schema

TRAININGS = Path(__file__).parents[1] / "trainings"
RACING = TRAININGS / "tensorflow_racing.py"
SUMS = TRAININGS / "pytorch_compiled_sums.py"
SCALED = TRAININGS / "pytorch_scaled_rows.py"
NOISY = TRAININGS / "tensorflow_noisy_gradient.py"
STEPS = TRAININGS / "jax_steps.py"
MASKED = TRAININGS / "pytorch_masked_gradient.py"
MUTANTS, GATHER = TRAININGS / "pytorch_mutants.py", TRAININGS / "pytorch_racing_gather.py"


def record(directory: Path, name: str, script: Path, *arguments: str) -> None:
    done = Reprokit(directory).run("record", "-o", name, "--", sys.executable, str(script), *arguments)
    assert done.returncode == 0, done.stderr


def line_of(script: Path, text: str) -> int:
    return next(n for n, line in enumerate(script.read_text().splitlines(), 1) if text in line)


@pytest.mark.extended
def test_a_gradient_that_numpy_changes_is_not_called_equal_where_the_trail_lacks_parameters(tmp_path: Path) -> None:
    record(tmp_path, "left", NOISY, "-1")
    record(tmp_path, "right", NOISY, "3")
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    first = json.loads(done.stdout)["processes"][0]
    assert (first["kind"], first["call"]["step"]) == ("outside", 3)


@pytest.mark.extended
def test_a_change_without_effect_is_noted_and_it_is_said_what_was_compared(tmp_path: Path) -> None:
    record(tmp_path, "left", MASKED, "-1")
    record(tmp_path, "right", MASKED, "3")
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "and loss, gradients, parameters of each step that the trails have\n" in done.stdout
    assert "  note: not equal from aten::mul, backward of hidden = (x @ weights) * mask" in done.stdout
    assert "of step 3: what went into it was changed outside of operators, without effect on loss, " in done.stdout
    same = Reprokit(tmp_path).run("locate", "left", "--pairs", "1", "--json")
    found = json.loads(same.stdout)
    assert (found["results"], found["notes"]) == (["loss", "gradients", "parameters"], [])


def test_one_changed_sign_of_a_zero_is_named_by_operator_and_line_and_kept(tmp_path: Path) -> None:
    record(tmp_path, "left", MUTANTS, "lstm")
    record(tmp_path, "right", MUTANTS, "lstm", "3", "40", "zero")
    mutated = (tmp_path / "mutated").read_text()
    done = Reprokit(tmp_path).run("locate", "left", "right", "--json", "--keep", "kept")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, shipped_schema("locate"))
    first = found["processes"][0]
    call = first["call"]
    assert call["operator"] == mutated
    assert (call["step"], call["phase"], first["kind"], first["varying"]) == (3, "backward", "result", 1)
    assert call["where"][0][:2] == [str(MUTANTS), line_of(MUTANTS, "loss = loss + cross_entropy")]
    assert found["outputs"] == {"elements": 48, "differing": 1, "largest_ulp": 0}
    kept = [str(tmp_path / "kept" / side / "inputs.safetensors") for side in ("left", "right")]
    assert Reprokit(tmp_path).run("diff", *kept).returncode == 0
    outputs = Reprokit(tmp_path).run("diff", *[path.replace("inputs", "outputs") for path in kept])
    assert outputs.returncode == 1
    again = [sys.executable, str(tmp_path / "kept" / "left" / "call.py")]
    executed = subprocess.run(again, capture_output=True, text=True, check=True).stdout
    assert executed.split()[-1] == hashlib.sha256(kept_output(tmp_path / "kept" / "left")).hexdigest()
    report = Reprokit(tmp_path).run("report", "left", "right", "--format", "markdown").stdout
    head, _, section = report.partition("\n## The first divergent operator\n\n")
    assert section.startswith("- first divergent operator: aten::nll\\_loss\\_backward, backward of ")
    assert head
    assert Reprokit(tmp_path).run("report", "right", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert "The first divergent operator</h2>" in page
    assert "<li>of left and right:</li>" in page
    assert Reprokit(tmp_path).run("check", "right").returncode == 0
    (tmp_path / "right" / "divergence.json").write_text("{}")
    assert "divergence.json" in Reprokit(tmp_path).run("report", "right").stderr


@pytest.mark.slow
def test_it_is_what_comes_next_after_verify(tmp_path: Path) -> None:
    record(tmp_path, "left", MUTANTS, "lstm")
    record(tmp_path, "swapped", MUTANTS, "lstm", "3", "40", "swap")  # a zero's sign is in no parameter
    verified = Reprokit(tmp_path).run("verify", "left", "swapped")
    assert verified.stderr.endswith("reprokit: next: reprokit locate left swapped\n")


def kept_output(directory: Path) -> bytes:
    """The bytes of the only output of a kept call."""
    content = (directory / "outputs.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    begin, end = json.loads(content[8 : 8 + size])["outputs.0"]["data_offsets"]
    return content[8 + size :][begin:end]


@pytest.mark.extended
def test_a_kept_call_is_executed_again_by_confirm(tmp_path: Path) -> None:
    record(tmp_path, "run", GATHER, "40")  # on a busy machine its threads do not race in each step
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "20", "--keep", "kept", "--json")
    assert done.returncode == 1, done.stderr
    name = json.loads(done.stdout)["processes"][0]["call"]["operator"]
    confirmed = Reprokit(tmp_path).run(
        "profile", "--confirm", "--no-system-calls", "--", sys.executable, "kept/left/call.py"
    )
    assert f"guilty  operator {name} forward on cpu, 1 call: gave" in confirmed.stdout


@pytest.mark.gpu
def test_a_race_on_a_gpu_is_named_by_operator_and_line(tmp_path: Path) -> None:
    script = TRAININGS / "pytorch_cuda_racing.py"
    record(tmp_path, "run", script)
    done = Reprokit(tmp_path).run("locate", "run")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("first divergent operator: aten::index_add_")
    assert f"{script.name}:{line_of(script, 'index_add_')}, call 6 of step 0" in done.stdout
    assert "cure: --patch torch-operator=aten::index_add_" in done.stdout


@pytest.mark.gpu
def test_what_a_graph_of_a_gpu_computes_is_said_to_be_unseen(tmp_path: Path) -> None:
    record(tmp_path, "run", TRAININGS / "pytorch_cuda_graphed.py")
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    unseen = "optimizer#0 is updated in a CUDA graph: the steps that replays of the graph take are in no trail"
    assert f"  note: the agent: {unseen}" in done.stdout
    assert unseen in Reprokit(tmp_path).run("verify", "run", "run").stdout
    options = ("--tensors", "weights", "--", sys.executable, str(TRAININGS / "pytorch_cuda_graphed.py"))
    saved = Reprokit(tmp_path).run("record", "-o", "saved", *options)
    assert "not saved, as a CUDA graph was being captured, whose replays are not seen: 0.weight" in saved.stderr
    assert "Error" not in saved.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("step", [-1, 9])
def test_batches_that_are_pinned_in_another_order_are_no_divergence(tmp_path: Path, step: int) -> None:
    script = TRAININGS / "pytorch_cuda_pinned.py"
    record(tmp_path, "left", script, "-1")
    record(tmp_path, "right", script, str(step))
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json")
    found = json.loads(done.stdout)
    assert found["notes"] == []
    places = [(one["call"]["operator"], one["call"]["step"]) for one in found["processes"]]
    assert places == ([] if step < 0 else [("aten::mul", 9)])


@pytest.mark.extended
def test_what_a_recurrent_layer_leaves_unfilled_is_no_divergence(tmp_path: Path) -> None:
    record(tmp_path, "run", TRAININGS / "pytorch_recurrent.py")
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "1")
    assert done.returncode == 0, done.stdout
    assert "each of which is its recording" in done.stdout


@pytest.mark.slow
def test_what_the_trail_does_not_see_is_named_where_nothing_parts(tmp_path: Path) -> None:
    beside, reprokit = TRAININGS / "pytorch_beside_trail.py", Reprokit(tmp_path)
    for kind in ("nothing", "console", "outputs"):
        record(tmp_path, kind, beside, kind)
    done = reprokit.run("locate", "nothing", "console", "--pairs", "1")
    assert done.returncode == 1, done.stderr
    assert "the runs do not part in 1 pair of replays" in done.stdout
    assert "note: the runs differ in what the trail does not see: console: stdout: nothing against" in done.stdout
    done = reprokit.run("locate", "outputs", "--pairs", "1", "--json")
    (other,) = json.loads(done.stdout)["beside_trail"]
    assert (done.returncode, other["fact"], other["name"]) == (1, "outputs", "result.json/value/score")
    (tmp_path / "reprokit.toml").write_text('ignore_console = ["score [0-9.]+"]\n')
    assert reprokit.run("locate", "nothing", "--pairs", "1").returncode == 0


@pytest.mark.extended
def test_runs_that_do_not_part_name_nothing(tmp_path: Path) -> None:
    record(tmp_path, "run", MUTANTS, "vae")
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "1")
    assert done.returncode == 0, done.stderr
    assert "the runs do not part in 1 pair of replays" in done.stdout
    assert "pair 1 of up to 1" in done.stderr
    report = Reprokit(tmp_path).run("report", "run", "--format", "text")
    assert "located the runs do not part in 1 pair of replays" in " ".join(report.stdout.split())


@pytest.mark.extended
def test_batches_that_workers_bring_in_another_order_are_no_divergence(tmp_path: Path) -> None:
    record(tmp_path, "run", TRAININGS / "pytorch_workers.py", "2", "fork")
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
def test_threads_that_get_the_ident_of_an_ended_one_are_no_divergence(tmp_path: Path) -> None:
    script = TRAININGS / "pytorch_thread_idents.py"
    record(tmp_path, "left", script, "apart")
    record(tmp_path, "right", script, "together")
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("changed outside of operators, before aten::addmm, model(rows).sum().backward()")
    assert "of step 4, process 0, thread m" in done.stdout


@pytest.mark.slow
def test_a_race_is_named_with_its_cure(tmp_path: Path) -> None:
    record(tmp_path, "run", GATHER, "40")
    done = Reprokit(tmp_path).run("locate", "run")
    assert done.returncode == 1, done.stdout + done.stderr
    line = line_of(GATHER, "p[index]")
    assert "first divergent operator: aten::index_put, backward of " in done.stdout
    assert f"pytorch_racing_gather.py:{line} (IndexBackward0)" in done.stdout
    assert "Known: pytorch.index-put-accumulate; cure: --patch torch-operator=aten::index_put" in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["eager", "function", "fit"])
def test_a_race_of_tensorflow_is_named_by_operator_and_line(tmp_path: Path, kind: str) -> None:
    record(tmp_path, "run", RACING, kind)
    done = Reprokit(tmp_path).run("locate", "run")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first divergent operator: DenseBincount, return tf.math.bincount" in done.stdout
    assert f"tensorflow_racing.py:{line_of(RACING, 'tf.math.bincount')}" in done.stdout
    assert "inputs equal (int32 [400000], int32 [], float32 [400000]); outputs differ: " in done.stdout
    assert "Known: tensorflow.bincount-float; cure: --patch tf-threads" in done.stdout
    assert ("run has no trail: nothing proves" in done.stdout) is (kind == "function")


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["eager", "function", "fit"])
def test_tensorflow_that_does_not_race_names_nothing(tmp_path: Path, kind: str) -> None:
    record(tmp_path, "run", RACING, kind, "steady")
    done = Reprokit(tmp_path).run("locate", "run", "--pairs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("each of which is its recording" in done.stdout) is (kind != "function")


@pytest.mark.extended
def test_a_compiled_graph_is_one_call_and_what_eager_replays_of_other_bits_find_is_a_note(tmp_path: Path) -> None:
    record(tmp_path, "run", SUMS)
    place = f"pytorch_compiled_sums.py:{line_of(SUMS, 'def add_rows')}"
    done = Reprokit(tmp_path).run("locate", "run")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"first divergent operator: torch.compile, def add_rows(rows, index, values):, {place}" in done.stdout
    unknown = "note: the operators within the compiled call are not known: executed eagerly, "
    unproved = "; but that is not the recorded run from step 0 on, by its "  # the race is in the first step
    assert unknown in done.stdout
    assert "the first to part is aten::index_add, out = out.index_add" not in done.stdout or unproved in done.stdout
    eager = Reprokit(tmp_path).run("locate", "run", "--eager", "--pairs", "1")
    assert "aten::index_add" in eager.stdout or eager.returncode == 0, eager.stdout + eager.stderr
    assert "note: nothing was compiled: the answer is about another computation than the recorded one" in eager.stdout


@pytest.mark.extended
def test_operators_of_a_compiled_graph_are_those_of_eager_replays_that_are_the_runs(tmp_path: Path) -> None:
    for name, factor in (("left", "1"), ("right", "3")):
        record(tmp_path, name, SCALED, factor, "compiled", "4")
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    first, compiled = found["processes"][0], found["compiled"]
    assert compiled["operator"] == "torch.compile"
    files = [place[0] for place in compiled["where"]]
    assert (str(SCALED) in files, any("torchinductor" in file for file in files)) == (True, False), files
    assert (first["kind"], first["call"]["operator"], first["call"]["step"]) == ("outside", "aten::mul", 0)
    assert first["call"]["where"][0][:2] == [str(SCALED), line_of(SCALED, "return (layer")]
    assert (found["proved"], found["notes"]) == (True, [])


@pytest.mark.extended
def test_graphs_that_were_compiled_to_other_code_and_bits_say_so_at_the_scripts_line(tmp_path: Path) -> None:
    for name, factor in (("left", "1"), ("right", "3")):
        record(tmp_path, name, SCALED, factor, "fused", "4")
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    first = found["processes"][0]
    assert (first["kind"], first["call"]["operator"], found["compiled"]) == ("result", "torch.compile", None)
    assert first["before"]["operator"] == "aten::addmm"  # within the graph, called by generated code
    files = [place[0] for place in first["before"]["where"]]
    assert (str(SCALED) in files, any("torchinductor" in file for file in files)) == (True, False), files
    assert any("to different code" in note for note in found["notes"])
    unknown = "the operators within the compiled call are not known: executed eagerly, the first to part is "
    (note,) = [note for note in found["notes"] if note.startswith(unknown)]
    assert "but that is not the recorded run from step 0 on, by its " in note


@pytest.mark.extended
def test_calls_on_other_shapes_are_named_on_both_sides(tmp_path: Path) -> None:
    for name, rows in (("left", "4"), ("right", "5")):
        record(tmp_path, name, SCALED, "1", "eager", rows)
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    called = "calls aten::index, rows = table[torch.randperm(8, generator=generator)[:count]], pytorch_scaled_rows.py:"
    left, right = (line for line in done.stdout.splitlines() if called in line)
    assert left.startswith("another path was taken: the first replay calls ")
    assert right.startswith("  the second one calls ")
    assert ("(float32 [8, 4], int64 [4])" in left, "(float32 [8, 4], int64 [5])" in right) == (True, True)


@pytest.mark.extended
def test_a_function_of_tensorflow_is_the_same_operator_by_operator() -> None:
    done = subprocess.run([sys.executable, str(TRAININGS / "tensorflow_followed.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lstm: equal", "branches: equal", "compiled: equal, one call"]


JAX_RUNS = [("0", "0.1", "same"), ("1", "0.1", "outside"), ("0", "0.2", "result")]


@pytest.mark.parametrize(
    ("noise", "rate", "kind"),
    [pytest.param(*one, marks=pytest.mark.extended) for one in JAX_RUNS],
)
def test_a_jitted_function_is_one_call(tmp_path: Path, noise: str, rate: str, kind: str) -> None:
    record(tmp_path, "left", STEPS, "0", "0.1")
    record(tmp_path, "right", STEPS, noise, rate)
    done = Reprokit(tmp_path).run("locate", "left", "right", "--pairs", "1", "--json")
    assert done.returncode == (kind != "same"), done.stdout + done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, shipped_schema("locate"))
    assert [note.partition("left ")[2] for note in found["notes"][:1]] == [
        "has no trail: nothing proves that its replays are that run"
    ]
    for first in found["processes"]:
        call = first["call"]
        assert (first["kind"], call["framework"], call["operator"]) == (kind, "jax", "jit(update)")
        assert call["where"][0][:2] == [str(STEPS), line_of(STEPS, "weights = update(")]
        assert call["inputs"] == ["float32 [8]", "float32 [16, 8]", "uint32 [2]"]
    assert (found["outputs"] or {}).get("elements") == (8 if kind == "result" else None)
    assert any("to different code" in note for note in found["notes"]) is (rate != "0.1")


@pytest.mark.slow
def test_a_run_whose_code_was_changed_is_refused_before_any_replay(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCALED.read_text())
    record(tmp_path, "run", script, "1", "eager", "4")
    script.write_text(SCALED.read_text().replace("lr=0.01", "lr=0.1"))
    done = Reprokit(tmp_path).run("locate", "run")
    assert done.returncode == 2, done.stderr
    assert "train.py: its contents differ" in done.stderr.partition("changed since the recording: ")[2]
    assert "pair 1" not in done.stderr, "it is known before anything is replayed"


def test_runs_that_cannot_be_asked_are_refused(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    assert reprokit.run("record", "-o", "plain", "--", sys.executable, "-c", "0").returncode == 0
    assert reprokit.run("run", "--on-nan", "skip", "-o", "bare", "--", sys.executable, "-c", "0").returncode == 0
    for name, slug in (("plain", "not-replayable"), ("bare", "not-replayable"), ("missing", "run-not-found")):
        refused: Done = reprokit.run("locate", name)
        assert refused.returncode == 2, refused.stderr
        assert f"reprokit: {slug}: " in refused.stderr
    assert reprokit.run("record", "-o", "numbers", "--", sys.executable, "-c", "import numpy").returncode == 0
    done = reprokit.run("locate", "numbers")
    assert (done.returncode, "numbers used numpy" in done.stderr, "pair 1" in done.stderr) == (2, True, False)
    kept = reprokit.run("locate", "plain", "--keep", str(tmp_path))
    assert (kept.returncode, "exists already" in kept.stderr) == (2, True)


def test_the_document_is_as_its_schema_says() -> None:
    title = TITLE
    assert shipped_schema("locate") == schema_of(LocatedDivergence, f"urn:reprokit:locate:{FORMAT}", title=title)


# Logs


def call(
    name: str, line: int = 1, inputs: int = 1, outputs: int = 1, step: int = 0, flags: int = 0, file: str = "x.py"
) -> OperatorCall:
    operator = CalledOperator(
        framework="pytorch",
        version="2.13",
        name=name,
        overload="",
        device="cpu",
        dtypes=("float32",),
        shapes=((2,),),
    )
    place = CallPlace("forward", "", ((file, line, "f"),))
    return OperatorCall(operator, place, flags, step, inputs, outputs, 0)


def parted(left: list[OperatorCall], right: list[OperatorCall]) -> ThreadDivergence | None:
    logs = [{"0": ProcessLog("0", "1-0", {"m": calls})} for calls in (left, right)]
    return next(iter(first_of_each(*logs)), None)


def test_what_follows_from_the_first_divergence_is_not_the_first() -> None:
    left = [call("a"), call("b"), call("c"), call("d", inputs=3)]
    right = [call("a"), call("b", outputs=2), call("c", inputs=2, outputs=2), call("d", inputs=3, outputs=5)]
    found = parted(left, right)
    assert found is not None
    assert (found.kind, found.call.operator.name, found.position) == (DivergenceKind.RESULT, "b", 1)
    assert (found.calls, found.varying) == (4, 2)


def test_a_divergent_call_whose_values_were_not_all_read_says_so() -> None:
    read, unread = call("b", outputs=2), call("b", outputs=2, flags=UNREAD)
    for right, expected in ((read, False), (unread, True)):
        divergence = parted([call("a"), call("b")], [call("a"), right])
        assert divergence is not None
        assert (divergence.kind, divergence.has_unread_values) == (DivergenceKind.RESULT, expected)


def test_inputs_that_no_call_changed_were_changed_outside() -> None:
    found = parted([call("a"), call("b")], [call("a"), call("b", inputs=2, outputs=2)])
    assert found is not None
    assert found.kind is DivergenceKind.OUTSIDE
    assert found.before is not None
    assert found.before.operator.name == "a"


def test_outputs_that_are_not_there_and_inputs_without_effect_are_no_divergence() -> None:
    left = [call("c10d::allreduce_", flags=NO_OUTPUTS), call("b")]
    right = [call("c10d::allreduce_", outputs=2, flags=NO_OUTPUTS), call("b", inputs=2)]
    assert parted(left, right) is None


def test_another_path_is_told_by_its_calls_and_place() -> None:
    same = [call("s", line=20 + n) for n in range(12)]
    found = parted([call("a"), *same], [call("a"), *[call("more", line=9)] * 3, *same])
    assert found is not None
    assert (found.kind, found.more, found.call.place.where[0][1]) == (DivergenceKind.PATH, 3, 9)
    back = parted([call("a"), *[call("more", line=9)] * 3, *same], [call("a"), *same])
    assert back is not None
    assert (back.more, back.call.place.where[0][1]) == (-3, 9)


def test_what_differs_before_the_trails_part_is_without_effect_later_too() -> None:
    """Calls of line 2 hold times in each step; the loss differs from step 2 on, by what line 3 makes."""
    left = [one for step in range(4) for one in (call("time", 2, 1, 1, step), call("loss", 3, 1, 1, step))]
    values = (1, 1, 2, 3)
    right = [
        one
        for step, value in enumerate(values)
        for one in (call("time", 2, 9, 9, step), call("loss", 3, value, value, step))
    ]
    logs = [{"0": ProcessLog("0", "1-0", {"m": calls})} for calls in (left, right)]
    (found,) = first_of_each(*logs, since={"0": 2})
    assert (found.call.operator.name, found.call.step) == ("loss", 2)
    (first,) = first_of_each(*logs)
    assert (first.call.operator.name, first.call.step) == ("time", 0)
    only_times = [{"0": ProcessLog("0", "1-0", {"m": calls[::2]})} for calls in (left, right)]
    assert [one.call.step for one in first_of_each(*only_times, since={"0": 2})] == [2]


def test_calls_of_two_versions_are_the_same_by_the_text_of_their_lines(tmp_path: Path) -> None:
    """The second version has a further line, and another line 2, of which one call is still the same."""
    for name, text in (("x.py", "a = b\nc = d.e()\ng = h\n"), ("y.py", "# new\na = b\nc = d.f()\ng = h\n")):
        (tmp_path / name).write_text(text)
    x, y = str(tmp_path / "x.py"), str(tmp_path / "y.py")
    left = [call("a", 1, file=x), call("d", 2, file=x), call("e", 2, file=x), call("g", 3, 2, 2, file=x)]
    right = [call("a", 2, file=y), call("d", 3, file=y), call("f", 3, file=y), call("g", 4, 3, 3, file=y)]
    found = parted(left, right)
    assert found is not None
    assert found.other is not None
    assert (found.kind, found.call.operator.name, found.other.operator.name) == (DivergenceKind.PATH, "e", "f")
    found = parted([left[0], left[3]], [right[0], right[3]])
    assert found is not None
    assert (found.kind, found.call.operator.name) == (DivergenceKind.OUTSIDE, "g")


def test_a_thread_that_takes_no_steps_may_be_ended_at_any_call() -> None:
    assert parted([call("a")], [call("a"), call("b")]) is None
    longer = parted([call("a", step=1)], [call("a", step=1), call("b", step=1)])
    assert longer is not None
    assert longer.more == 1


NAMES = (
    '{"kind":"process","format":1,"identity":"0"}\n',
    '{"kind":"operator","number":0,"framework":"pytorch","version":"2","name":"a","overload":"","device":"cpu",'
    '"dtypes":[],"shapes":[],"attributes":{}}\n',
    '{"kind":"place","number":0,"phase":"forward","node":"","where":[]}\n',
    '{"kind":"thread","number":0,"name":"m"}\n',
)
CALL = struct.pack("<IIHHIQQ", 0, 0, 0, 0, 0, 1, 2)


@pytest.fixture(scope="module")
def some_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    assert Reprokit(directory).run("record", "-o", "run", "--", "true").returncode == 0
    return directory / "run"


def written(run: Path, names: str, calls: bytes) -> RunDirectory:
    (run / ANSWERS).mkdir(exist_ok=True)
    (run / ANSWERS / "1-0.names").write_text(names)
    (run / ANSWERS / "1-0.calls").write_bytes(calls)
    return RunDirectory(run)


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(some_run: Path) -> None:
    logs = operator_logs.read(written(some_run, "".join(NAMES), CALL + CALL[:20]))
    assert [one.outputs for one in logs["0"].threads["m"]] == [2]


@pytest.mark.parametrize(
    ("names", "calls"),
    [
        ("", CALL),
        ("[]\n", CALL),
        ("".join(NAMES[:1]), CALL),
        ("".join(NAMES).replace('"format":1', '"format":2'), CALL),
        ("".join(NAMES).replace('"shapes":[]', '"shapes":[["x"]]'), CALL),
        ("".join(NAMES), struct.pack("<IIHHIQQ", 7, 0, 0, 0, 0, 1, 2)),
        ("".join(NAMES).replace('"number":0,"phase"', '"phase"'), CALL),
    ],
    ids=["empty", "no object", "no names", "format", "shape", "unknown name", "no number"],
)
def test_a_damaged_log_is_refused_in_one_line(some_run: Path, names: str, calls: bytes) -> None:
    with pytest.raises(RunDamaged, match="the log cannot be used"):
        operator_logs.read(written(some_run, names, calls))


@pytest.mark.extended
def test_a_call_before_the_step_in_which_the_runs_part_is_not_said_to_be_the_reason(tmp_path: Path) -> None:
    rk, training = Reprokit(tmp_path), TRAININGS / "pytorch_replayed_otherwise.py"
    with tempfile.NamedTemporaryFile(dir="/tmp") as count:
        for name, scale in (("one", "1"), ("two", "3")):
            done = rk.run("record", "-q", "-o", name, "--", sys.executable, str(training), count.name, scale)
            assert done.returncode == 0, done.stderr
        done = rk.run("locate", "one", "two", "--pairs", "1")
    assert done.returncode == 1, done.stderr
    assert "call 2 of step 1" in done.stdout
    assert "note: the runs themselves part in step 4, after this call: it need not be the reason\n" in done.stdout


@pytest.mark.extended
def test_a_changed_variable_of_the_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rk, training = Reprokit(tmp_path), TRAININGS / "pytorch_scaled_by_variable.py"
    monkeypatch.setenv("SCALE", "2")
    assert rk.run("record", "-q", "-o", "run", "--", sys.executable, str(training)).returncode == 0
    monkeypatch.delenv("SCALE")
    change = "changed since the recording: script variable SCALE: set when recorded, unset now"
    located = rk.run("locate", "run")
    assert located.returncode == 2
    assert change in located.stderr
    assert "pair 2" not in located.stderr
    asked = rk.run("ask", "run", "losses")
    assert "the replay is not that run from step 3 on" in asked.stdout
    assert change in asked.stdout
