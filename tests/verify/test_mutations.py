"""Whatever single thing changes in one of two identical runs, verify never calls them identical."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.core.errors import ReprokitError
from reprokit.verify.runs import compare

from .runs import Building, digest, replayed, training

pytestmark = pytest.mark.slow

# Facts that are not compared by design: times, process ids, and what merely explains a difference.
EXPLAINING = {"agent": {"pid", "executable", "argv", "python", "implementation"}, "seed": {"where"}}
LEFT_OUT = {"t"}

Draw = Callable[[st.SearchStrategy[Any]], Any]
Path_ = tuple[Any, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The paths of all leaves of a JSON value."""
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        yield path
        for index in range(len(value)):
            yield from places(value[index], (*path, index))
    else:
        yield path


def compared_places(building: Building) -> list[tuple[int, Path_]]:
    found = []
    for index, line in enumerate(building.lines):
        left_out = LEFT_OUT | EXPLAINING.get(line["k"], set())
        if line["k"] != "framework":
            found += [(index, path) for path in places(line) if path[0] not in left_out]
    return found


def changed(value: Any, other: Any) -> Any:
    """Another value, of the same type where there are others."""
    if isinstance(value, str):
        if value.startswith("sha256:"):
            return digest(f"{value}{other}")
        return value + str(other)
    if isinstance(value, bool) or value is None:
        return other
    if isinstance(value, int | float):
        return value + 1 + abs(other)
    return value[:-1] if value else [other]


def mutate_value(building: Building, draw: Draw) -> None:
    index, path = draw(st.sampled_from(compared_places(building)))
    target: Any = building.lines[index]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = changed(target[path[-1]], draw(st.integers(0, 9)))


def delete_line(building: Building, draw: Draw) -> None:
    """Any but a framework's, which merely explains, and the good-bye of a helper, which may be cut off."""
    kept = [("framework", "0"), ("end", "0/1")]
    indices = [index for index, line in enumerate(building.lines) if (line["k"], line["p"]) not in kept]
    del building.lines[draw(st.sampled_from(indices))]


def repeat_line(building: Building, draw: Draw) -> None:
    lines = [line for line in building.lines if line["k"] not in ("framework", "agent", "end")]
    building.lines.append(copy.deepcopy(draw(st.sampled_from(lines))))


def swap_values(building: Building, draw: Draw) -> None:
    losses = [line for line in building.lines if line["k"] == "loss"]
    one, other = draw(st.permutations(losses))[:2]
    one["value"], other["value"] = other["value"], one["value"]


def cut_lines(building: Building, draw: Draw) -> None:
    del building.lines[draw(st.integers(0, len(building.lines) - 1)) :]


def change_output(building: Building, draw: Draw) -> None:
    index = draw(st.integers(0, 1))
    other = str(draw(st.integers()))
    changes = [{"path": other}, {"digest": digest(other), "content": digest(other)}, {"digest": ""}]
    change = draw(st.sampled_from(changes))
    building.outputs[index] = msgspec.structs.replace(building.outputs[index], **change)


def delete_output(building: Building, draw: Draw) -> None:
    del building.outputs[draw(st.integers(0, 1))]


def change_trail(building: Building, draw: Draw) -> None:
    (table,) = building.tables["0"]
    step = draw(st.integers(0, len(table.steps) - 1))
    choice = draw(st.integers(0, 4))
    if choice == 0:
        table.steps[step][draw(st.sampled_from(sorted(table.steps[step])))] ^= 1 << draw(st.integers(0, 63))
    elif choice == 1:
        del table.steps[step][draw(st.sampled_from(sorted(table.steps[step])))]
    elif choice == 2:
        table.tensors[0] = ("fc.weights", "float32", [10, 64])
    elif choice == 3:
        table.kept[step][draw(st.integers(0, 1))][0] ^= 1 << draw(st.integers(0, 63))
    else:
        del table.steps[-1], table.kept[len(table.steps)]


def change_run(building: Building, draw: Draw) -> None:
    run = building.run
    choice = draw(st.integers(0, 4))
    if choice == 0:
        run.exit_code = draw(st.integers(1, 255))
    elif choice == 1:
        run.exit_code, run.signal = None, "SIGKILL"
    elif choice == 2:
        run.command[draw(st.integers(1, 3))] += "x"
    elif choice == 3:
        run.status = draw(st.sampled_from(["running", "failed-to-start"]))
    else:
        assert run.replay_of is not None
        run.replay_of = msgspec.structs.replace(run.replay_of, profile_digest=digest("other"))


MUTATIONS = (
    mutate_value,
    mutate_value,
    mutate_value,
    delete_line,
    repeat_line,
    swap_values,
    cut_lines,
    change_output,
    delete_output,
    change_trail,
    change_run,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_single_mutation_is_called_identical(data: st.DataObject) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        left = training(directory / "left")
        right = replayed(left, directory / "right")
        mutation = data.draw(st.sampled_from(MUTATIONS))
        mutation(right, data.draw)
        left_path, right_path = left.write(), right.write()
        swapped = data.draw(st.booleans())
        paths = (right_path, left_path) if swapped else (left_path, right_path)
        try:
            assert not compare(*paths).identical
        except ReprokitError:
            pass  # refusing is not calling it identical
    finally:
        shutil.rmtree(directory)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300), st.integers(0, 10_000), st.booleans())
def test_no_bytes_in_metrics_lead_to_a_traceback(junk: bytes, position: int, replace: bool) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        left = training(directory / "left")
        right = replayed(left, directory / "right")
        left_path, right_path = left.write(sealed=False), right.write(sealed=False)
        path = right_path / "metrics.jsonl"
        data = path.read_bytes()
        position %= len(data)
        path.write_bytes(data[:position] + junk + data[position + (len(junk) if replace else 0) :])
        with suppress(ReprokitError):
            compare(left_path, right_path)
    finally:
        shutil.rmtree(directory)
