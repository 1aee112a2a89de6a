"""What all commands share: help with an example, groups, near names, the next step, completion and manual pages."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from reprokit.cli.main import COMMANDS, reprokit
from tests.support import COMMAND, Reprokit, python, wait_until

ROOT = Path(__file__).parent.parent.parent
BRITISH = re.compile(r"\w*((minim|normal|random|summar|recogn|serial|optim)is|behavi[o]ur|col[o]ur|catalogue)\w*")


def contexts(command: click.Command = reprokit, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The contexts of a command and of all in it."""
    context = click.Context(command, parent=parent, info_name=command.name, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from contexts(child, context)


ALL = {context.command_path: context for context in contexts()}
LEAVES = {path: context for path, context in ALL.items() if not isinstance(context.command, click.Group)}


@pytest.mark.parametrize("path", ALL)
def test_help_is_short_american_and_whole(path: str) -> None:
    done = Reprokit(Path("/")).run(*path.split()[1:], "--help", environment={"COLUMNS": "80"})
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert not re.search(r"[a-z]\.\.\.$", done.stdout, re.MULTILINE), "a text that did not fit was cut"
    assert not BRITISH.search(done.stdout)


@pytest.mark.parametrize("path", LEAVES)
def test_each_example_is_a_line_that_the_command_takes(path: str) -> None:
    context = LEAVES[path]
    prefix, _, example = (context.command.epilog or "").partition(": ")
    words = shlex.split(example)
    assert prefix == "Example"
    assert example.startswith(path)
    assert len(example) <= 78
    own = words[len(path.split()) : words.index("--") if "--" in words else None]
    known = {name for parameter in context.command.get_params(context) for name in parameter.opts}
    assert {word for word in own if word.startswith("-")} <= known


# Options whose argument differs: steps are a number in profile and a range in ask, --keep a number of runs in gc and a
# directory in locate, --tensors what is saved in record and what is listed in show.
DIFFERING = {"--at", "--steps", "--keep", "--tensors"}


def test_an_option_means_the_same_in_every_command() -> None:
    kinds = defaultdict(set)
    for context in LEAVES.values():
        for parameter in context.command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for name in parameter.opts:
                    kinds[name].add("flag" if parameter.is_flag else parameter.type.name)
    assert {name for name, found in kinds.items() if len(found) > 1} == DIFFERING
    short = {name: found for name, found in kinds.items() if re.fullmatch("-.", name)}
    assert set(short) == {"-o", "-q"}


@pytest.mark.parametrize("path", sorted(ALL.keys() - LEAVES.keys()))
def test_groups_alone_show_their_help(path: str) -> None:
    alone = Reprokit(Path("/")).run(*path.split()[1:])
    asked = Reprokit(Path("/")).run(*path.split()[1:], "--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")


def test_the_first_help_has_all_commands_in_groups() -> None:
    done = subprocess.run([COMMAND], capture_output=True, text=True)
    titles = re.findall(r"^(\w+):$", done.stdout, re.MULTILINE)
    assert titles == ["Options", "Run", "Compare", "Explain", "Share", "Maintain"]
    assert re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "meant"),
    [("recrod", "did you mean record"), ("study shwo", "did you mean show?"), ("study missing.toml", "bad-study"),
     ("snapshot minimze", "did you mean minimize?"), ("show lsat", "did you mean last?"),
     ("xyzzy", "there is no command 'xyzzy'."), ("attest run1", "there is no command 'run1'; commands here: verify."),
     ("ls nowhere", "'reprokit ls DIRECTORY' lists others")],
)  # fmt: skip
def test_a_misspelled_command(reprokit: Reprokit, words: str, meant: str) -> None:
    done = reprokit.run(*words.split())
    assert done.returncode == 2
    assert meant in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_british_spelling_is_taken(reprokit: Reprokit) -> None:
    british = "minimize".replace("z", "s")
    done = reprokit.run("snapshot", british, "--help")
    assert (done.returncode, done.stderr) == (0, f"reprokit: {british} is spelled minimize here\n")
    assert "Usage: reprokit snapshot minimize" in done.stdout


def test_the_usage_says_whether_a_command_is_needed(reprokit: Reprokit) -> None:
    for name, words in (
        ("record", "[OPTIONS] -- COMMAND [ARG]..."),
        ("replay", "[OPTIONS] [RUN] [-- COMMAND [ARG]...]"),
        ("gate", "[OPTIONS] [-- COMMAND [ARG]...]"),
    ):
        usage = " ".join(reprokit.run(name, "--help").stdout.split())
        assert usage.startswith(f"Usage: reprokit {name} {words} ")


def test_what_is_not_named_is_the_last_run(reprokit: Reprokit) -> None:
    assert "holds none" in reprokit.run("replay").stderr
    assert reprokit.run("record", "--", "sh", "-c", "echo 1").returncode == 0
    assert reprokit.run("replay").stdout == "1\n"
    assert reprokit.run("show").stdout.startswith("replay ")
    assert reprokit.run("replay", "--", "echo", "2").stdout == "2\n"


def test_an_option_is_blamed_by_its_name(reprokit: Reprokit) -> None:
    reprokit.run("record", "--", "true")
    for words, blamed in (("--steps abc", "--steps: 'abc' are no steps"), ("--mode x", "--mode: there is no mode 'x'")):
        assert blamed in reprokit.run("ask", "last", "weights", *words.split()).stderr
    assert (
        "--tensors: there is no mode 'x'" in reprokit.run("record", "--tensors", "weights mode=x", "--", "true").stderr
    )


def test_a_mistake_is_one_of_its_command(reprokit: Reprokit) -> None:
    for words, said in (
        ("gate --pairs zero", "Invalid value for '--pairs': 'zero' is not a valid whole number."),
        ("report -o", "Option '-o' requires an argument. See 'reprokit report --help'."),
        ("doctor more", "Got unexpected extra argument (more). See 'reprokit doctor --help'."),
        ("--debug-more", "No such option '--debug-more'. Did you mean '--debug'? See 'reprokit --help'."),
        ("profile --seconds soon -- true", "'soon' is not a number of seconds above 0, such as 90 or 0.5."),
        ("profile --seconds inf -- true", "'inf' is not a number of seconds above 0, such as 90 or 0.5."),
    ):
        assert said in reprokit.run(*words.split()).stderr
    reprokit.run("record", "--", "true")
    assert "the name . does not say what to write: end it in .md," in reprokit.run("report", "-o", ".").stderr


def test_after_an_interruption_a_look_comes_next(reprokit: Reprokit) -> None:
    """Whatever the training then does: a replay would not end where it did."""
    for code in ("time.sleep(60)", "\ntry: time.sleep(60)\nexcept KeyboardInterrupt: pass"):
        process = reprokit.start("record", "--", *python(f"import time; open('begun', 'w').close(); {code}"))
        wait_until((reprokit.directory / "begun").exists, "the training")
        process.send_signal(signal.SIGINT)
        printed = process.communicate()[1]
        (reprokit.directory / "begun").unlink()
        assert "reprokit: next: reprokit show last\n" in printed


def test_commands_say_what_comes_next(reprokit: Reprokit) -> None:
    def said(*arguments: str) -> list[str]:
        lines = reprokit.run(*arguments).stderr.splitlines()
        return [line.removeprefix("reprokit: next: ") for line in lines if "next: " in line]

    command = ["--", "sh", "-c", "echo 1 > out"]
    assert said("record", *command) == ["reprokit replay last"]
    assert said("record", "-o", "run", *command) == ["reprokit replay run"]
    assert said("record", "--", "false") == []
    assert said("record", "--quiet", *command) == []
    assert said("replay", "last") == ["reprokit verify last"]
    assert said("verify")[0].startswith("reprokit report .reprokit/")
    assert said("verify", "--json") == said("verify", "-q") == []
    assert said("record", *command[:-1], "echo 2 > out") == ["reprokit replay last"]
    assert said("verify", "run", "last") == ["reprokit replay run"]
    assert said("bundle", "last", "-o", "b.tar.zst") == ["reprokit unpack b.tar.zst -o unpacked"]
    assert said("unpack", "b.tar.zst", "-o", "unpacked") == ["reprokit show unpacked"]


def test_errors_name_their_page(reprokit: Reprokit) -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    for arguments in (["show", "missing"], ["record"], ["verify", "--nothing"]):
        found = re.search(r"\(reprokit help ([a-z-]+)\)$", reprokit.run(*arguments).stderr.rstrip())
        assert found is not None
        assert found[1] in sections


def test_help_explains_errors_and_commands(reprokit: Reprokit) -> None:
    explained = reprokit.run("help", "shim")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout.startswith("shim\n\n")
    assert "](" not in reprokit.run("help", "bad-config").stdout
    assert "reprokit knowledge --help" in reprokit.run("help", "knowledge").stdout
    assert reprokit.run("help", "record").stdout == reprokit.run("record", "--help").stdout
    assert reprokit.run("help").stdout == reprokit.run().stdout
    assert "did you mean shim" in reprokit.run("help", "shimm").stderr
    assert completed(reprokit, "reprokit help not-rep") == ["plain,not-replayable"]


# Shells


def completed(reprokit: Reprokit, line: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    environment = {"_REPROKIT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = reprokit.run(environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_completion_offers_commands_options_and_runs(reprokit: Reprokit) -> None:
    assert completed(reprokit, "reprokit veri") == ["plain,verify"]
    assert completed(reprokit, "reprokit show la") == ["dir,la", "plain,last"]
    for name in ("baseline", "again"):
        assert reprokit.run("record", "--name", name, "--", "true").returncode == 0
    for command in ("show", "replay", "verify last", "rm", "export dvc"):
        assert completed(reprokit, f"reprokit {command} ba") == ["dir,ba", "plain,baseline"]
    assert completed(reprokit, "reprokit record --na") == ["plain,--name"]
    assert completed(reprokit, "reprokit record train.py x") == []


def test_fish_completes_by_the_file_that_is_installed(reprokit: Reprokit) -> None:
    if (fish := shutil.which("fish")) is None:
        pytest.skip("fish is not installed")
    line = f"source {ROOT / 'completions' / 'reprokit.fish'}; complete --do-complete 'reprokit veri'"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [fish, "--no-config", "-c", line]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=reprokit.directory, env={**os.environ, "PATH": path}
    )
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "verify", "")


def test_completion_offers_patches_frameworks_tensors_and_steps(reprokit: Reprokit) -> None:
    assert completed(reprokit, "reprokit record --patch au") == ["plain,auto"]
    assert completed(reprokit, "reprokit record --patch auto,no") == ["plain,auto,none"]
    assert completed(reprokit, "reprokit knowledge --framework pyto") == ["plain,pytorch"]
    assert completed(reprokit, "reprokit record --tensors weights,grad") == ["plain,weights,gradients"]
    assert completed(reprokit, "reprokit ask last loss") == ["plain,losses"]
    assert completed(reprokit, "reprokit ask last losses --steps ev") == ["plain,every=10"]


@pytest.mark.slow
def test_completion_offers_the_steps_that_a_run_has(reprokit: Reprokit) -> None:
    script = ROOT / "tests" / "trainings" / "pytorch_masked_gradient.py"
    assert reprokit.run("record", "--", sys.executable, str(script), "-1").returncode == 0
    steps = completed(reprokit, "reprokit ask last losses --steps 0")
    assert len(steps) == 1
    assert re.fullmatch(r"plain,0-[1-9]\d*", steps[0])


def test_what_is_installed_for_bash_completes() -> None:
    script = f"PATH={Path(COMMAND).parent}:$PATH; . {ROOT}/completions/reprokit; complete -p reprokit"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_reprokit_completion reprokit" in done.stdout


def test_each_command_has_a_manual_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["man.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / "man.py"), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {f"{path.replace(' ', '-')}.1" for path in ALL}
    for path, context in LEAVES.items():
        page = (tmp_path / f"{path.replace(' ', '-')}.1").read_text()
        for parameter in context.command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert f".B {parameter.opts[0]}".replace("-", "\\-") in page
        assert ".SH EXAMPLE" in page
