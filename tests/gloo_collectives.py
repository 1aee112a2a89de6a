"""torch's own tests of collectives with gloo's backend, each in two processes; collected by tests.compatibility."""

import multiprocessing
import os

os.environ.update(BACKEND="gloo", WORLD_SIZE="2")  # read at the import that follows

from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
    initialize_temp_directories,
)

if "TEMP_DIR" not in os.environ:  # of the first process; the others inherit it
    initialize_temp_directories()


class TestGloo(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """As torch's test/distributed/test_distributed_fork.py, which no wheel has; to spawn takes ten times as long."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)
