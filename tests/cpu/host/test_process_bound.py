"""Pickles, copies, threads and forks of what a host program holds, without a GPU."""

import copy
import ctypes
import os
import pickle
import signal
import threading

import pytest
from numba import cuda, float32, types

import numba_tma as tma
from numba_tma.host import driver
from numba_tma.host import encoding as _encoding
from numba_tma.host.process_bound import new_in_children
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.matmul import Config
from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.tools.testing import compile_ptx, run_isolated

TILE = tma.Tile((8, 32), "f32")
MATRIX = tma.Tile((64, 64), "bf16", tma.Swizzle.B128)
ROLES = tma.Roles(load=tma.Warps(1), math0=tma.Warpgroups(1), math1=tma.Warpgroups(1))
MATH = (ROLES.math0, ROLES.math1)
VALUES = {
    "Tile": TILE,
    "DType": TILE.dtype,
    "Swizzle": tma.Swizzle.B128,
    "MatrixLayout": tma.MatrixLayout(MATRIX),
    "PixelBox": tma.PixelBox((0,), (1,), (1,)),
    "Threads": tma.Threads(3),
    "Warps": tma.Warps(2),
    "Warpgroups": tma.Warpgroups(1, registers=40),
    "Roles": ROLES,
    "Role": ROLES.load,
    "NamedBarrier": tma.NamedBarrier(8, 64),
    "TilePipeline": tma.TilePipeline(2, x=TILE),
    "TilePipeline with roles": tma.TilePipeline(2, producer=ROLES.load, consumer=MATH, x=TILE),
    "CircularBuffer": tma.CircularBuffer(3, x=TILE),
    "StorePipeline": tma.StorePipeline(2, x=TILE),
    "KVPipeline": tma.KVPipeline(2, 64, 64, "bf16", producer=ROLES.load, consumer=MATH),
    "OutputTilePipeline": tma.OutputTilePipeline(
        2, tma.Tile((128, 32), "f32"), mma=ROLES.load, epilogue=ROLES.math0
    ),
    "OrderedSequenceBarrier": tma.OrderedSequenceBarrier(2, MATH),
    "LaunchControl": tma.LaunchControl(ROLES),
    "StandardTilePayload": tma.StandardTilePayload(TILE, TILE),
    "BlockScaledTilePayload": tma.BlockScaledTilePayload(TILE, TILE, TILE, TILE),
    "GridStridedScheduler": tma.GridStridedScheduler("F"),
    "GroupedScheduler": tma.GroupedScheduler(4),
    "HilbertScheduler": tma.HilbertScheduler(),
    "CausalLPTScheduler": tma.CausalLPTScheduler(64, 128),
    "PersistentGrid": tma.PersistentGrid(),
    "TensorMemory": tma.TensorMemory(128),
    "Config": Config(64, 64),
    "AttentionPlan": AttentionPlan(1, 64),
    "RowPlan": RowPlan(128),
    "CopyPlan": CopyPlan(),
}


@pytest.mark.parametrize("name", VALUES)
def test_pickles_and_copies_of_what_a_kernel_is_written_with_are_equal(name):
    value = VALUES[name]
    for other in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert type(other) is type(value) and other == value and hash(other) == hash(value)


PIPE = tma.TilePipeline(2, x=TILE)


def test_a_pipeline_is_pickled_after_a_kernel_was_compiled_with_it():
    @cuda.jit
    def kernel(x, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n, 1):
                x.load(stage.x, (tile * 8, 0), stage.barrier)
        elif pipe.is_consumer():
            for _ in pipe.consume(0, n, 1):
                pass

    compile_ptx(kernel, (tma.TensorMapType(2, TILE), types.int64))
    assert pickle.loads(pickle.dumps(PIPE)) == copy.deepcopy(PIPE) == PIPE


@pytest.fixture
def maps(monkeypatch):
    """Make maps of each kind, with descriptors of zeros."""

    def encode(*_):
        return driver._descriptor(ctypes.addressof(ctypes.create_string_buffer(128)))

    monkeypatch.setattr(driver, "_encode", encode)
    _encoding.encode.cache_clear()

    class OnDevice:
        __cuda_array_interface__ = {
            **{"shape": (64, 64), "strides": None, "typestr": "<f4", "version": 3},
            **{"data": (0x7F00_0000_0000, False)},
        }

    source = OnDevice()
    yield [
        tma.tensor_map(source, TILE),
        tma.gather_map(source, TILE),
        tma.ragged_tensor_map(source, TILE),
    ]
    _encoding.encode.cache_clear()


def test_maps_hold_addresses_and_are_not_pickled(maps):
    for one in maps:
        with pytest.raises(TypeError, match=r"holds addresses of this process.*make a map of"):
            pickle.dumps(one)
        with pytest.raises(TypeError, match=r"a deep copy would point to the same memory.*make a"):
            copy.deepcopy({"maps": [one]})
        assert copy.copy(one) is one


@pytest.mark.parametrize("count", [16])
def test_16_threads_compile_kernels_of_one_pipeline(count):
    texts, errors = [], []

    def work():
        try:

            @cuda.jit
            def kernel(x, y, n):
                pipe = PIPE.start()
                if pipe.is_producer():
                    for tile, stage in pipe.produce(0, n, 1):
                        x.load(stage.x, (tile * 8, 0), stage.barrier)
                elif pipe.is_consumer():
                    for tile, stage in pipe.consume(0, n, 1):
                        y[tile] = stage.x[0, 0]

            arguments = (tma.TensorMapType(2, TILE), float32[::1], types.int64)
            texts.append(compile_ptx(kernel, arguments).count("mbarrier.try_wait"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(texts) == count and len(set(texts)) == 1 and texts[0]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_child(function, seconds=60):
    """Return whether the function returns True in a forked child."""
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        ok = False
        try:
            ok = bool(function())
        finally:
            os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def compiles_in_a_child():
    @cuda.jit
    def kernel(x):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        x.load(tile, (0, 0), barrier)

    def copies():
        return "cp.async.bulk.tensor" in compile_ptx(kernel, (tma.TensorMapType(2, TILE),))

    return copies() and in_child(copies)


@needs_fork
def test_a_forked_child_compiles_what_its_parent_compiled():
    """In a process without other threads: libNVVM's locks are its own."""
    assert run_isolated(compiles_in_a_child, timeout=100)


@needs_fork
def test_a_lock_that_a_thread_held_at_the_fork_is_free_in_the_child():
    lock, held, done = new_in_children(threading.Lock), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        assert in_child(lambda: lock.acquire(timeout=5))
        assert not lock.acquire(blocking=False)
    finally:
        done.set()
        holder.join()


@needs_fork
def test_a_context_does_not_survive_a_fork_and_the_error_says_so(monkeypatch):
    class Driver:
        error = 0

        def cuCtxGetDevice(self):
            return self.error, 0

    fake = Driver()
    monkeypatch.setattr(driver, "_driver", driver.functools.cache(lambda: fake))
    assert driver.current_device() == 0

    def child():
        fake.error = 3  # CUDA_ERROR_NOT_INITIALIZED
        try:
            driver.current_device()
        except RuntimeError as error:
            return "does not survive a fork" in str(error) and "spawn" in str(error)

    assert in_child(child)
    fake.error = 201  # a thread without a context, of a process that was not forked
    assert driver.current_device() == -1
