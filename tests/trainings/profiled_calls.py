"""Calls functions of the standard library often, in two threads."""

import json
import threading
import time


def work():
    for number in range(50):
        json.dumps({"a": number})


def main():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for _ in range(10):
        time.time()
    work()


main()
