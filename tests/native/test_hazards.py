"""What a program may do that a careless preload breaks: under the shim it ends as it ends without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit import entropy
from tests.native.harness import Shim, run

HAZARDS = [
    "small_stack",
    "signal_stack",
    "popen_closed_by_fclose",
    "many_popens",
    "cancelled_system",
    "fork_in_handler",
    "full_descriptors",
    "jumps_out_of_requests",
    "two_call_sites",
    "requests_if_asked",
    "cancelled_open",
    "real_time_thread",
]


@pytest.fixture
def program(build: Callable[..., str]) -> str:
    return build("hazards.c")


@pytest.mark.parametrize("hazard", HAZARDS)
def test_hazard(hazard: str, shim: Shim, program: str, tmp_path: Path) -> None:
    bare = run([program, hazard], cwd=tmp_path)
    assert (bare.returncode, bare.stderr) == (0, b"")
    for done in (shim.record([program, hazard], cwd=tmp_path), shim.replay([program, hazard], cwd=tmp_path)):
        assert (done.returncode, done.stdout, done.stderr) == (0, bare.stdout, b"")
    entropy.check(shim.entropy("recorded"))


def test_after_jumps_out_of_requests_all_is_recorded(shim: Shim, program: str) -> None:
    shim.record([program, "jumps_out_of_requests"])
    assert sum(1 for _, event in shim.events() if event.asked == 77) == 1000


def test_two_call_sites_do_not_name_themselves_again_and_again(shim: Shim, program: str) -> None:
    shim.record([program, "two_call_sites"])
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    # 40,000 events of 16 bytes, each with its head as the site alternates: no site record among them.
    assert entropy.EntropyFile(path).head.used < 40_000 * (16 + 25) * 1.05


def test_a_replay_of_nothing_does_not_eat_the_address_space(shim: Shim, program: str) -> None:
    shim.record([program, "requests_if_asked"])
    done = shim.replay([program, "requests_if_asked"], extra={"REQUESTS": "40000"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert shim.fidelity().derived == 40_000


def test_requests_without_a_free_descriptor_are_counted_and_later_ones_recorded(shim: Shim, program: str) -> None:
    shim.record([program, "full_descriptors"])
    assert any("no descriptor free" in why for why in entropy.gave_up(shim.entropy("recorded")))
    assert shim.events()
