"""A training that is killed right behind its keyframe of step 10: by then it has written a line, and renamed its log.

A program outlives it.
"""

import logging.handlers
import os
import signal
import subprocess
import time
from pathlib import Path

import torch

LAST, KEYFRAME = 14, 10

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
handler = logging.handlers.RotatingFileHandler("rotated.log", backupCount=4)
log = logging.getLogger("training")
log.addHandler(handler)
for step in range(1, LAST + 1):
    loss = net(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("lines.csv", "a") as lines:
        print(step, loss.item(), os.urandom(2).hex(), file=lines)
    if step in (4, KEYFRAME, 13):
        handler.doRollover()
    log.warning("%d %s", step, loss.item())
    if step in (3, 7):
        if os.path.exists("kept.pt"):
            os.rename("kept.pt", "before.pt")
        torch.save(net.state_dict(), "kept.pt")
    if step == 8:
        time.sleep(0.05)  # the clock that stamps files goes on
    if step == KEYFRAME and os.path.exists("dies"):
        while not any('"keyframe":10,' in path.read_text() for path in Path("first/keyframes").glob("*.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen(["sleep", "3"])  # it outlives the training, as helpers of spawned ranks may
