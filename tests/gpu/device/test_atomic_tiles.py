"""Atomic operations on elements of tiles, on a GPU."""

import pytest

from tests.gpu.worker import on_gpu
from tests.kernels.atomic_tiles import CASES, check_exchange, check_lock, check_operation


@pytest.mark.parametrize(("name", "dtype"), CASES)
@on_gpu
def test_every_operation(name, dtype):
    check_operation(name, dtype)


@on_gpu
def test_exchanges_and_locks():
    check_exchange()
    check_lock()
