"""Moves in a directory's listing by telldir, seekdir and rewinddir."""

import ctypes
import sys

libc = ctypes.CDLL(None)
for name in ("opendir", "readdir"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
stream = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))


def name():
    entry = libc.readdir(stream)
    return entry and ctypes.string_at(entry + 19).decode()


beginning = libc.telldir(stream)
first, second = name(), name()
here = libc.telldir(stream)
third = name()
libc.seekdir(stream, ctypes.c_long(here))
assert name() == third
libc.seekdir(stream, ctypes.c_long(beginning))
assert (name(), name()) == (first, second)
libc.rewinddir(stream)
assert name() == first
assert libc.closedir(stream) == 0
names = set()
for _ in range(2000):
    stream = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))
    names.add(name())
    libc.closedir(stream)
assert names == {first}
