"""Launchers on a GPU: every kind of argument and stream, graphs, dependent launches, host costs."""

import enum
import functools
import importlib.util
import threading
import time

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from tests.gpu.worker import IMPORT_SECONDS, on_gpu

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch here")
needs_cupy = pytest.mark.skipif(not importlib.util.find_spec("cupy"), reason="no CuPy here")

TILE = tma.Tile((16, 64), "f32")


class Colour(enum.IntEnum):
    RED = 7


def call(function, *args):
    """Call a function of the driver; return what it gives besides its status."""
    status, *values = function(*args)
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if values else None


# --------------------------------------------------------------------- kinds of arguments


@cuda.jit
def note_all(
    out, i1, u2, i4, big, flag, f4, f8, c8, c16, both, colour, when, plain, slanted, record
):
    out[0] = i1
    out[1] = u2
    out[2] = i4
    out[3] = float(big)
    out[4] = flag
    out[5] = f4
    out[6] = f8
    out[7] = c8.real
    out[8] = c8.imag
    out[9] = c16.real
    out[10] = c16.imag
    out[11] = both[0]
    out[12] = both[1]
    out[13] = colour == Colour.RED
    out[14] = plain.shape[0] * 1000 + plain.shape[1]
    out[15] = plain[2, 3]
    out[16] = slanted.shape[1] * 1000 + slanted.strides[0]
    out[17] = slanted[1, 2]
    out[18] = record[0].x
    out[19] = record[0].y
    out[20] = when == when


POINT = np.dtype([("x", np.int32), ("y", np.float64)], align=True)


@on_gpu
def test_each_kind_of_argument_has_its_value():
    values = np.random.default_rng(3).random((6, 10))
    plain, whole = cuda.to_device(values[:4, :7].copy()), cuda.to_device(values)
    records = cuda.to_device(np.array([(5, 0.25), (6, 0.5)], POINT))
    arguments = (
        *(np.int8(-3), np.uint16(65535), np.int32(-(2**31)), 2**40 + 1, True, np.float32(0.1), 0.1),
        *(np.complex64(1 - 2j), 3 + 4j, (5, np.float32(2.5)), Colour.RED),
        *(np.datetime64("2020-01-02", "D"), plain, whole[::2, ::3], records),
    )
    ours, numbas = (cuda.to_device(np.full(21, np.nan)) for _ in range(2))
    launch = tma.launcher(note_all, 1, 1)
    launch(ours, *arguments)
    note_all[1, 1](numbas, *arguments)
    noted = ours.copy_to_host()
    expected = [
        *(-3, 65535, -(2**31), 2**40 + 1, 1, np.float32(0.1), 0.1, 1, -2, 3, 4, 5, 2.5, 1),
        *(4007, values[2, 3], 4000 + 2 * 80, values[2, 6], 5, 0.25, 1),
    ]
    np.testing.assert_array_equal(noted, expected)
    np.testing.assert_array_equal(noted, numbas.copy_to_host())
    ours.copy_to_device(np.full(21, np.nan))
    launch.bind(ours, *arguments)()
    np.testing.assert_array_equal(ours.copy_to_host(), expected)


@cuda.jit
def copy_tile(x, y, first):
    space, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    row = (cuda.blockIdx.x + first) * 16
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes)
    x.load(space, (row, 0), barrier)
    barrier.wait(0)
    y.store(space, (row, 0))
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


def random_rows(rows=64, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 64), np.float32)


@on_gpu
def test_maps_are_passed_by_value():
    launch = tma.launcher(copy_tile, 3, 1)
    for seed in range(3):  # other maps, of the same type
        values = random_rows(seed=seed)
        x, y = cuda.to_device(values), cuda.to_device(np.full_like(values, 9))
        launch(tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 1)
        expected = np.concatenate([np.full((16, 64), 9, np.float32), values[16:]])
        np.testing.assert_array_equal(y.copy_to_host(), expected)
    assert len(copy_tile.overloads) == 1
    launch(tma.tensor_map(x, TILE).value, tma.tensor_map(y, TILE).value, 0)  # cuda.core's own
    np.testing.assert_array_equal(y.copy_to_host(), values)


POINTERS = types.void(*[types.CPointer(types.float32)] * 4, types.int64)


def add_three(a, b, c, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = a[i] + b[i] + c[i]


@functools.cache
def with_pointers(function):
    """Return the kernel that takes pointers; with a signature, it is compiled when it is made."""
    return cuda.jit(POINTERS)(function)


@on_gpu
def test_pointers():
    arrays = [cuda.to_device(random_rows(seed=s).ravel()) for s in range(4)]
    tma.launcher(with_pointers(add_three), 32, 128)(
        *[a.device_ctypes_pointer.value for a in arrays], 4000
    )
    a, b, c, _ = (random_rows(seed=s).ravel() for s in range(4))
    expected = np.concatenate([(a + b + c)[:4000], random_rows(seed=3).ravel()[4000:]])
    np.testing.assert_array_equal(arrays[3].copy_to_host(), expected)


@cuda.jit(device=True)
def sleep(milliseconds):
    """Sleep at least so long; a clock that stands must not become a hang."""
    start = ptx.globaltimer()
    for _ in range(milliseconds * 10000):
        if ptx.globaltimer() - start > milliseconds * 1_000_000:
            break
        cuda.nanosleep(10_000)


@cuda.jit
def note(out, at, value, delay):
    sleep(delay)
    out[at] = value


@on_gpu
def test_arguments_may_change_when_a_launch_has_returned():
    out = cuda.to_device(np.full(300, -1.0))
    launch = tma.launcher(note, 1, 1)
    launch(out, 299, 0.5, 20)  # about 20 ms, behind which the others wait
    for i in range(299):
        launch(out, i, i * 0.25, 0)
    expected = np.append(np.arange(299) * 0.25, 0.5)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@on_gpu
def test_threads_share_a_launcher():
    out = cuda.to_device(np.full(4000, -1.0))
    launch = tma.launcher(note, 1, 1)

    def run(first):
        for i in range(first, first + 1000):
            launch(out, i, i * 0.5, 0)

    threads = [threading.Thread(target=run, args=(i * 1000,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(4000) * 0.5)


# ------------------------------------------------------------------------------ streams


@cuda.jit
def hold_up(milliseconds):
    sleep(milliseconds)


def check_stream(stream, numba_stream, synchronize):
    """Launch behind a late copy: only on the same stream does the kernel see what it brings."""
    values = random_rows(seed=5)
    source = cuda.to_device(values)
    x, y = (cuda.to_device(np.zeros_like(values)) for _ in range(2))
    maps = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE)
    launch = tma.launcher(copy_tile, 4, 1, stream=stream)
    launch(*maps, 0)
    hold_up[1, 1, numba_stream](0)
    cuda.synchronize()
    hold_up[1, 1, numba_stream](15)
    x.copy_to_device(source, stream=numba_stream)
    launch(*maps, 0)
    synchronize()
    np.testing.assert_array_equal(y.copy_to_host(), values)


@on_gpu
def test_numbas_streams():
    stream = cuda.stream()
    check_stream(stream, stream, stream.synchronize)
    check_stream(int(stream.handle), stream, stream.synchronize)
    check_stream(None, cuda.default_stream(), cuda.synchronize)


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_torchs_streams():
    import torch

    stream = torch.cuda.Stream()
    check_stream(stream, cuda.external_stream(stream.cuda_stream), stream.synchronize)


@needs_cupy
@on_gpu(limit=IMPORT_SECONDS)
def test_cupys_streams():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    check_stream(stream, cuda.external_stream(stream.ptr), stream.synchronize)


@on_gpu
def test_cuda_cores_streams_and_one_that_was_closed():
    from cuda.core import Device

    device = Device()
    device.set_current()
    stream = device.create_stream()
    out = cuda.to_device(np.zeros(1))
    launch = tma.launcher(note, 1, 1, stream=stream)
    launch(out, 0, 2.5, 0)
    stream.sync()
    assert out.copy_to_host().tolist() == [2.5]
    stream.close()
    with pytest.raises(RuntimeError, match="its stream is closed"):
        launch(out, 0, 3.5, 0)
    with pytest.raises(ValueError, match="is closed"):
        tma.launcher(note, 1, 1, stream=stream)
    assert out.copy_to_host().tolist() == [2.5]


# ------------------------------------------------------------------------------- graphs


@on_gpu
def test_a_graph_keeps_the_arguments_of_each_launch():
    out = cuda.to_device(np.full(8, -1.0))
    stream = cuda.stream()
    launch = tma.launcher(note, 1, 1, stream=stream)
    launch(out, 0, 0.0, 0)
    cuda.synchronize()
    out.copy_to_device(np.full(8, -1.0))
    handle = driver.CUstream(int(stream.handle))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture, handle, mode)
    for i in range(8):
        launch(out, i, i + 0.5, 0)
    graph = call(driver.cuStreamEndCapture, handle)
    np.testing.assert_array_equal(out.copy_to_host(), -1)  # it was captured, and has not run
    launch(out, 0, 99.0, 0)  # the buffer is used again
    executable = call(driver.cuGraphInstantiate, graph, 0)
    for _ in range(2):
        call(driver.cuGraphLaunch, executable, handle)
        stream.synchronize()
        np.testing.assert_array_equal(out.copy_to_host(), np.arange(8) + 0.5)
        out.copy_to_device(np.full(8, -1.0))
    call(driver.cuGraphExecDestroy, executable)
    call(driver.cuGraphDestroy, graph)


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_torch_captures_launchers_and_wrappers():
    import torch

    x = torch.zeros(64, 64, device="cuda")
    y, z, w = torch.zeros_like(x), torch.zeros_like(x), torch.ones(64, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    launch = tma.launcher(copy_tile, 4, 1, stream=stream)

    def run():
        launch(tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 0)
        rmsnorm(y, w, out=z, stream=stream)

    run()  # compile before the capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        run()
    for seed in range(3):
        x.copy_(torch.from_numpy(random_rows(seed=seed)))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x, y)
        torch.testing.assert_close(z, torch.nn.functional.rms_norm(x, (64,), w, 1e-6))


# ------------------------------------------------------------------- dependent launches


@cuda.jit
def produce_slowly(values, times, round_):
    """Let the next kernel start, be slow, and then write what it waits for."""
    ptx.griddepcontrol_wait()
    ptx.griddepcontrol_launch_dependents()
    sleep(3)
    values[cuda.grid(1)] = round_
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        times[cuda.blockIdx.x] = ptx.globaltimer()


@cuda.jit
def consume(values, seen, times):
    if cuda.threadIdx.x == 0:
        times[cuda.blockIdx.x] = ptx.globaltimer()
    ptx.griddepcontrol_wait()
    ptx.griddepcontrol_launch_dependents()
    i = cuda.grid(1)
    seen[i] = values[cuda.gridDim.x * cuda.blockDim.x - 1 - i]


def run_chain(pdl):
    """Run the two kernels in turn; return how long before the first's end the second began."""
    blocks, threads = 8, 64
    values, seen = (cuda.to_device(np.full(blocks * threads, -1)) for _ in range(2))
    ended, began = (cuda.to_device(np.zeros(blocks, np.uint64)) for _ in range(2))
    stream = cuda.stream()
    first = tma.launcher(produce_slowly, blocks, threads, stream=stream, pdl=pdl)
    second = tma.launcher(consume, blocks, threads, stream=stream, pdl=pdl)
    overlaps = []
    for round_ in range(4):
        first(values, ended, round_)
        second(values, seen, began)
        stream.synchronize()
        np.testing.assert_array_equal(seen.copy_to_host(), round_)
        overlaps.append(int(ended.copy_to_host().max()) - int(began.copy_to_host().min()))
    for round_ in range(20):  # and many in flight
        first(values, ended, round_)
        second(values, seen, began)
    stream.synchronize()
    np.testing.assert_array_equal(seen.copy_to_host(), 19)
    return overlaps[1:]  # the first one compiles in between


@on_gpu
def test_a_dependent_launch_starts_early_and_waits_for_the_data():
    # In nanoseconds, of about 3 ms. One is enough: another process on the GPU may delay a launch.
    assert max(run_chain(pdl=True)) > 1_000_000
    assert max(run_chain(pdl=False)) <= 0


# ----------------------------------------------------------------------- clusters, debug


@cuda.jit
def ranks(out):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = ptx.cluster_ctarank() + 10 * ptx.cluster_nctarank()


@cuda.jit
@tma.cluster(2)
def ranks_of_two(out):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = ptx.cluster_ctarank() + 10 * ptx.cluster_nctarank()


@on_gpu
def test_clusters():
    out = cuda.to_device(np.zeros(8, np.int32))
    for kernel, size, given in (
        (ranks, 1, None),
        *((ranks, n, n) for n in (2, 4, 8)),
        (ranks_of_two, 2, None),
        (ranks_of_two, 2, 2),
    ):
        tma.launcher(kernel, 8, 32, cluster=given)(out)
        expected = [rank % size + 10 * size for rank in range(8)]
        assert out.copy_to_host().tolist() == expected, (kernel, given)


DEBUGGED = tma.TilePipeline(2, debug=True, x=TILE)


@cuda.jit
def wait_for_more(x, y, loads, tiles):
    pipe = DEBUGGED.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, loads):
            x.load(stage.x, (t * 16, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, tiles):
            pipe.store(y, stage.x, (t * 16, 0))
        pipe.close()


@on_gpu
def test_debug_mode_raises_at_the_launch():
    values = random_rows()
    x, y = cuda.to_device(values), cuda.to_device(np.zeros_like(values))
    maps = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE)
    launch = tma.launcher(wait_for_more, 1, 64)
    launch(*maps, 4, 4)
    np.testing.assert_array_equal(y.copy_to_host(), values)
    with pytest.raises(tma.PipelineTimeout):
        launch(*maps, 1, 2)
    launch(*maps, 4, 4)


@cuda.jit(debug=True, opt=False)
def divide(out, n):
    out[0] = 1 // n


@on_gpu
def test_numbas_debug_mode_raises_too():
    out = cuda.to_device(np.zeros(1, np.int64))
    launch = tma.launcher(divide, 1, 1)
    launch(out, 1)
    assert out.copy_to_host().tolist() == [1]
    with pytest.raises(ZeroDivisionError):
        launch(out, 0)


@on_gpu
def test_what_the_driver_refuses_is_an_error_and_costs_nothing():
    from cuda.core import LaunchConfig

    out = cuda.to_device(np.zeros(8, np.int32))
    launch = tma.launcher(ranks_of_two, 8, 32)
    launch(out)
    ((prepared, _),) = launch.bind.__self__._prepared
    prepared._config = LaunchConfig(grid=7, block=32)  # which clusters of 2 do not divide
    with pytest.raises(RuntimeError, match=r"launcher\('ranks_of_two', .* failed: .*CUDA_ERROR"):
        launch.bind(out)()
    launch(out)
    assert out.copy_to_host().tolist() == [20, 21] * 4


# ------------------------------------------------------------------- wrappers, host costs


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_wrappers_launch_again_for_new_contents_and_anew_for_other_arrays():
    import torch

    w = torch.rand(256, device="cuda")
    x, y = torch.empty(33, 256, device="cuda"), torch.empty(33, 256, device="cuda")
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        y.fill_(9)
        rmsnorm(x, w, out=y)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (256,), w, 1e-6))
    rmsnorm(x, w, out=y, eps=1.0)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (256,), w, 1.0))
    for _ in range(20):  # new arrays at each call, often at the address of the last ones
        z = torch.randn(5, 256, device="cuda")
        torch.testing.assert_close(rmsnorm(z, w), torch.nn.functional.rms_norm(z, (256,), w, 1e-6))
        flat = torch.randn(5 * 256, device="cuda")
        copied = torch.empty_like(flat)
        assert torch.equal(copy(flat, copied), flat)
        del z, flat, copied


#: Microseconds that cuda.core takes for a launch with 4 pointers and an integer on a host whose
#: microseconds the limits are meant in.
USUAL_LAUNCH = 6.1


def microseconds(*functions, calls=2000, repeats=15):
    """Return the shortest time of a call of each function, taking turns."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            best[i] = min(best[i], (time.perf_counter() - start) / calls * 1e6)
    return best


@cuda.jit
def take_maps(x, y, n):
    pass


def take_pointers(a, b, c, d, n):
    pass


@on_gpu(limit=90)
def test_a_launch_costs_the_host_less_than_6_5_us():
    from cuda.core import LaunchConfig, Stream
    from cuda.core import launch as core_launch

    x = cuda.to_device(random_rows())
    x_map, pointer = tma.tensor_map(x, TILE), x.device_ctypes_pointer.value
    kernel = with_pointers(take_pointers)
    pointers, maps = tma.launcher(kernel, 132, 128), tma.launcher(take_maps, 132, 128)
    pointers(pointer, pointer, pointer, pointer, 7), maps(x_map, x_map, 7)
    (compiled,) = kernel.overloads.values()
    function = compiled._codelibrary.get_cufunc().kernel
    stream, config = Stream.from_handle(0), LaunchConfig(grid=132, block=128)
    core, of_pointers, of_maps = microseconds(
        lambda: core_launch(stream, config, function, pointer, pointer, pointer, pointer, 7),
        lambda: pointers(pointer, pointer, pointer, pointer, 7),
        lambda: maps(x_map, x_map, 7),
    )
    slow = max(1.0, core / USUAL_LAUNCH)
    text = (
        f"4 pointers and an integer: {of_pointers:.2f} us, cuda.core {core:.2f} us; 2 maps and "
        f"an integer: {of_maps:.2f} us"
    )
    print(text)
    assert max(of_pointers, of_maps) < 6.5 * slow, text


@needs_torch
@on_gpu(limit=90)
def test_a_wrapper_costs_the_host_less_than_15_us():
    import torch

    x, w = torch.rand(64, 1024, device="cuda"), torch.rand(1024, device="cuda")
    y, n = torch.empty_like(x), 7
    launch = tma.launcher(with_pointers(take_pointers), 132, 128)
    plain, norm, copied = microseconds(
        lambda: launch(n, n, n, n, n), lambda: rmsnorm(x, w, out=y), lambda: copy(x, y)
    )
    slow = max(1.0, plain / USUAL_LAUNCH)
    text = f"a launch {plain:.2f} us, rmsnorm {norm:.2f} us, copy {copied:.2f} us"
    print(text)
    assert max(norm, copied) < 15 * slow, text
