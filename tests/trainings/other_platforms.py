"""Runs the command line on what Python code takes for another platform."""

import ctypes  # noqa: F401
import os
import platform
import signal
import sys

import reprokit.cli.main

kind, *arguments = sys.argv[1:]
if kind == "windows":
    sys.platform = "win32"
    for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCHLD", "pthread_sigmask", "sigwaitinfo"):
        delattr(signal, name)
    del os.confstr, os.uname, os.fork
elif kind == "macos":
    sys.platform = "darwin"
    del signal.sigtimedwait, os.sched_getaffinity
elif kind == "musl":

    def confstr(name):
        raise ValueError("unrecognized configuration name")

    os.confstr = confstr
elif kind == "riscv":
    platform.machine = lambda: "riscv64"
reprokit.cli.main.main(arguments)
