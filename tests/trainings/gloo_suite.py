"""PyTorch's own tests of collectives, which its wheel brings, over gloo with two ranks: for pytest."""

import os
import tempfile

os.environ.update(BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=tempfile.gettempdir(), INIT_METHOD="")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestGloo(TestDistBackend, DistributedTest._DistTestBase):
    """As PyTorch's test_distributed_spawn.py has it."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


del TestDistBackend
