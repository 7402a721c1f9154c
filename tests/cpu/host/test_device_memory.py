"""The library's own device memory: where it is allowed, and when it is freed."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba.cuda import types
from numba.cuda.typing.typeof import typeof

from numba_tma.host import device_memory as module
from numba_tma.host import driver as _driver
from numba_tma.host.array_interface import reading_of
from numba_tma.host.device_memory import copied_to_device, device_memory
from tests.recording_driver import OWN_STREAM, RELAXED, RecordingDriver

MIB = 1 << 20


@pytest.fixture
def gpu():
    """A driver that refuses what would end the captures of other threads."""
    module._unused.clear()
    with RecordingDriver().installed() as driver:
        yield driver
        assert driver.mode != RELAXED
    module._unused.clear()


def test_an_array_is_what_libraries_take(gpu):
    one = device_memory((3, 5), np.float16)
    assert gpu.memory == {one.address: 30} and one.nbytes == 30
    view, owner, _ = reading_of(one, "x")
    assert view[:3] == (one.address, (3, 5), None) and view[3] == np.float16 and owner is one
    assert typeof(one) == types.Array(types.float16, 2, "C")
    assert device_memory((0, 4), "f4").shape == (0, 4)


def test_views_of_the_elements_keep_the_memory(gpu):
    first, *others = device_memory((4,), np.uint32).split()
    assert [one.address - first.address for one in others] == [4, 8, 12]
    assert {(one.shape, one.nbytes) for one in others} == {((1,), 4)}
    del first, others[:2]
    assert not module._unused
    del others
    assert len(module._unused) == 1


def test_unused_memory_is_freed_by_a_later_allocation_and_much_at_once(gpu):
    kept = device_memory((1,), "u1")
    for _ in range(module._MOST_BLOCKS):
        device_memory((1,), "u1")
    assert not gpu.freed
    last = device_memory((1,), "u1")
    assert len(gpu.freed) == module._MOST_BLOCKS
    assert gpu.memory.keys() == {kept.address, last.address}


@pytest.mark.parametrize("nbytes, freed", [(127 * MIB, 0), (128 * MIB, 2)])
def test_unused_memory_is_freed_by_its_bytes(gpu, nbytes, freed):
    for _ in range(2):
        device_memory((nbytes,), "u1")
    kept = device_memory((1,), "u1")
    assert len(gpu.freed) == freed and kept.address in gpu.memory


def test_unused_memory_is_freed_before_memory_runs_out(gpu):
    gpu.memory_left = 10 * MIB
    device_memory((6 * MIB,), "u1")
    kept = device_memory((6 * MIB,), "u1")
    assert len(gpu.freed) == 1
    with pytest.raises(MemoryError, match="has no 5242880 B left.*empty_cache"):
        device_memory((5 * MIB,), "u1")
    assert kept.address in gpu.memory and gpu.mode != RELAXED


def test_memory_of_another_context_is_freed_there(gpu):
    for context in (1, 2):
        gpu.context = context
        for _ in range(module._MOST_BLOCKS):
            device_memory((1,), "u1")
    first = {place.address for place in module._unused if place.context == 1}
    assert not gpu.freed and len(first) == module._MOST_BLOCKS
    gpu.context = 3
    device_memory((1,), "u1")
    assert not gpu.freed
    gpu.context = 1
    device_memory((1,), "u1")
    assert {*gpu.freed} == first
    gpu.context = 2
    device_memory((1,), "u1")
    assert len(gpu.freed) == 2 * module._MOST_BLOCKS and len(gpu.memory) == 3


def test_nothing_is_freed_where_the_last_user_dies(gpu, monkeypatch):
    """Another thread, or a garbage collection, may have any context and any captures."""
    cycle = [device_memory((1,), "u1") for _ in range(3 * module._MOST_BLOCKS)]
    cycle.append(cycle)
    monkeypatch.setattr(module, "free", lambda address: pytest.fail("freed"))

    def drop():
        nonlocal cycle
        cycle = None
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert len(module._unused) == 3 * module._MOST_BLOCKS


def test_other_errors_are_raised(gpu, monkeypatch):
    monkeypatch.setattr(
        gpu, "cuMemAlloc", lambda nbytes: (_driver._driver().CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, 0)
    )
    with gpu.installed(), pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        device_memory((1,), "u1")


EXIT = """
from tests.recording_driver import RecordingDriver
from numba_tma.host.device_memory import device_memory
import sys
with RecordingDriver().installed():
    kept = device_memory((4,), "u4")
    kept_too = device_memory((4,), "u4").split()
    sys.modules["numba_tma.kept"] = device_memory((4,), "u4")
print("end", "numba" in sys.modules)
"""


def test_a_process_that_ends_with_memory_prints_nothing():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end False\n", "")


def test_a_copy_is_there_for_a_stream_or_for_all(gpu):
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    one = copied_to_device(values, 17)
    assert (one.shape, one.dtype) == ((2, 3), np.int32) and gpu.waits == []
    other = copied_to_device(values)
    assert gpu.waits == [OWN_STREAM]
    assert gpu.copied == [
        (one.address, values.tobytes(), 17), (other.address, values.tobytes(), OWN_STREAM)
    ]  # fmt: skip


def test_a_graph_captures_no_copy(gpu):
    """It would read the host's memory when it is replayed."""
    gpu.capturing = 17
    with pytest.raises(RuntimeError, match="stream 17 is captured.*make it before"):
        copied_to_device(np.zeros(3), 17)
    assert not gpu.memory
    copied_to_device(np.zeros(3), 0)
    copied_to_device(np.zeros(3))
