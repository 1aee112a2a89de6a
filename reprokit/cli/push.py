"""``reprokit push``: a run written to an object store."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import say_next
from reprokit.core.printable import printable
from reprokit.run_files import rundir


@click.command(epilog="Example: reprokit push last s3://bucket/runs/first")
@click.argument("run", type=options.RUN)
@click.argument("url")
@flag("--with-entropy", "Also push the random profile and its key, which can be secret.")
@flag("--with-snapshots", "Also push snapshots, which hold training data.")
@flag("--keep-paths", "Keep paths, user names and the host name as they are.")
@flag("--follow", "Write saved tensors too, from now on, and all else when the run has ended.")
@options.ADVISING
def command(run: Path, url: str, with_entropy: bool, with_snapshots: bool, keep_paths: bool, follow: bool) -> None:
    """Write the run directory RUN below URL, such as s3://bucket/prefix.

    What is written is what 'reprokit bundle' packs, file by file, the list of contents last. Nothing is
    overwritten. After an interruption the same command writes what is missing.
    """
    from reprokit.evidence.bundle.object_store import follow as follow_run
    from reprokit.evidence.bundle.object_store import push
    from reprokit.evidence.bundle.pack import BundleRequest

    if follow:
        follow_run(run, url)

    request = BundleRequest(entropy=with_entropy, snapshots=with_snapshots, paths=keep_paths)
    listed, there = push(run, url, request)
    size = sum(file.size for file in listed.files.values())
    click.echo(f"{printable(url)}: {len(listed.files)} files of {size} bytes, {there} of them were there")
    for line in listed.left_out:
        click.echo(f"not in it: {line}")
    if not follow and (run / rundir.TENSORS).is_dir():
        click.echo("not in it: saved tensors, which reprokit.trial(URL) reads: --follow adds them")
    say_next("reprokit", "pull", url)
