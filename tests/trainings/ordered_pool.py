"""Gathers what a pool is done with first, before and after the patch that orders it is taken back."""

import json
import time
from multiprocessing.pool import ThreadPool

import _reprokit_agent


def wait(place):
    while len(done) < 2 - place:  # the first task is the last to be done
        time.sleep(0.001)
    done.append(place)
    return place


def results():
    done.clear()
    with ThreadPool(3) as pool:
        return list(pool.imap_unordered(wait, range(3)))


done = []
found = [results()]
_reprokit_agent.patches.running.undo("imap-ordered")
found.append(results())
with open("found.json", "w") as file:
    json.dump(found, file)
