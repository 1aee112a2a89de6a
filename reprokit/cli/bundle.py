"""``reprokit bundle``: a run packed for somebody else."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import say_next
from reprokit.core.printable import printable


@click.command(epilog="Example: reprokit bundle last -o run.tar.zst")
@click.argument("run", type=options.RUN)
@options.output("FILE", "File to write [default: RUN's id and .tar.zst in this directory].")
@flag("--with-entropy", "Also pack the random profile and its key, which can be secret.")
@flag("--with-snapshots", "Also pack snapshots, which hold training data.")
@flag("--keep-paths", "Keep paths, user names and the host name as they are.")
@options.ADVISING
def command(run: Path, output: Path | None, with_entropy: bool, with_snapshots: bool, keep_paths: bool) -> None:
    """Pack the run directory RUN into one file for somebody else.

    Left out are the random profile, without which the run can be compared but not replayed, snapshots,
    variables that are not on the list of those that can change results, and values of options that look like
    secrets. Working directory, home directories, user and host name are replaced. The same run gives the same
    bytes. 'reprokit unpack' makes a run directory of it.
    """
    from reprokit.evidence.bundle.pack import BundleRequest, pack
    from reprokit.run_files.rundir import RunDirectory

    output = output or Path(f"{RunDirectory(run).run.run_id}.tar.zst")
    listed = pack(run, output, BundleRequest(entropy=with_entropy, snapshots=with_snapshots, paths=keep_paths))
    size = sum(file.size for file in listed.files.values())
    click.echo(f"{printable(str(output))}: {len(listed.files)} files of {size} bytes")
    for line in listed.left_out:
        click.echo(f"not in it: {line}")
    say_next("reprokit", "unpack", str(output), "-o", "unpacked")
