"""A training beside TLS handshakes with a server of its own."""

import json
import os
import random
import socket
import ssl
import threading

server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("localhost.pem")
client = ssl.create_default_context(cafile="localhost.pem")
if hasattr(client, "keylog_filename"):
    client.keylog_filename = "keys"


def serve(listener):
    with listener, server.wrap_socket(listener.accept()[0], server_side=True) as connection:
        connection.sendall(connection.recv(100)[::-1])


def handshake():
    listener = socket.create_server(("127.0.0.1", 0)) if hasattr(socket, "create_server") else socket.socket()
    if not hasattr(socket, "create_server"):
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
    thread = threading.Thread(target=serve, args=(listener,))
    thread.start()
    plain = socket.create_connection(listener.getsockname())
    with client.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(b"gradients")
        answer = connection.recv(100).decode()
        said = {"version": connection.version(), "binding": connection.get_channel_binding("tls-unique").hex()}
    thread.join()
    return answer, said


before = os.urandom(16).hex()
answer, newest = handshake()
client.options |= ssl.OP_NO_TLSv1_3
_, older = handshake()
keys = []
if os.path.exists("keys"):
    with open("keys") as file:
        keys = [line.split() for line in file]
    os.unlink("keys")
print(
    json.dumps(
        {
            "training": [before, random.random(), os.urandom(16).hex()],
            "answer": answer,
            "versions": [newest["version"], older["version"]],
            "bindings": [newest["binding"], older["binding"]],
            "client_randoms": sorted({words[1] for words in keys if not words[0].startswith("#")}),
            "secrets": sorted({words[2] for words in keys if not words[0].startswith("#")}),
            "bytes": ssl.RAND_bytes(24).hex(),
        }
    )
)
