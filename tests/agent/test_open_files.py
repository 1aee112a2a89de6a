"""Which files a training has open: not those of the run, which other threads open and close at any time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pathlib import Path
from reprokit.agent.state.earlier_files import OpenFiles
place = Path(sys.argv[1])
files = OpenFiles(sys.argv[2])
with open(place / "log", "w") as log, open(place / "run" / "shard", "w") as shard:
    log.write("1234")
    assert list(files.flushed()) == [str(place / "log")], files.flushed()
    assert files.sizes(len) == {str(place / "log"): [4, 4]}
    flushed = files.flushed()
    log.close()
    files.flushed = lambda: flushed
    assert files.sizes(len) == {}  # as if another thread had closed it just now
"""


def test_files_of_the_run_are_not_the_trainings(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for run in (tmp_path / "run", f"{'/' * 40}{tmp_path}/run", tmp_path / "link"):
        subprocess.run([sys.executable, "-c", CODE, tmp_path, run], check=True)
