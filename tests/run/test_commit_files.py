"""What a run says of its source: the files that it used, against the blobs of the commit that it states."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.evidence.attest.source import source_line, source_of, stated_source
from reprokit.run import commit_files, git
from reprokit.run.sources import checkout_facts
from tests.support import Reprokit, wait_until

IDENTITY = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always")
TRAINING = 'import helper\nopen("out.txt", "w").write(helper.RATE + open("rate.txt").read())\n'
Facts = dict[str, Any]


def git_in(directory: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=directory, check=True, capture_output=True)


def committed(directory: Path, **files: str) -> None:
    """Make a checkout, with these files in its only commit."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)
    git_in(directory, "init", "-q")
    git_in(directory, "add", ".")
    git_in(directory, "commit", "-qm", "first")


@pytest.fixture
def checkout(reprokit: Reprokit) -> Reprokit:
    committed(reprokit.directory, train_py=TRAINING, helper_py='RATE = "1"\n', rate_txt="1")
    return reprokit


def recorded(reprokit: Reprokit, *command: str, **environment: str) -> Facts:
    """environment.json of a recording."""
    arguments = command or (sys.executable, "train.py")
    done = reprokit.record(*arguments, environment={"PYTHONPATH": "", **environment})
    assert done.returncode == 0, done.stderr
    facts: Facts = json.loads((reprokit.last / "environment.json").read_text())
    return facts


def source(facts: Facts) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The state, what has other bytes than in the commit, and what the commit lacks."""
    stated = source_of(facts)
    return stated.state, stated.changed_files, stated.outside_files


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://user:t0ken@host.example/a/b.git?x=1", "https://host.example/a/b.git"),
        ("https://t0ken@host.example/a", "https://host.example/a"),
        ("git@host.example:a/b.git", "git@host.example:a/b.git"),
        ("../another", "../another"),
        ("user:t0ken@host.example:a", ""),
        ("ext::sh -c 'curl -u user:t0ken host'", ""),
        ("other://t0ken/x", ""),
        (None, ""),
    ],
)
def test_where_a_checkout_comes_from_is_known_without_credentials(address: str, kept: str, tmp_path: Path) -> None:
    committed(tmp_path / "checkout", a_txt="x")
    if address is not None:
        git_in(tmp_path / "checkout", "remote", "add", "origin", address)
    _, facts = checkout_facts(tmp_path / "checkout")
    assert facts is not None
    assert facts.get("repository", "") == kept


def test_a_clean_checkout_has_each_used_file_of_the_commit(checkout: Reprokit) -> None:
    facts = recorded(checkout)
    assert source(facts) == ("clean", (), ())
    assert facts["git"]["used"]["same"] == 3  # the data too
    assert source_line(source_of(facts)).endswith("; 3 files were used as the commit has them")


def hidden_from_the_index(directory: Path) -> None:
    git_in(directory, "update-index", "--assume-unchanged", "helper.py")
    (directory / "helper.py").write_text('RATE = "2"\n')


def left_out_of_the_checkout(directory: Path) -> None:
    git_in(directory, "update-index", "--skip-worktree", "helper.py")
    (directory / "helper.py").write_text('RATE = "2"\n')


def replaced_object(directory: Path) -> None:
    """Another commit stands for HEAD wherever git is asked, as in `git replace`."""
    (directory / "helper.py").write_text('RATE = "2"\n')
    git_in(directory, "commit", "-qam", "second")
    git_in(directory, "replace", "HEAD~1", "HEAD")
    git_in(directory, "update-ref", "--no-deref", "HEAD", subprocess_output(directory, "rev-parse", "HEAD~1"))


def cleaned_by_a_filter(directory: Path) -> None:
    """git takes the text of the commit for that of the file."""
    (directory / ".git" / "info" / "attributes").write_text("helper.py filter=honest\n")
    git_in(directory, "config", "filter.honest.clean", "echo 'RATE = \"1\"'")
    (directory / "helper.py").write_text('RATE = "2"\n')


def subprocess_output(directory: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "hide", [hidden_from_the_index, left_out_of_the_checkout, replaced_object, cleaned_by_a_filter]
)
def test_an_edit_that_git_does_not_show_is_named(checkout: Reprokit, hide: Callable[[Path], None]) -> None:
    hide(checkout.directory)
    state, changed, outside = source(recorded(checkout))
    assert (state, changed, outside) == ("changed", ("helper.py",), ())


def test_data_and_scripts_that_are_hidden_edits_are_named(checkout: Reprokit) -> None:
    (checkout.directory / "run.sh").write_text(f'"{sys.executable}" train.py\n')
    git_in(checkout.directory, "add", ".")
    git_in(checkout.directory, "commit", "-qm", "second")
    git_in(checkout.directory, "update-index", "--assume-unchanged", "run.sh", "rate.txt")
    (checkout.directory / "run.sh").write_text(f'"{sys.executable}" train.py; true\n')
    (checkout.directory / "rate.txt").write_text("3")
    assert source(recorded(checkout, "sh", "run.sh")) == ("changed", ("rate.txt", "run.sh"), ())


def test_code_that_the_commit_lacks_is_named(checkout: Reprokit) -> None:
    elsewhere = checkout.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.py").write_text("")
    (checkout.directory / "ignored.py").write_text("")
    (checkout.directory / "data.bin").write_text("5")  # data is listed by itself
    (checkout.directory / ".git" / "info" / "exclude").write_text("ignored.py\ndata.bin\n")
    (checkout.directory / "train.py").write_text('import ignored, other, made\nopen("data.bin")\n' + TRAINING)
    (checkout.directory / "made.py").write_text("")
    git_in(checkout.directory, "add", "train.py")
    git_in(checkout.directory, "commit", "-qm", "second")
    facts = recorded(checkout, PYTHONPATH=str(elsewhere))
    assert source(facts) == ("changed", (), ("elsewhere/other.py", "ignored.py", "made.py"))
    rows = {stated.name: stated.value for stated in stated_source(facts)}
    named = "elsewhere/other.py, ignored.py, made.py"
    assert rows["git files that were used"].startswith(f"3 files of code were used that the commit lacks: {named}; 3 ")


def test_code_that_a_run_edits_or_removes_is_not_said_to_be_of_the_commit(checkout: Reprokit) -> None:
    hidden_from_the_index(checkout.directory)
    (checkout.directory / "train.py").write_text(TRAINING + "open('helper.py', 'w').write('RATE = \"1\"\\n')\n")
    git_in(checkout.directory, "commit", "-qm", "second", "train.py")
    facts = recorded(checkout)
    assert (source(facts), facts["git"]["used"]["not_compared"]) == (("unknown", (), ()), 1)
    (checkout.directory / "train.py").write_text(TRAINING + "import gone, os\nos.remove('gone.py')\n")
    (checkout.directory / "gone.py").touch()
    (checkout.directory / ".git" / "info" / "exclude").write_text("gone.py\n")
    git_in(checkout.directory, "commit", "-qm", "third", "train.py")
    facts = recorded(checkout)
    assert (source(facts)[0], facts["git"]["used"]["not_compared"]) == ("unknown", 1)


def test_a_script_that_is_edited_while_it_runs_is_changed(checkout: Reprokit) -> None:
    text = (checkout.directory / "train.py").read_text()
    git_in(checkout.directory, "update-index", "--assume-unchanged", "train.py")
    wait = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    (checkout.directory / "train.py").write_text(wait + text)
    process = checkout.start("record", "--", sys.executable, "train.py", env={**os.environ, "PYTHONPATH": ""})
    wait_until((checkout.directory / "begun").exists, "the training")
    listed = checkout.last / "environment.json"
    wait_until(lambda: listed.exists() and "train.py" in listed.read_text(), "the digest of the script")
    (checkout.directory / "train.py").write_text(text)
    (checkout.directory / "go").touch()
    assert process.wait() == 0
    facts = json.loads((checkout.last / "environment.json").read_text())
    assert source(facts)[:2] == ("changed", ("train.py",))


def test_what_the_run_wrote_and_what_is_reprokits_is_not_its_source(checkout: Reprokit) -> None:
    (checkout.directory / "train.py").write_text('open("made.py", "w").close()\nimport made, reprokit\n' + TRAINING)
    git_in(checkout.directory, "commit", "-qam", "second")
    facts = recorded(checkout)
    assert source(facts) == ("clean", (), ())
    assert set(facts["code"]) == {"train.py", "helper.py", "made.py"}


def test_submodules_worktrees_and_links_are_of_the_commit(reprokit: Reprokit, tmp_path: Path) -> None:
    committed(tmp_path / "library", helper_py='RATE = "1"\n')
    main = tmp_path / "main"
    committed(main, train_py=f'import sys\nsys.path.insert(0, "library")\n{TRAINING}', rate_txt="1")
    git_in(main, "submodule", "add", "-q", "../library", "library")
    (main / "link.py").symlink_to("train.py")
    git_in(main, "add", ".")
    git_in(main, "commit", "-qm", "second")
    git_in(main, "worktree", "add", "-q", str(tmp_path / "tree"))
    tree = Reprokit(tmp_path / "tree")
    git_in(tree.directory, "submodule", "update", "-q", "--init")
    facts = recorded(tree, sys.executable, "link.py")
    assert (source(facts), facts["git"]["used"]["same"]) == (("clean", (), ()), 4)
    git_in(tree.directory, "config", "submodule.library.ignore", "all")
    (tree.directory / "library" / "helper.py").write_text('RATE = "2"\n')
    assert source(recorded(tree, sys.executable, "link.py"))[1:] == (("library/helper.py",), ())


def test_ends_of_lines_and_pointers_of_large_files_are_as_git_checks_them_out(checkout: Reprokit) -> None:
    (checkout.directory / "helper.py").write_bytes(b'RATE = "1"\r\n')
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1\n"
    sha256 = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    (checkout.directory / "rate.txt").write_text(pointer.format(sha256))
    git_in(checkout.directory, "commit", "-qm", "second", "rate.txt")
    (checkout.directory / "rate.txt").write_text("1")
    used = recorded(checkout)["git"]["used"]
    assert (used["changed"], used["same"]) == ({}, 3)


def fake_git(directory: Path, text: str) -> str:
    """A program called git, and the PATH that leads to it."""
    directory.mkdir()
    (directory / "git").write_text(f"#!/bin/sh\n{text}\n")
    (directory / "git").chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("program", "said"), [("sleep 1000 & wait", "git did not answer in time"), ("exit 128", "git failed")]
)
def test_a_git_that_gives_no_answer_is_said(checkout: Reprokit, tmp_path: Path, program: str, said: str) -> None:
    facts = recorded(checkout, PATH=fake_git(tmp_path / "bin", program))
    assert (source_of(facts).state, source_of(facts).commit) == ("unknown", "")
    assert said in next(stated_source(facts)).value


def test_a_checkout_that_git_cannot_list_in_time_is_unknown(checkout: Reprokit, tmp_path: Path) -> None:
    """As of a huge one: what git says of changes is kept."""
    real = shutil.which("git")
    path = fake_git(tmp_path / "bin", f'case "$*" in *--others*) sleep 60;; esac\nexec {real} "$@"')
    facts = recorded(checkout, PATH=path)
    assert (facts["git"]["changes"], facts["git"]["dirty"]) == ("", None)
    assert (source_of(facts).state, facts["git"]["used"]["same"]) == ("unknown", 3)


def test_a_checkout_whose_files_git_cannot_look_up_in_time_is_unknown(
    checkout: Reprokit, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = recorded(checkout)
    of = git.checkout_of(checkout.directory, checkout.directory)
    from reprokit.model.environment import EnvironmentFile

    listed = EnvironmentFile(code=facts["code"], files=facts["files"])
    monkeypatch.setattr(commit_files, "PATIENCE", 0.0)
    facts["git"]["used"] = json.loads(
        json.dumps({"not_compared": commit_files.compared(of, listed, checkout.directory, set()).not_compared})
    )
    assert source_of(facts).state == "unknown"
    assert "2 files were used and not compared with the commit" in source_line(source_of(facts))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a checkout to another user")
def test_a_checkout_of_another_user_is_said(checkout: Reprokit) -> None:
    for path in (checkout.directory, *checkout.directory.rglob("*")):
        os.chown(path, 12345, 12345)
    facts = recorded(checkout)
    assert facts["git"] == {"problem": "other-owner"}
    assert "another user owns" in next(stated_source(facts)).value


def test_no_checkout_and_no_git_are_said(reprokit: Reprokit, tmp_path: Path) -> None:
    (reprokit.directory / "train.py").write_text("open('out.txt', 'w').write('1')")
    assert recorded(reprokit)["git"] is None
    (reprokit.directory / ".git").mkdir()
    assert recorded(reprokit, PATH=str(tmp_path))["git"] == {"problem": "absent"}


@pytest.mark.parametrize("used", [None, 1, {"same": -1}, {"changed": {"a": 1}}, {"same": 1 << 80}, {"other": 1}])
def test_hostile_facts_are_not_clean(used: object) -> None:
    facts = {"git": {"commit": "0" * 40, "dirty": False, "untracked": {}, "used": used}}
    assert source_of(facts).state == ("clean" if used == {"same": 1 << 80} else "unknown")
    assert source_line(source_of(facts))
