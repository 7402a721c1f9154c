"""`cluster`: its PTX, its errors, its launches and its key in the cache."""

import re
from unittest import mock

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import NumbaError, TypingError
from numba.cuda.dispatcher import _Kernel

import numba_tma as tma
from numba_tma import ptx
from numba_tma.tools.testing import compile_ptx, ptxas, run_isolated
from tests.cpu.backend.test_compiler import Application

OUT = types.int32[::1]
BYTES = tma.Tile(64, "u8")


def plain(out):
    out[cuda.grid(1)] = ptx.cluster_ctarank()


def required(text):
    """Return the cluster size that compiled PTX asks for."""
    found = re.findall(r"\.reqnctapercluster (\d+), (\d+), (\d+)", text)
    assert len(found) == text.count("reqnctapercluster") == text.count(".explicitcluster")
    return tuple(map(int, found[0])) if found else None


# --------------------------------------------------------------------------- compiled


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, (1, 1, 1)),
        (2, (2, 1, 1)),
        (8, (8, 1, 1)),
        ((2,), (2, 1, 1)),
        ([2, 2], (2, 2, 1)),
        ((1, 2, 4), (1, 2, 4)),
        (np.int64(4), (4, 1, 1)),
    ],
)
@pytest.mark.parametrize("cc", [(9, 0), (9, 0, "a"), (10, 0, "a"), (12, 0)])
def test_the_size_is_the_kernels(size, expected, cc):
    def body(out):
        out[0] = 1

    kernel = cuda.jit(tma.cluster(size)(body))
    text = compile_ptx(kernel, (OUT,), cc=cc)
    assert required(text) == expected
    ptxas(text)


def test_a_kernel_without_it_has_none():
    assert required(compile_ptx(cuda.jit(plain), (OUT,))) is None


def test_a_plain_function_is_compiled_with_its_size():
    assert required(compile_ptx(tma.cluster(4)(lambda out: None), (OUT,))) == (4, 1, 1)


def test_device_functions_have_no_clusters_of_their_own():
    helper = cuda.jit(device=True)(tma.cluster(4)(lambda x: 2 * x))

    @cuda.jit
    @tma.cluster(2)
    def kernel(out):
        out[0] = helper(out[1])

    with pytest.raises(NumbaError, match=r"under @tma.cluster\(\(4, 1, 1\)\): only a launch has"):
        compile_ptx(kernel, (OUT,))


def with_options(**options):
    @cuda.jit(launch_bounds=(256, 2), **options)
    @tma.cluster(2)
    def kernel(out):
        out[0] = 1

    text = compile_ptx(kernel, (OUT,))
    return required(text), ".maxntid 256" in text


def with_debugging():
    return with_options(debug=True, opt=False)


def test_it_goes_with_other_options():
    assert with_options(lineinfo=True) == ((2, 1, 1), True)


@pytest.mark.slow
def test_it_goes_with_debugging():
    # After that, libNVVM leaves out optimisations of whatever the process compiles.
    assert run_isolated(with_debugging, timeout=120) == ((2, 1, 1), True)


def test_cluster_sync_is_arrive_and_wait():
    def kernel():
        tma.cluster_sync()

    text = compile_ptx(kernel, ())
    assert re.findall(r"barrier\.cluster\S*;", text) == [
        "barrier.cluster.arrive;",
        "barrier.cluster.wait;",
    ]


def test_mapa_takes_what_is_in_shared_memory():
    def kernel(out):
        numbers = cuda.shared.array(32, types.float32)
        tile, barrier = tma.shared_tile(BYTES), tma.shared_barrier()
        out[0] = ptx.mapa(numbers, 1)
        out[1] = ptx.mapa(tile, 1)
        out[2] = ptx.mapa(barrier, 1)
        out[3] = ptx.mapa(tile.address + 16, 1)

    text = compile_ptx(kernel, (types.uint32[::1],))
    ptxas(text)
    assert len(set(re.findall(r"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), (%r\d+);", text))) == 4


# -------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, ["cluster(0)", "at least 1 block"]),
        ((2, -1), ["cluster((2, -1))", "at least 1 block"]),
        (9, ["cluster(9)", "9 blocks", "8 that every GPU", "use 8 or fewer"]),
        ((4, 2, 2), ["16 blocks", "non-portable", "a plain launch does not"]),
        ((1, 1, 1, 1), ["a tuple of 1 to 3 integers", "2 or (2, 1, 1)"]),
        ((), ["cluster(())", "1 to 3 integers"]),
        (2.0, ["cluster(2.0)", "integer"]),
        ("2", ["cluster('2')", "integer"]),
        (True, ["cluster(True)", "integer"]),
        (None, ["cluster(None)", "integer"]),
        ((2, 1.5), ["cluster((2, 1.5))", "integers"]),
        (plain, ["without a size", "@tma.cluster(2)"]),
    ],
)
def test_a_bad_size_is_refused_at_once(size, words):
    with pytest.raises(ValueError) as caught:
        tma.cluster(size)
    assert [w for w in words if w not in str(caught.value)] == []


def test_above_the_decorator_of_numba_it_says_where_it_belongs():
    with pytest.raises(TypeError, match="below @cuda.jit"):
        tma.cluster(2)(cuda.jit(plain))


def test_older_architectures_have_no_clusters():
    @tma.cluster(2)
    def kernel(out):
        out[0] = 1

    message = r"kernel: clusters need compute capability 9\.0 .* compiled for 8\.0"
    with pytest.raises(NumbaError, match=message):
        compile_ptx(kernel, (OUT,), cc=(8, 0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ptx.barrier_cluster_arrive("acquire"), ["'release'", "not 'acquire'"]),
        (lambda: ptx.barrier_cluster_wait("release"), ["'acquire'", "not 'release'"]),
        (lambda: ptx.red_async_u32(0, 1, 0, "and"), ["'inc', 'dec', 'min'", "not 'and'"]),
        (lambda: ptx.red_async_s32(0, 1, 0, "inc"), ["'min', 'max', 'add'", "not 'inc'"]),
        (lambda: ptx.red_async_b32(0, 1, 0, "add"), ["'and', 'or', 'xor'", "not 'add'"]),
        (lambda: ptx.red_async_u64(0, 1, 0, "min"), ["one of 'add'", "not 'min'"]),
        (lambda: ptx.st_async_v2_b32(0, (1, 2, 3), 0), ["a tuple of 2 numbers"]),
        (lambda: ptx.mapa(1.5, 0), ["a Barrier, or a tile"]),
    ],
)
def test_wrong_operands_are_refused_with_what_is_legal(call, words):
    def kernel():
        call_it()

    call_it = cuda.jit(device=True)(call)
    with pytest.raises(TypingError) as caught:
        compile_ptx(kernel, ())
    assert [w for w in words if w not in str(caught.value)] == []


# ------------------------------------------------------------------ launch and cache

SETTINGS = "SIZE = {size!r}\n"
KERNEL = """
from numba import cuda
import numba_tma as tma
from .sizes import SIZE

@cuda.jit(cache=True)
@tma.cluster(SIZE)
def kernel(out):
    out[0] = 1
"""


@pytest.fixture
def application(tmp_path):
    return Application(tmp_path)


def compiled(application, size):
    application.write("sizes.py", SETTINGS.format(size=size))
    return application.compile(KERNEL, (OUT,))


def test_a_cached_kernel_is_not_served_for_another_size(application):
    for size, hit in ((2, False), (4, False), ((2, 2), False), (2, True), (4, True)):
        result = compiled(application, size)
        assert result.hit is hit
        shape = size if isinstance(size, tuple) else (size,)
        assert required(result.kernel._codelibrary.get_asm_str(cc=(9, 0))) == (*shape, 1, 1)[:3]


def test_a_grid_that_is_not_divisible_is_refused_before_the_launch(application):
    for hit in (False, True):  # what comes from the cache knows its clusters as well
        result = compiled(application, (2, 4))
        assert result.hit is hit
        for grid, words in {
            (3, 4, 1): ["3 blocks along x", "multiple of 2", "launch 4 blocks along x"],
            (2, 5, 3): ["5 blocks along y", "multiple of 4", "launch 8 blocks along y"],
        }.items():
            with pytest.raises(ValueError) as caught:
                result.kernel.launch((), grid, (32, 1, 1))
            message = str(caught.value)
            assert [w for w in [f"grid {grid}", "(2, 4, 1)", *words] if w not in message] == []


def test_a_grid_that_is_divisible_goes_on_to_the_launch(application):
    launch = mock.Mock()
    with mock.patch.object(_Kernel, "launch", launch):
        kernel = compiled(application, (2, 4)).kernel
    kernel.launch((), (4, 8, 3), (32, 1, 1), 0, 0)
    launch.assert_called_once_with((), (4, 8, 3), (32, 1, 1), 0, 0)


def test_other_kernels_are_launched_as_before(application):
    result = application.compile(
        KERNEL.replace("@tma.cluster(SIZE)\n", "").replace("from .sizes import SIZE\n", ""), (OUT,)
    )
    assert "launch" not in vars(result.kernel)
