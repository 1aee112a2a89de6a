"""``reprokit keygen``: a pair of keys to sign statements with."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options


@click.command(epilog="Example: reprokit keygen signing.key")
@click.argument("key", type=options.PATH)
def command(key: Path) -> None:
    """Make a pair of Ed25519 keys: KEY, which nobody else may read, and KEY.pub, for who verifies.

    Neither is overwritten. The private key is not encrypted: keep it where only the signer can read it.
    """
    from reprokit.evidence.attest import keys

    public = keys.make(key)
    click.echo(f"private key, to sign with: {key}")
    click.echo(f"public key, to be given to others: {public}")
