"""Puts outputs in place by renaming, linking and exchanging."""

import ctypes
import os
import pathlib
import shutil
import subprocess

libc = ctypes.CDLL(None)


def put(path, text="same"):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


fresh = os.environ["FRESH"]
put("checkpoint.tmp/deep/model", fresh)
os.rename("checkpoint.tmp/deep", "checkpoint.tmp/deeper")
os.rename("checkpoint.tmp", "checkpoint")
put("checkpoint.tmp/again")
put("child.tmp/model", fresh)
subprocess.run(["mv", "child.tmp", "child"], check=True)
put("moved.tmp/model", fresh)
shutil.move("moved.tmp", "moved")
for one, other, exchange in (("a", "b", libc.renameat2), ("c", "d", lambda *all: libc.syscall(316, *all))):
    put(f"{one}/first", fresh)
    put(f"{other}/second")
    if os.uname().machine == "x86_64" or exchange is libc.renameat2:
        assert exchange(-100, one.encode(), -100, other.encode(), 2) == 0
put("linked.tmp", fresh)
os.link("linked.tmp", "linked")
os.unlink("linked.tmp")
unnamed = os.open(".", os.O_TMPFILE | os.O_WRONLY)
os.write(unnamed, fresh.encode())
assert libc.linkat(-100, f"/proc/self/fd/{unnamed}".encode(), -100, b"unnamed", 0x400) == 0
for step in 1, 2:
    put(f"step-{step}/model")
    os.symlink(f"step-{step}" if fresh == "0" else "step-1", "latest.tmp")
    os.replace("latest.tmp", "latest")
os.truncate("cut", 3)
put("removed")
os.unlink("removed")
