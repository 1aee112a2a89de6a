"""Operators that add on several threads, before and after a patch of some."""

import json
import sys
import threading

import torch

torch.manual_seed(0)
torch.set_num_threads(2)
many = torch.randint(0, 300, (20000,))
values = torch.randn(20000)
x = torch.randn(300, requires_grad=True)


def backward():
    x.grad = None
    (x[many] * values).sum().backward()
    return x.grad.clone()


def backward_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(backward()))
    thread.start()
    thread.join()
    return results[0]


def in_inference_mode():
    with torch.inference_mode():
        return torch.zeros(300).index_put((many,), values, accumulate=True)


CALLS = {
    "backward": backward,
    "backward in a thread": backward_in_a_thread,
    "functional": lambda: torch.zeros(300).index_put((many,), values, accumulate=True),
    "inference mode": in_inference_mode,
    "put_": lambda: torch.zeros(300).put_(many, values, accumulate=True),
    "put_, the last one wins": lambda: torch.zeros(300).put_(many, values),
    "index_copy": lambda: torch.zeros(300).index_copy(0, many, values),
    "histogram": lambda: torch.histogram(values, 20, weight=values.abs())[0],
}


def results(repeats):
    return {name: {call().numpy().tobytes() for _ in range(repeats)} for name, call in CALLS.items()}


patched = results(12)
counts = [torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()]
torch.set_num_threads(1)
alone = results(1)
torch.set_num_threads(2)
try:
    torch.zeros(3).index_put_((torch.tensor([5]),), torch.ones(1), accumulate=True)
except IndexError:
    counts.append(torch.get_num_threads())
undone = sys.modules["_reprokit_agent"].patches.running.undo("torch-operator")
has = torch._C._dispatch_has_kernel_for_dispatch_key("aten::put_", "BackendSelect")
print(json.dumps([[name for name in CALLS if patched[name] != alone[name]], counts, undone, has]))
