"""Writes a file, and has another run recorded in the same directory before it ends."""

import os
import subprocess
import sys

with open("result", "w") as file:
    file.write("0.5")
variables = {name: value for name, value in os.environ.items() if not name.startswith("REPROKIT_")}
subprocess.run([sys.argv[1], "record", "-o", f"other-{os.getpid()}", "--", "true"], env=variables, check=True)
