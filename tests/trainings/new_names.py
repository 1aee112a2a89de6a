"""Writes files of names that no other run writes, and changes those that it finds below and beside mine."""

import os
import sys
import time

here, pid = os.fsencode(os.getcwd()), b"%d" % os.getpid()


def write(name, text="written", mode="w"):
    with open(name, mode) as file:
        file.write(text)


if "later" in sys.argv:
    time.sleep(1)
if "train" in sys.argv:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
write("same.txt")
write(b"-log-" + pid)
write(b"line\nbreak \xff " + pid)
write(here + b"/part")
os.rename(b"part", b"placed-" + pid)
os.makedirs(b"runs/" + pid)
write(b"runs/" + pid + b"/events")
os.makedirs(b"runs/part")
write(b"runs/part/state")
os.rename(b"runs/part", b"runs/step-" + pid)
os.symlink(b"placed-" + pid, b"latest-" + pid)
if os.path.exists("mine"):
    write("mine/log", mode="a")
    write("mine.log", mode="a")
    write("mine/other", "new")
    os.rename("mine.csv", b"mine-" + pid)
    os.rename("my", b"my-" + pid)
    write("part", "replaced")
    os.rename("part", "mine.txt")
    os.link("mine.log", b"linked-" + pid)
