"""Tries the compiled part of the agent on classes that stand for PyTorch's."""

import array
import json
import struct
import sys
import zlib
from _thread import allocate_lock

sys.path.insert(0, sys.argv[1])
from reprokit.agent.core import native_module


class Tensor:
    is_cpu, dtype = True, "float32"

    def __init__(self, *numbers):
        self.numbers = array.array("f", numbers)
        self.nbytes = 4 * len(numbers)

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.numbers.buffer_info()[0]


module = native_module.load(sys.argv[2])


def test(*tensors):
    return module.finite(Tensor, {"float32": 3}, list(tensors))


def loss(number, free=32, guard=None):
    room = array.array("B", bytes(free))
    records = array.array("Q", [room.buffer_info()[0], 0, free, 9])
    is_written = module.loss_record(records.buffer_info()[0], guard or allocate_lock(), 1, 8, 4, number)
    return is_written and struct.unpack("<IIIiqd", room.tobytes()) == (zlib.crc32(room[4:]), 1, 9, -1 << 31, 4, number)


failures = []
taken = allocate_lock()
taken.acquire()


def fails(function, *wrong):
    try:
        function(*wrong)
    except Exception as error:
        failures.append(type(error).__name__)
    else:
        failures.append("")


for wrong in ((), (Tensor, 5, []), (Tensor, {}, ())):
    fails(module.finite, *wrong)
fails(module.use_exchange, Tensor)
Tensor.__dlpack_c_exchange_api__ = 5
fails(module.use_exchange, Tensor)
print(
    json.dumps(
        [
            test(),
            test(Tensor(1, 2), Tensor(3)),
            test(Tensor(1), Tensor(2, float("nan"))),
            test(Tensor(1), None),
            module.changes([]) == 0,
            loss(0.5),
            loss(5) or loss(0.5, 24) or loss(0.5, guard=taken),
            failures,
        ]
    )
)
