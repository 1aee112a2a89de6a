"""``python -m reprokit`` is the command ``reprokit``."""

from reprokit.cli.main import main

main()
