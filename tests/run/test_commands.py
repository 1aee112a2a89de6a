"""What all commands share: help with an example, groups, near names, the next step, completion and manual pages."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from reprokit.cli.main import COMMANDS, reprokit
from tests.support import COMMAND, Reprokit

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
DIFFERING = {"--steps", "--keep", "--tensors"}


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
     ("snapshot minimze", "did you mean minimize?"), ("xyzzy", "there is no command 'xyzzy'.")],
)  # fmt: skip
def test_a_misspelled_command(reprokit: Reprokit, words: str, meant: str) -> None:
    done = reprokit.run(*words.split())
    assert done.returncode == 2
    assert meant in done.stderr
    assert done.stderr.count("\n") == 1


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
        found = re.search(r"\(docs/errors\.md#([a-z-]+)\)$", reprokit.run(*arguments).stderr.rstrip())
        assert found is not None
        assert found[1] in sections


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
