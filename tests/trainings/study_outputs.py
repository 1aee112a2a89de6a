"""Writes outputs, and seeds in children."""

import os
import random
import subprocess
import sys
from pathlib import Path

import reprokit

reprokit.log(step=0, value=1.5)
Path("new").write_text("new")
Path("old").write_text("changed")
Path("sub").mkdir(exist_ok=True)
Path("sub/odd\n name").write_text("x")
Path("kept/run").write_text("beside")
Path("environment/lib").write_text("installed")
pid = os.fork()
if not pid:
    random.seed(5)
    os._exit(0)
os.waitpid(pid, 0)
subprocess.run([sys.executable, "-c", "import random; random.seed(6)"], check=True)
