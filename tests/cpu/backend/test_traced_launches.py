"""Which launches a trace sees, without a GPU: threads, nesting, failures, what it gives back."""

import gc
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, types
from numba.cuda.dispatcher import CUDADispatcher

import numba_tma as tma
from numba_tma.backend.numba_cuda import traced
from numba_tma.host import tracing
from numba_tma.kernels._host import memo
from numba_tma.tools.trace import recording as recorders
from numba_tma.tools.trace import trace as open_trace
from tests.cpu.host.test_launcher import device_array, driver  # noqa: F401


class Noting:
    """A recorder that launches, and notes what it was given."""

    def __init__(self):
        self.seen = []

    def launch(self, traced, run):
        self.seen.append(traced)
        assert tracing.active() is None  # of a launch inside of it
        run()


@cuda.jit
def one(x):
    x[0] = 1


@pytest.fixture
def gpu(driver, monkeypatch):  # noqa: F811
    """Launch on nothing; note the kernels that numba-cuda launches itself."""
    launched = []
    monkeypatch.setattr(traced, "current_context", lambda: 1)
    monkeypatch.setattr(traced, "launching_device", lambda: 0)
    monkeypatch.setattr(
        "numba.cuda.dispatcher._Kernel.launch",
        lambda self, *given: launched.append((self, given)),
    )
    monkeypatch.setattr(traced, "compiled_for", compiled_for)
    return SimpleNamespace(launched=launched, driver=driver)


def compiled_for(kernel, grid, block, arguments):
    """Return the compiled kernel, whose memory nobody asks a GPU for."""
    from numba_tma.backend.numba_cuda.launches import compiled_for

    compiled_for(kernel, grid, block, arguments)
    return SimpleNamespace(shared_mem_per_block=48, _codelibrary=SimpleNamespace())


@pytest.fixture(autouse=True)
def no_requirements(monkeypatch):
    monkeypatch.setattr(traced, "requirements_of", lambda compiled: SimpleNamespace(cluster=None))


def is_traced(kernel):
    return "tma_traced" in str(kernel._codelibrary.get_asm_str())


def in_thread(call):
    errors = []

    def run():
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


# ----------------------------------------------------------------------- numba's launches


def test_a_kernel_is_traced_inside_and_not_after(gpu):
    x, recorder = device_array((4,)), Noting()
    one[2, 32](x)
    with tracing.recording(recorder), traced.tracing_launches():
        one[(2, 3), (32, 2), 0, 64](x)
    one[2, 32](x)
    assert [is_traced(kernel) for kernel, _ in gpu.launched] == [False, True, False]
    (seen,) = recorder.seen
    assert (seen.name, seen.grid, seen.block) == ("one", (2, 3, 1), (32, 2, 1))
    assert (seen.cluster, seen.stream, seen.shared) == (None, 0, 48 + 64)
    assert gpu.launched[1][1][1:] == ((2, 3, 1), (32, 2, 1), gpu.launched[1][1][3], 64)


def test_another_thread_is_not_traced(gpu):
    x, recorder = device_array((4,)), Noting()
    with tracing.recording(recorder), traced.tracing_launches():
        in_thread(lambda: one[1, 32](x))
        assert not recorder.seen and not is_traced(gpu.launched[-1][0])
        one[1, 32](x)
    assert len(recorder.seen) == 1 and is_traced(gpu.launched[-1][0])


def test_traces_of_two_threads(gpu):
    x, first, second = device_array((4,)), Noting(), Noting()
    entered, left = threading.Event(), threading.Event()

    def other():
        with tracing.recording(second), traced.tracing_launches():
            one[1, 32](x)
            entered.set()
            assert left.wait(60)
            one[1, 32](x)
            one[1, 32](x)

    thread = threading.Thread(target=other)
    with tracing.recording(first), traced.tracing_launches():
        thread.start()
        assert entered.wait(60)
        one[1, 32](x)
    assert tracing.recorders and CUDADispatcher.call is traced._call_traced
    left.set()
    thread.join(60)
    assert (len(first.seen), len(second.seen)) == (1, 3)
    assert not tracing.recorders and CUDADispatcher.call is traced._call


def test_a_trace_inside_of_a_trace_has_the_launches_of_its_own(gpu):
    x, outer, inner = device_array((4,)), Noting(), Noting()
    with tracing.recording(outer), traced.tracing_launches():
        one[1, 32](x)
        with tracing.recording(inner), traced.tracing_launches():
            one[1, 64](x)
        one[1, 96](x)
    assert [t.block[0] for t in outer.seen] == [32, 96]
    assert [t.block[0] for t in inner.seen] == [64]
    assert tracing.active() is None


def test_an_error_inside_restores_everything(gpu):
    x, recorder = device_array((4,)), Noting()
    with pytest.raises(RuntimeError, match="mine"):
        with tracing.recording(recorder), traced.tracing_launches():
            one[1, 32](x)
            raise RuntimeError("mine")
    assert tracing.active() is None and not tracing.recorders and not traced._traces
    assert CUDADispatcher.call is traced._call and len(recorder.seen) == 1


def test_a_kernel_that_does_not_compile_leaves_the_trace_open(gpu):
    @cuda.jit
    def wrong(x):
        x.no_such_thing()

    x, recorder = device_array((4,)), Noting()
    with tracing.recording(recorder), traced.tracing_launches():
        with pytest.raises(Exception, match="no_such_thing"):
            wrong[1, 32](x)
        assert tracing.active() is recorder and not tracing.compiles_traced()
        one[1, 32](x)
    assert len(recorder.seen) == 1


def test_the_types_that_a_kernel_was_given_hold_with_a_trace(gpu):
    kernel = cuda.jit("void(float32[:], float32)")(lambda x, value: None)
    with tracing.recording(Noting()), traced.tracing_launches():
        kernel[1, 32](device_array((4,), strides=(4,)), 3)
    (twin,) = traced._twins[kernel].values()
    (signature,) = twin.overloads
    assert signature[1] == types.float32 and not twin._can_compile
    assert is_traced(gpu.launched[-1][0])


def test_a_kernel_is_compiled_once_for_each_context(gpu, monkeypatch):
    x = device_array((4,))

    @cuda.jit
    def kernel(x):
        x[0] = 1

    with tracing.recording(Noting()), traced.tracing_launches():
        kernel[1, 32](x)
        kernel[1, 32](x)
        monkeypatch.setattr(traced, "current_context", lambda: 2)
        kernel[1, 32](x)
    assert len(traced._twins[kernel]) == 2
    kernels = [compiled for compiled, _ in gpu.launched]
    assert kernels[0] is kernels[1] is not kernels[2]


def test_kernels_are_not_kept_alive(gpu):
    kernel = cuda.jit(lambda x: None)  # numba-cuda itself keeps the newest that are launched
    twin = traced.twin_of(kernel)
    assert traced.twin_of(kernel) is twin
    twin.compile((types.float32[::1],))
    references = [weakref.ref(kernel), weakref.ref(twin)]
    del kernel, twin
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# ----------------------------------------------------------------------------- launchers


def launches_of(gpu):
    return len(gpu.driver.launches)


def test_a_launcher_is_traced_inside_and_as_before_after(gpu):
    launch, x, recorder = tma.launcher(one, 2, 32), device_array((4,)), Noting()
    launch(x)
    code = launch.__code__
    first = launch.bind.__self__._first_code
    assert code is not first
    with tracing.recording(recorder), traced.tracing_launches():
        assert launch.__code__ is first
        launch(x)
        launch(x)
        bound = launch.bind(x)
        bound()
        assert launch.__code__ is first
    assert len(recorder.seen) == 3 and launches_of(gpu) == 4
    assert recorder.seen[0][:4] == ("one", (2, 1, 1), (32, 1, 1), None)
    assert recorder.seen[0].shared == 48
    bound()
    launch(x)
    assert len(recorder.seen) == 3 and launches_of(gpu) == 6
    launch(x)
    assert launch.__code__ is code


def test_a_launcher_that_another_thread_uses_meanwhile_is_traced(gpu):
    launch, x, recorder = tma.launcher(one, 2, 32), device_array((4,)), Noting()
    with tracing.recording(recorder), traced.tracing_launches():
        in_thread(lambda: launch(x))
        assert not recorder.seen and launches_of(gpu) == 1
        launch(x)
    assert len(recorder.seen) == 1


def test_an_error_gives_launchers_their_code_back(gpu):
    launch, x = tma.launcher(one, 2, 32), device_array((4,))
    launch(x)
    with pytest.raises(RuntimeError, match="mine"), traced.tracing_launches():
        raise RuntimeError("mine")
    launch(x)
    assert launch.__code__ is not launch.bind.__self__._first_code


def test_a_trace_makes_a_launcher_of_its_own_with_the_same_configuration(gpu, monkeypatch):
    made = []
    create = traced.TracedLauncher.__init__
    monkeypatch.setattr(
        traced.TracedLauncher, "__init__",
        lambda self, *given: (made.append(given[1:]), create(self, *given))[1],
    )  # fmt: skip
    launch = tma.launcher(one, (4, 2), 32, cluster=2, pdl=True)
    recorder = Noting()
    with tracing.recording(recorder), traced.tracing_launches():
        launch(device_array((4,)))
    assert made == [((4, 2, 1), (32, 1, 1), (2, 1, 1), None, True)]
    assert recorder.seen[0].cluster == (2, 1, 1)


# -------------------------------------------------------------------- the package's functions


def test_calls_that_another_thread_remembers_are_not_repeated_in_a_trace(gpu, monkeypatch):
    """The launches that `launched_again` repeats are bound to the kernel without a trace."""
    monkeypatch.setattr(memo._driver, "current_context", lambda: 1)
    monkeypatch.setattr(memo._driver, "is_capturing", lambda handle: False)
    launch, recorder = tma.launcher(one, 2, 32), Noting()

    @memo.launched_again("call", "x")
    def call(arrays, stream, numbers):
        again = launch.bind(*arrays)
        again()
        memo.recorder.recording.launches.append(again)

    x = device_array((4,))
    with tracing.recording(recorder), traced.tracing_launches():
        in_thread(lambda: call((x,), None, ()))
        in_thread(lambda: call((x,), None, ()))
        assert not recorder.seen
        call((x,), None, ())
        call((x,), None, ())
        assert len(recorder.seen) == 2
        in_thread(lambda: call((x,), None, ()))
        assert len(recorder.seen) == 2
    memo.forget_all()
    call((x,), None, ())
    assert len(recorder.seen) == 2 and launches_of(gpu) == 6


# ----------------------------------------------------------------------- the GPU's recorder


@pytest.fixture
def recorded(gpu, monkeypatch):
    """Let `trace` record on a GPU that is not there; note what the recorder does."""
    steps = []

    class Rings:
        def __init__(self, sampling, nbytes):
            steps.append(("rings", sampling, nbytes))

        def begin(self):
            steps.append("begin")

        def end(self):
            steps.append("end")

        def read(self):
            steps.append("read")
            return np.zeros((1, 0), np.uint8)

    nothing = SimpleNamespace(spans=[], roles={}, processors={}, dropped=3, pipelines={})
    monkeypatch.setattr(recorders.trace_buffer, "Rings", Rings)
    monkeypatch.setattr(recorders, "decode", lambda *given: nothing)
    monkeypatch.setattr(recorders, "wait_for_device", lambda: steps.append("wait"))
    monkeypatch.setattr(recorders, "is_capturing", lambda stream: False)
    monkeypatch.setattr(recorders, "launching_device", lambda: 0)
    attributes = {"MEMORY_CLOCK_RATE": 2_619_000, "GLOBAL_MEMORY_BUS_WIDTH": 5120}
    monkeypatch.setattr(recorders, "device_attribute", lambda _, name: attributes.get(name, 132))
    return steps


def test_a_launch_has_the_rings_to_itself(gpu, recorded):
    x = device_array((4,))
    with open_trace(blocks=2, megabytes=1.5) as found:
        one[8, 64](x)
    assert recorded[0] == ("rings", (0, 4, 2, 1, 2), 3 << 19)
    assert recorded[1:] == ["wait", "begin", "wait", "end", "read"]
    (launch,) = found.launches
    assert (launch.kernel, launch.grid, launch.block) == ("one", (8, 1, 1), (64, 1, 1))
    assert (launch.unit, launch.dropped, launch.shared_nbytes) == ("ns", 3, 48)
    assert launch.bandwidth == pytest.approx(3352, rel=1e-3) and launch.num_processors == 132


def test_so_many_launches_of_each_kernel(gpu, recorded):
    other = cuda.jit(lambda x: None)
    other.py_func.__name__ = "other"
    x = device_array((4,))
    with open_trace(launches=2) as found:
        for _ in range(5):
            one[1, 32](x)
        other[1, 32](x)
    assert [launch.kernel for launch in found.launches] == ["one", "one", "other"]
    assert found.left_out == {"one": 3} and len(gpu.launched) == 6
    assert "3 more launches of one" in str(found.summary())


def test_a_launch_that_fails_is_left_out_and_what_was_before_is_kept(gpu, recorded, monkeypatch):
    x = device_array((4,))
    with pytest.raises(RuntimeError, match="refused"), open_trace() as found:
        one[1, 32](x)

        def refuse(self, *given):
            raise RuntimeError("refused")

        monkeypatch.setattr("numba.cuda.dispatcher._Kernel.launch", refuse)
        one[1, 32](x)
    assert len(found.launches) == 1 and recorded[-1] == "end"
    assert tracing.active() is None and CUDADispatcher.call is traced._call


def test_a_launch_into_a_graph_is_refused(gpu, recorded, monkeypatch):
    monkeypatch.setattr(recorders, "is_capturing", lambda stream: True)
    with open_trace(), pytest.raises(RuntimeError, match="trace the launches without a graph"):
        one[1, 32](device_array((4,)))
    assert not gpu.launched and "begin" not in recorded


def test_nested_traces_on_a_gpu(gpu, recorded):
    x = device_array((4,))
    with open_trace() as outer, nullcontext():
        with open_trace() as inner:
            one[1, 32](x)
        one[1, 64](x)
    assert [t.block[0] for t in inner.launches] == [32]
    assert [t.block[0] for t in outer.launches] == [64]


def test_calls_are_forgotten_at_the_end(gpu, recorded, monkeypatch):
    forgotten = []
    monkeypatch.setattr(
        "numba_tma.tools.trace.forget_all", lambda: forgotten.append(tracing.active())
    )
    with open_trace():
        assert not forgotten
    assert forgotten == [None]
