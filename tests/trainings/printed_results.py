"""Prints results, times and progress in the way that its first argument names, and writes no file."""

import faulthandler
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time

LOSS = random.random()


def loss(name="loss"):
    print(f"{name}: {LOSS:.17f}", flush=True)


def only_loss():
    loss()


def times():
    print(f"took {time.perf_counter():.6f} s", flush=True)
    print(time.strftime("%Y-%m-%d %H:%M:%S"), f"{random.SystemRandom().random() + time.time() % 1:.3f}s")


def loss_and_times():
    loss()
    print(f"epoch 1 loss {LOSS:.6f} {time.time() % 1000:8.3f} s, {time.time() % 77:.1f} it/s at {time.ctime()}")
    print(f"process {os.getpid()} wrote below /tmp/tmp{os.urandom(4).hex()}/out, {time.time():.6f}")


def bar():
    for step in range(1, 11):
        rate = f"{time.time() % 50:5.2f}it/s"
        sys.stderr.write(
            f"\r{10 * step:3d}%|{'#' * step:10}| {step}/10 [00:0{step % 3}<00:00, {rate}, loss={LOSS:.3f}]"
        )
        sys.stderr.flush()
    sys.stderr.write("\n")
    for step in range(1, 2 + int(time.time() * 1e6) % 5):
        sys.stderr.write(f"\r{10 * step:3d}%|{'#' * step:10}| {step}/10 [00:00<00:09, 1.0it/s]")


def child(number):
    print(f"worker {number} drew {random.SystemRandom().random()}", flush=True)


def processes():
    context = multiprocessing.get_context("fork")
    for number in range(2):
        process = context.Process(target=child, args=(number,))
        process.start()
        process.join()
    subprocess.run(["sh", "-c", f"echo shell says {LOSS}"], check=True)
    subprocess.run(["sh", "-c", "echo unseen"], check=True, stdout=subprocess.DEVNULL)
    seen = subprocess.run(["sh", "-c", f"echo piped {time.time():.3f}"], check=True, capture_output=True)
    loss(f"{len(seen.stdout)} bytes, loss")


def threads():
    def run(number):
        time.sleep(time.time_ns() % 1000 / 1e5)
        os.write(1, f"thread {number} begins\n".encode())
        time.sleep(time.time_ns() // 7 % 1000 / 1e5)
        os.write(1, f"thread {number}: {LOSS}\n".encode())

    running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def logged():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s: %(message)s")
    logging.info("loss %.17f", LOSS)
    os.writev(1, [b"written ", b"in parts\n"])


def crash():
    faulthandler.enable()
    loss()
    os.abort()


def closed():
    os.close(1)
    os.write(2, f"stdout is closed, loss {LOSS}\n".encode())


def terminal():
    print(f"terminal: {sys.stdout.isatty()}, {sys.stdout.line_buffering}, loss {LOSS}")


def redirected():
    own = os.dup(1)
    place = os.open(os.devnull, os.O_WRONLY)
    os.dup2(place, 1)
    print(f"nobody sees {time.time()}", flush=True)
    os.dup2(own, 1)
    loss()


def much():
    for number in range(400_000):
        print(f"line {number:09d} of much text, loss {LOSS:.12f}")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
