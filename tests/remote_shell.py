"""Stands in for ssh in tests, as `remote_shell.py SOCKET HOST WORD ...`: `host_server` runs what it asks for.

What it runs is no child of the script: no preload, filter or variable reaches it, as on another host.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def host_server(directory: Path) -> Iterator[str]:
    """Run commands for hosts, each with a home of its own below the directory; yield the words that reach them."""
    with socket.socket(socket.AF_UNIX) as server:
        address = str(directory / "hosts.socket")
        server.bind(address)
        server.listen()
        threading.Thread(target=_serve, args=(server, directory), daemon=True).start()
        yield f"{sys.executable} -S {__file__} {address}"
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket, directory: Path) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_execute, args=(connection, directory), daemon=True).start()


def _execute(connection: socket.socket, directory: Path) -> None:
    """One command, over the descriptors that came with it."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    host, _, command = data.decode().partition("\0")
    home = directory / host
    home.mkdir(exist_ok=True)
    names = ("PATH", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMP_NUM_THREADS")
    variables = {"HOME": str(home), "TMPDIR": str(home), **{name: os.environ[name] for name in names}}
    namespace = ["unshare", "--user", "--map-root-user", "--uts"]  # Open MPI tells hosts apart by their names
    child = subprocess.Popen(
        [*namespace, "sh", "-c", f"hostname {host}; {command}"],
        cwd=home,
        env=variables,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
    )
    for stream in streams:
        os.close(stream)
    connection.sendall(bytes([child.wait() & 255]))
    connection.close()


def main(address: str, host: str, *words: str) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        socket.send_fds(client, [f"{host}\0{' '.join(words)}".encode()], [0, 1, 2])
        return client.recv(1)[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
