"""``python -m reprokit`` is the command ``reprokit``."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # nothing refuses a checkout that is on the path
    sys.exit("reprokit: Python {}.{} is too old: reprokit needs 3.10 or newer".format(*sys.version_info))

from reprokit.cli.main import main

main()
