"""Reads environment variables in each of the ways that Python has."""

import os

os.environ["SUBSCRIPT"]
os.environ.get("GET")
os.environ.get("GET_UNSET", "default")
print("PRESENCE" in os.environ)
os.getenv("GETENV")
os.environb[b"BYTES"]
os.getenvb(b"GETENVB")
os.environ.pop("POP")
os.environ.setdefault("SETDEFAULT", "1")
try:
    os.environ["MISSING"]
except KeyError as error:
    print(error.args)
for _ in range(100):
    os.environ.get("GET")
