"""The launches of matmul without a GPU: layouts, copies, choices, errors, tuning."""

import dataclasses
import errno
import itertools
import json
import math
import multiprocessing
import os
import stat
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.host import cache_files
from numba_tma.host import driver as _driver
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.kernels._host import launch as _launch
from numba_tma.kernels._host.device import fewest_in_same_waves, resident_clusters
from numba_tma.kernels.matmul import dense as module
from numba_tma.kernels.matmul import launch as _matmul_launch
from numba_tma.kernels.matmul import matmul, operands
from numba_tma.kernels.matmul import measurements as _matmul_tuner
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from numba_tma.kernels.matmul.choice import (
    CONFIGS,
    MatmulProblem,
    candidates,
    choose,
    expected_cycles,
    expected_nanoseconds,
)
from numba_tma.kernels.matmul.plan import (
    Config,
    MatmulPlan,
    StreamKConfig,
    SwappedConfig,
    SwappedPlan,
    Tcgen05Config,
)
from numba_tma.kernels.matmul.stream_k_plan import divide
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan
from tests.cpu.host.test_launcher import device_array

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)


_tests = itertools.count(1)


@pytest.fixture
def gpu(monkeypatch):
    """Note what is launched, with no GPU: (what, blocks, threads, arguments)."""
    noted = SimpleNamespace(launches=[], memory=[], early=[])
    monkeypatch.setattr(Array, "memory", next(_tests) << 41)  # launches of another are not repeated

    def launcher(kernel, blocks, threads, stream, pdl):
        if pdl:
            noted.early.append(kernel)

        def bind(*arguments):
            return lambda: noted.launches.append((kernel, blocks, threads, arguments))

        return SimpleNamespace(bind=bind)

    def space(shape, dtype):
        noted.memory.append(
            device_array(shape, dtype, address=Array.memory + (9 + len(noted.memory) << 32))
        )
        return noted.memory[-1]

    monkeypatch.setattr(_launch, "_launcher", launcher)
    monkeypatch.setattr(cuda, "as_cuda_array", lambda view: view)
    monkeypatch.setattr(operands, "device_memory", space)
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    for name in ("_host.device", "copy.api", "transpose.api", "matmul.launch", "matmul.dense"):
        path = f"numba_tma.kernels.{name}."
        for function, fake in {
            "sm_count": lambda: 132,
            "has_tcgen05": lambda: False,
            "has_mma_alone": lambda: False,
            "queue_counter": lambda: device_array((1,), np.uint32),
            "tensor_map": lambda view, tile, dtype=None: (view, tile, dtype),
        }.items():
            monkeypatch.setattr(path + function, fake, raising=False)
    monkeypatch.setattr(_matmul_launch, "float_workspace", lambda *of: space(of, np.float32))
    monkeypatch.setattr(_matmul_launch, "zero_counters", lambda count: space((count,), np.uint32))
    for kernel in ("matmul_kernel", "swapped_kernel", "stream_k_kernel"):
        monkeypatch.setattr(_matmul_launch, kernel, lambda form: form)
    monkeypatch.setattr(_matmul_launch, "split_k_kernel", lambda *of: ("add", *of))
    return noted


class Array:
    """A device array of any type over memory that does not exist."""

    memory = 0

    def __init__(self, index, shape, dtype=BF16, strides=None, start=0):
        self.index, self.shape, self.dtype, self.start = index, shape, np.dtype(dtype), start
        self.strides = strides or np.empty(shape, np.dtype(f"u{self.dtype.itemsize}")).strides
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": self.strides,
            "typestr": f"<V{self.dtype.itemsize}" if self.dtype.kind == "V" else self.dtype.str,
            "data": (self.memory + (index << 32) + start, False),
            "version": 3,
        }

    @property
    def T(self):
        return Array(self.index, self.shape[::-1], self.dtype, self.strides[::-1], self.start)


def launched(gpu, *arrays, **options):
    """Return the form that was launched with these arrays, and what was launched before it."""
    gpu.launches.clear()
    matmul(*arrays, **options)
    *before, (form, blocks, threads, arguments) = gpu.launches
    assert isinstance(form, MatmulPlan | SwappedPlan)
    return SimpleNamespace(
        before=[getattr(kernel, "__name__", kernel) for kernel, *_ in before],
        **{"form": form, "blocks": blocks, "threads": threads, "sizes": arguments[5]},
        **{"a": arguments[0], "b": arguments[1], "out": arguments[2], "terms": arguments[6]},
        **{"old": arguments[3], "residual": arguments[4]},
    )


COPYING = Config(128, 128)  # whose operands TMA loads


def pair(m, n, k, layout="TN", dtype=BF16):
    a = Array(1, (m, k), dtype) if layout[0] == "T" else Array(1, (k, m), dtype).T
    return a, Array(2, (n, k), dtype).T if layout[1] == "N" else Array(2, (k, n), dtype)


# ----------------------------------------------------------------- what is read where it lies


@pytest.mark.parametrize("layout", ["TN", "TT", "NN", "NT"])
def test_16_bits_are_read_as_they_lie(gpu, layout):
    done = launched(gpu, *pair(256, 512, 128, layout), Array(3, (256, 512)))
    majors = ["K" if letter == own else "MN" for letter, own in zip(layout, "TN")]
    assert [done.form.a_major, done.form.b_major] == majors
    shapes = [(1, 256, 128), (1, 512, 128)]
    for (view, _, _), (one, rows, k), major in zip((done.a, done.b), shapes, majors):
        assert view.shape == ((one, rows, k) if major == "K" else (one, k, rows))
    assert done.before == [] and gpu.memory == [] and done.form.addressable


@pytest.mark.parametrize("dtype", [E4M3, np.dtype(np.float32), np.dtype(np.int8)])
@pytest.mark.parametrize("layout", ["TT", "NN", "NT"])
def test_other_sizes_are_transposed_first(gpu, layout, dtype):
    out = {"f": np.float32, "i": np.int32}.get(dtype.kind, BF16)
    done = launched(gpu, *pair(256, 512, 128, layout, dtype), Array(3, (256, 512), out))
    assert done.before == ["transpose_tiles"] * sum(x != y for x, y in zip(layout, "TN"))
    assert (done.form.a_major, done.form.b_major) == ("K", "K")
    assert done.a[0].shape == (1, 256, 128) and done.b[0].shape == (1, 512, 128)
    assert done.form.a.name == {"f": "tf32", "i": "i8"}.get(dtype.kind, "e4m3")


def blackwell(monkeypatch):
    """Let the launches be those of a GPU with tcgen05, whose kernels are their plans."""
    monkeypatch.setattr(_matmul_launch, "has_tcgen05", lambda: True)
    for kernel in ("tcgen05_kernel", "tcgen05_pair_kernel"):
        monkeypatch.setattr(_matmul_launch, kernel, lambda plan: plan)


@pytest.mark.parametrize("layout", ["TT", "NN", "NT"])
def test_blackwell_reads_8_bit_floats_as_they_lie(gpu, monkeypatch, layout):
    blackwell(monkeypatch)
    matmul(*pair(256, 512, 128, layout, E4M3), Array(3, (256, 512)))
    ((plan, *_),) = gpu.launches
    majors = ["K" if letter == own else "MN" for letter, own in zip(layout, "TN")]
    assert [plan.a_major, plan.b_major] == majors


def test_a_pair_whose_halves_of_b_are_narrow_transposes_8_bits(gpu, monkeypatch):
    blackwell(monkeypatch)
    config = Tcgen05Config(96, cta_group=2)  # 48 columns of b in each block: no swizzle's width
    matmul(*pair(256, 512, 128, "TT", E4M3), Array(3, (256, 512)), config=config)
    transpose, (plan, *_) = gpu.launches
    assert (transpose[0].__name__, plan.b_major) == ("transpose_tiles", "K")


def test_what_tma_cannot_address_is_copied_first(gpu):
    a, b = pair(256, 512, 100)  # rows of 200 B
    done = launched(gpu, a, b, Array(3, (256, 512)), config=COPYING)
    assert done.before == ["copy_units"] * 2
    view, _, _ = done.a
    assert view.shape == (1, 256, 100) and view.strides[1] == 208  # zeros come from behind 100
    assert [m.shape for m in gpu.memory] == [(1, 256, 104), (1, 512, 104)]
    b, out = Array(2, (100, 512)), Array(3, (256, 512))
    for a in (Array(1, (256, 100), start=2), Array(1, (256, 100), strides=(202, 2))):
        assert launched(gpu, a, b, out, config=COPYING).before == ["copy_units"]
    assert launched(gpu, Array(1, (256, 100), strides=(208, 2)), b, out).before == []


def test_long_rows_are_copied_to_whole_cache_lines(gpu):
    """A row of a box that begins inside of a line takes two; short rows would mostly be padding."""
    for k, pitch in ((511, 1024), (513, 1152), (5000, 10112), (91, 192)):
        a, b = Array(1, (256, k), strides=(2 * k + 2, 2)), Array(2, (k, 512))
        view, _, _ = launched(gpu, a, b, Array(3, (256, 512)), config=COPYING).a
        assert view.strides[1] == pitch, k


def test_operands_that_would_be_copied_are_loaded_by_threads_if_that_is_faster(gpu, monkeypatch):
    """Narrow products are; large ones are copied, since they load their tiles many times."""
    monkeypatch.setattr(_matmul_launch, "unaligned_kernel", lambda plan: plan)
    for m, n, k, first in ((5, 4001, 1001, "b"), (4001, 19, 1001, "a"), (4001, 3999, 4003, None)):
        gpu.launches.clear()
        matmul(*pair(m, n, k), Array(3, (m, n)))
        plan, *_ = gpu.launches[-1]
        assert isinstance(plan, UnalignedPlan) == (first is not None)
        assert first is None or (len(gpu.launches), plan.config.first) == (1, first)
    gpu.launches.clear()
    matmul(*pair(5, 4001, 1001, dtype=np.dtype(np.float32)), Array(3, (5, 4001), np.float32))
    assert len(gpu.launches) == 3  # two copies


def test_copies_are_made_again_at_each_call(gpu):
    a, b, out = *pair(256, 512, 100), Array(3, (256, 512))
    for _ in range(3):
        matmul(a, b, out, config=COPYING)
    assert len(gpu.launches) == 9 and len(gpu.memory) == 2
    assert gpu.launches[:3] == gpu.launches[3:6] == gpu.launches[6:]


def test_a_row_or_a_column_alone_may_have_any_stride(gpu):
    done = launched(
        gpu, Array(1, (1, 100)), Array(2, (104, 100), strides=(208, 2)).T, Array(3, (1, 104))
    )
    assert done.before == [] and done.a[0].strides[1] == 208
    done = launched(gpu, Array(1, (64, 1)), Array(2, (1, 64)), Array(3, (64, 64)))
    assert (done.form.a_major, done.form.b_major) == ("MN", "MN")  # as K their rows are 2 B apart


@pytest.mark.parametrize(("columns", "start"), [(511, 0), (512, 8)])
def test_threads_store_what_tma_would_not(gpu, columns, start):
    a, b = pair(256, columns, 128)
    done = launched(gpu, a, b, Array(3, (256, columns), start=start))
    assert not done.form.addressable and done.out.dtype.name == "u16"


def test_batches(gpu):
    a, b, out = Array(1, (3, 40, 64)), Array(2, (3, 64, 72)), Array(3, (3, 40, 72))
    done = launched(gpu, a, b, out)
    assert (done.sizes.batch, done.sizes.a_stride, done.sizes.b_stride) == (3, 1, 1)
    done = launched(gpu, a, Array(2, (64, 72)), out)  # one matrix of 120 rows
    assert (done.sizes.batch, done.sizes.rows, done.a[0].shape) == (1, 120, (1, 120, 64))
    done = launched(gpu, Array(1, (40, 64)), b, out)
    assert (done.sizes.batch, done.sizes.a_stride, done.sizes.b_stride) == (3, 0, 1)
    expanded = Array(1, (3, 40, 64), strides=(0, 128, 2))
    assert launched(gpu, expanded, b, out).sizes.a_stride == 0
    done = launched(gpu, expanded, Array(2, (64, 72)), out)  # its rows are not 120
    assert (done.sizes.batch, done.sizes.rows, done.a[0].shape) == (3, 40, (1, 40, 64))


def test_sizes_and_blocks(gpu):
    config = Config(128, 256, 2)
    done = launched(gpu, *pair(300, 520, 130 * 8), Array(3, (300, 520)), config=config)
    assert (done.sizes.tile_rows, done.sizes.tile_columns, done.sizes.steps) == (4, 3, 17)
    assert (done.blocks, done.threads) == (12, 384)  # 2 clusters down, 3 across, of 2 blocks
    done = launched(gpu, *pair(8192, 8192, 64), Array(3, (8192, 8192)), config=config)
    assert done.blocks == 128  # 1024 clusters in 16 waves of 64; waves of 66 would be 16, too


def test_stream_k_has_a_slot_for_each_warpgroup_and_a_flag_for_each_warp(gpu):
    a, b, out = *pair(3000, 3000, 3000), Array(3, (3000, 3000))
    for config in (StreamKConfig(), StreamKConfig(cluster=2), StreamKConfig(64, 256)):
        clusters = resident_clusters(config.cluster, 1)
        gpu.memory.clear()
        done = launched(gpu, a, b, out, config=config)
        stream = gpu.launches[-1][3][7]
        *copies, sums, flags = gpu.memory
        slots = clusters * config.cluster * (config.m // 64)
        assert done.blocks == clusters * config.cluster
        assert sums.shape == (slots, 64 * 256) and flags.shape == (4 * slots,)
        tiles = -(-3000 // (config.m * config.cluster)) * 12
        assert stream[:3] == divide(tiles, 47, clusters)[1:]
        places = [x.__cuda_array_interface__["data"][0] for x in (sums, flags)]
        assert [*stream[3:]] == places


def test_stream_k_of_nothing_to_add_up_divides_nothing(gpu):
    done = launched(gpu, *pair(64, 64, 0), Array(3, (64, 64)), config=StreamKConfig())
    assert len(gpu.launches[-1][3]) == 7 and done.sizes.steps == 0


def test_the_fewest_blocks_with_as_many_waves():
    assert [fewest_in_same_waves(tiles, 132) for tiles in (1, 132, 133, 896)] == [1, 132, 67, 128]
    for tiles in range(1, 1000):
        blocks = fewest_in_same_waves(tiles, 132)
        waves = -(-tiles // blocks)
        assert blocks <= 132 and waves == -(-tiles // 132)  # as many waves as with all SMs
        assert blocks == 1 or -(-tiles // (blocks - 1)) > waves  # and more with fewer blocks


def test_few_rows_change_places(gpu):
    bias, residual = Array(4, (4096,)), Array(5, (5, 4096))
    a, b = pair(5, 4096, 4096)
    done = launched(gpu, a, b, Array(3, (5, 4096)), bias=bias, residual=residual)
    config = done.form.config
    assert isinstance(config, SwappedConfig) and (config.n, config.cluster) == (8, 1)
    assert (done.blocks, done.threads) == (4096 // config.m, 32 + 2 * config.m)
    assert (done.sizes.rows, done.sizes.columns, done.sizes.tile_rows) == (5, 4096, 1)
    assert (done.out.shape, done.out.strides[1:]) == ((1, 4096, 5), (2, 8192))
    assert done.old == (0, 0, 0) and done.residual.row == 8192
    wide = launched(gpu, *pair(129, 136, 64), Array(3, (129, 136)))
    assert not isinstance(wide.form, SwappedPlan)


def test_few_rows_of_a_narrow_layer_are_a_cluster_each(gpu):
    done = launched(gpu, *pair(1, 512, 8192), Array(3, (1, 512)))
    config = done.form.config
    assert config.cluster > 1 and done.blocks == 512 // config.m * config.cluster


def test_few_rows_that_lie_along_m_take_a_span_each(gpu):
    """The narrowest swizzle spans 32 B, of which 8 rows of bf16 leave half."""
    done = launched(gpu, *pair(8, 4096, 4096, "NT"), Array(3, (8, 4096)))
    assert (done.form.a_major, done.form.b_major) == ("MN", "MN")
    assert done.form.a_tile == Tile((1, done.form.k, 8), "bf16", Swizzle.B32)


def test_few_rows_of_integers_stay(gpu):
    out = Array(3, (5, 4096), np.int32)
    assert isinstance(launched(gpu, *pair(5, 4096, 4096, dtype=np.int8), out).form, MatmulPlan)


def test_parts_of_k_are_added_up(gpu):
    matmul(
        *pair(64, 66, 1024),
        Array(3, (64, 66)),
        config=Config(64, 64, splits=4),
        bias=Array(4, (66,)),
    )
    (form, *_, arguments), (kernel, blocks, threads, added) = gpu.launches
    assert form.out.name == "f32" and not form.epilogue.changes and form.addressable
    assert arguments[5].splits == 4 and gpu.memory[0].shape == (4, 64, 68)
    assert kernel[0] == "add" and kernel[1].bias.name == "bf16" and gpu.early == [kernel]
    assert blocks * threads >= 64 * 66 and tuple(added[3]) == (1, 64, 66, 4)


@pytest.mark.parametrize(("dtype", "out"), [(BF16, BF16), (E4M3, BF16), ("i1", "i4")])
def test_a_long_k_is_split_unless_sums_are_integers(gpu, dtype, out):
    matmul(*pair(64, 64, 65536, dtype=dtype), Array(3, (64, 64), out))
    (_, *_, arguments), *added = gpu.launches
    assert (arguments[5].splits > 1) == (dtype != "i1") == (len(added) == 1)


def test_what_follows_is_compiled_in(gpu):
    out, vector = Array(3, (256, 512)), Array(4, (512,), np.float32)
    assert launched(gpu, *pair(256, 512, 64), out).form.epilogue == Epilogue()
    done = launched(gpu, *pair(256, 512, 64), out, alpha=2, bias=vector, activation="silu")
    assert done.form.epilogue == Epilogue(alpha=True, bias=as_dtype("f32"), activation="silu")
    assert done.terms.alpha == 2 and done.terms.bias.shape == (2048,) and done.old == 0
    done = launched(gpu, *pair(256, 512, 64), out, beta=1, residual=out, config=Config())
    assert done.old[1] == done.residual[1] == done.form.source_tile
    assert (
        done.form.stages == launched(gpu, *pair(256, 512, 64), out, config=Config()).form.stages - 1
    )


def test_empty_matrices_launch_nothing(gpu):
    matmul(Array(1, (0, 64)), Array(2, (64, 8)), Array(3, (0, 8)))
    matmul(Array(1, (3, 8)), Array(2, (8, 0)), Array(3, (3, 0)))
    assert gpu.launches == []
    done = launched(gpu, Array(1, (64, 0)), Array(2, (0, 64)), Array(3, (64, 64)))
    assert done.sizes.steps == 0


# ----------------------------------------------------------------------------------- errors


def test_mistakes(gpu):
    a, b, out = Array(1, (64, 32)), Array(2, (32, 96)), Array(3, (64, 96))

    def fails(pattern, *arrays, **options):
        with pytest.raises(ValueError, match=pattern):
            matmul(*arrays, **options)

    fails(r"a has shape \(64, 32\) and b \(96, 32\): K is 32 and 96, .* is b transposed\?", a, b.T)
    fails(r"a has shape \(32,\); a matrix has two axes .* a\[None, :\]", Array(1, (32,)), b)
    fails(
        r"a is bf16 and b is f16; the tensor cores multiply bf16", a, Array(2, (32, 96), "f2"), out
    )
    fails(r"a is f64 and b is f64; .* e4m3 with e5m2; i8 with u8", *[Array(1, (8, 8), "f8")] * 3)
    fails(
        r"out has shape \(96, 64\), but \(64, 32\) @ \(32, 96\) has shape \(64, 96\)", a, b, out.T
    )
    fails(
        r"out has .* its last axis must be contiguous, .* multiply b.T @ a.T into out.T",
        *(a, b, Array(3, (96, 64)).T),
    )
    fails("out is i32, but products of bf16 and bf16 are stored as", a, b, out_dtype="i32")
    fails(
        r"a has shape \(2, 64, 32\) and b \(3, 32, 96\): the leading axes",
        Array(1, (2, 64, 32)),
        Array(2, (3, 32, 96)),
    )
    fails("beta is 0.5, which multiplies out, and out is None", a, b, beta=0.5)
    fails("activation is 'relu', 'gelu', 'gelu_tanh' or 'silu'", a, b, out, activation="tanh")
    fails(r"bias has shape \(64,\) of bf16; .* of shape \(96,\)", a, b, out, bias=Array(4, (64,)))
    fails(r"row_scale has shape \(64,\) of bf16; .* of f32", a, b, out, row_scale=Array(4, (64,)))
    fails(r"residual has shape \(96,\)|a matrix has two axes", a, b, out, residual=Array(4, (96,)))
    fails(r"residual has shape \(64, 32\) .* it has that shape too", a, b, out, residual=a)
    many = Array(1, (3, 64, 32)), b, Array(3, (3, 64, 96))
    expanded = Array(4, (3, 64, 96), strides=(0, 192, 2))
    fails("residual has .* no leading axis that is expanded: pass a copy", *many, residual=expanded)
    fails("out has .* and no axis expanded", *many[:2], expanded)
    fails("out has .* and no axis expanded", a, b, Array(3, (64, 96), strides=(0, 2)))
    crooked = Array(1, (64, 32), strides=(256, 4))
    fails("one of its last two axes must be contiguous; pass a contiguous copy", crooked, b, out)
    backwards = Array(1, (64, 32), strides=(-64, 2))
    fails("TMA takes none below 0: pass a contiguous copy", backwards, b, out)
    ints = [Array(i, shape, np.int8) for i, shape in enumerate(((64, 32), (96, 32)))]
    ints = [ints[0], ints[1].T, Array(3, (64, 96), np.int32)]
    fails("out is i32, exact sums that nothing follows; use out_dtype f32", *ints, alpha=2)
    fails("splits=2, whose results are added up as float32", *ints, config=Config(splits=2))
    fails(
        "stages of 196,608 B, and two of them do not fit", a, b, out, config=Config(128, 256, k=512)
    )
    fails("a holds u16, whose bits cannot be f32", Array(1, (8, 8), "u2"), b, out, dtype="f32")


def test_an_array_that_is_not_on_the_gpu_is_named(gpu):
    a, b, out = Array(1, (64, 32)), Array(2, (32, 96)), Array(3, (64, 96))
    host = np.zeros((64, 32), np.float32)
    for arrays, options, name in (
        ((host, b, out), {}, "a"),
        ((a, host.T), {}, "b"),
        ((a, b, out), {"residual": host}, "residual"),
        ((a, b, out), {"bias": [1.0]}, "bias"),
    ):
        with pytest.raises(TypeError, match=rf"^matmul\(\): {name} .*pass a GPU array"):
            matmul(*arrays, **options)


@pytest.mark.parametrize("stream", ["fast", 3.5, object()], ids=["text", "float", "object"])
def test_what_is_no_stream_is_named(gpu, stream):
    with pytest.raises(TypeError, match=r"^matmul\(\): .*stream"):
        matmul(Array(1, (64, 32)), Array(2, (32, 96)), Array(3, (64, 96)), stream=stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 96}, r"Config\(m=96\): m is 64, 128 or 192"),
        ({"n": 40}, r"Config\(n=40\): n is a multiple of 32 up to 256"),
        ({"stages": 1}, "from 2 to 64: one is read while another is filled"),
        ({"k": 64}, "k is 128, 256 or 512 bytes"),
        ({"k": 256, "cluster": 2}, "blocks share tiles that are 128 bytes wide"),
        ({"k": 256, "across": 2}, "blocks share tiles that are 128 bytes wide"),
        ({"cluster": 4, "across": 4}, "a cluster has 16 blocks, and may have 8"),
        ({"n": 96, "cluster": 4}, "which must be a multiple of 16: use another n"),
    ],
)
def test_configurations_that_do_not_work(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


@pytest.mark.parametrize("config", [(64, 8), ScaledConfig(), "fast"], ids=str)
def test_configurations_of_another_kind(gpu, config):
    arrays = Array(1, (8, 8)), Array(2, (8, 8)), Array(3, (8, 8))
    with pytest.raises(
        TypeError, match=r"matmul\(\): config is .*; it is a Config or StreamKConfig or Swapped"
    ):
        matmul(*arrays, config=config)


# ------------------------------------------------------------------------------- the choice


def test_what_is_chosen():
    def chosen(*extents, **kinds):
        config = choose(MatmulProblem(*extents, **kinds), 132)
        return config.m, config.n, config.splits

    assert chosen(4096, 4096, 4096) == chosen(8192, 8192, 1024) == (128, 256, 1)
    assert choose(MatmulProblem(4096, 4096, 4096), 132).cluster == 2
    m, _, splits = chosen(64, 256, 65536)
    assert m == 64 and splits > 4
    assert chosen(64, 256, 65536, splittable=False)[2] == 1


def test_what_is_chosen_for_few_rows():
    for rows in (1, 16, 32):
        config = choose(MatmulProblem(rows, 7168, 16384), 132)
        assert isinstance(config, SwappedConfig) and config.cluster == 1  # tiles enough
        assert config.n == -(-rows // 8) * 8
    assert choose(MatmulProblem(16, 10240, 8192), 132).blocks == 2  # all 160 tiles at once
    assert choose(MatmulProblem(1, 1024, 8192), 132).cluster >= 3
    assert (
        choose(MatmulProblem(1, 64, 0), 132).cluster
        == choose(MatmulProblem(1, 64, 64), 2).cluster
        == 1
    )
    assert isinstance(choose(MatmulProblem(129, 7168, 16384), 132), Config)
    assert choose(MatmulProblem(16, 64, 262144), 132).splits > 8  # more than blocks of a cluster
    assert (
        expected_nanoseconds(MatmulProblem(104, 512, 4096), SwappedConfig(128, 104, 8), 132)
        == math.inf
    )
    assert isinstance(choose(MatmulProblem(1, 7168, 16384, splittable=False), 132), Config)


def test_costs_grow_with_the_problem():
    for config in (SwappedConfig(), SwappedConfig(128, 16, 4), SwappedConfig(blocks=2)):
        costs = [
            expected_nanoseconds(MatmulProblem(8, n, n), config, 132) for n in (256, 1024, 65536)
        ]
        assert costs == sorted(costs)
    for config in CONFIGS:
        costs = [expected_cycles(MatmulProblem(n, n, n), config, 132) for n in (256, 1024, 4096)]
        assert costs == sorted(costs)


def test_candidates_are_different_and_fit():
    for problem in (MatmulProblem(64, 256, 65536), MatmulProblem(4096, 4096, 4096)):
        every = list(candidates(problem, 132))
        assert len(set(every)) == len(every) and every[: len(CONFIGS)] == list(CONFIGS)
        whole = [config for config in every if isinstance(config, Config)]
        assert all(config.splits <= problem.steps(config) for config in whole)
        assert (len(whole) < len(every)) == (problem.rows == 64)


# -------------------------------------------------------------------------------- the tuner


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_what_was_measured_is_looked_up(folder):
    seconds = dict(zip(CONFIGS, itertools.count(9, -1)))
    measured = []

    def measure(config):
        measured.append(config)
        if config == CONFIGS[-1]:
            raise RuntimeError("out of memory")
        return seconds[config]

    assert _matmul_tuner.fastest("one", CONFIGS, measure) == CONFIGS[-2]
    assert measured == list(CONFIGS)
    assert _matmul_tuner.fastest("one", CONFIGS, measure) == CONFIGS[-2]
    assert len(measured) == len(CONFIGS)  # not again
    assert _matmul_tuner.fastest("two", CONFIGS[:1], measure) == CONFIGS[0]
    entries = json.loads((folder / "matmul.json").read_text())
    assert set(entries) == {"one", "two"} and entries["two"]["n"] == 256
    assert [file.name for file in folder.iterdir()] == ["matmul.json"]


def test_errors_of_all_configurations_are_raised(folder):
    def measure(config):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        _matmul_tuner.fastest("one", CONFIGS, measure)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "{", '{"one": {"m": 7}}', '{"one": {"q": 1}}', '{"one": 3}']
)
def test_a_file_that_makes_no_sense_is_replaced(folder, text):
    folder.mkdir()
    (folder / "matmul.json").write_text(text)
    assert _matmul_tuner.known("one") is None
    _matmul_tuner.remember("one", CONFIGS[3])
    assert _matmul_tuner.known("one") == CONFIGS[3]


@pytest.mark.parametrize(
    "fields",
    [{"splits": 10**12}, {"m": 128.0}, {"n": "256"}, {"stages": True}, {"k": None}, {"m": 100}],
)
def test_values_of_the_file_are_checked(folder, fields):
    folder.mkdir()
    entry = {"class": "Config", **dataclasses.asdict(CONFIGS[3]), **fields}
    (folder / "matmul.json").write_text(json.dumps({"one": entry}))
    assert _matmul_tuner.fastest("one", CONFIGS[:2], lambda config: config.n) in CONFIGS[:2]
    assert _matmul_tuner.known("one") in CONFIGS[:2]


def _remember(folder, first):
    os.environ["NUMBA_TMA_CACHE"] = folder
    for n in range(first, first + 8):
        _matmul_tuner.remember(f"key {n}", CONFIGS[3])


def test_writers_at_the_same_time_lose_nothing(folder):
    folder.mkdir()
    workers = [
        multiprocessing.get_context("fork").Process(target=_remember, args=(str(folder), 8 * n))
        for n in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(json.loads((folder / "matmul.json").read_text())) == 32
    assert [file.name for file in folder.iterdir()] == ["matmul.json"]


def test_a_folder_that_stays_locked_is_waited_for_no_longer(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(cache_files, "LOCK_SECONDS", 0.05)
    with cache_files.locked(folder):
        with pytest.warns(RuntimeWarning, match="another process has locked the folder for 0.05 s"):
            _matmul_tuner.remember("one", CONFIGS[3])


def test_what_is_no_file_is_refused(folder):
    folder.mkdir()
    os.mkfifo(folder / "matmul.json")
    with pytest.warns(RuntimeWarning, match="regular file: remove it.*TMA_CACHE names another"):
        assert _matmul_tuner.known("one") is None
    _matmul_tuner.remember("one", CONFIGS[3])  # warned of already
    assert stat.S_ISFIFO((folder / "matmul.json").stat().st_mode)


def test_a_full_disk_leaves_the_old_file_alone(folder, monkeypatch):
    _matmul_tuner.remember("one", CONFIGS[3])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_files.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        _matmul_tuner.remember("two", CONFIGS[3])
    assert [file.name for file in folder.iterdir()] == ["matmul.json"]
    assert _matmul_tuner.known("one") == CONFIGS[3]


def test_a_symbolic_link_is_followed(folder, tmp_path):
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "matmul.json").symlink_to(tmp_path / "elsewhere" / "kept.json")
    _matmul_tuner.remember("one", CONFIGS[3])
    assert (folder / "matmul.json").is_symlink() and _matmul_tuner.known("one") == CONFIGS[3]
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["kept.json"]


@pytest.mark.parametrize(("mode", "expected"), [(0o755, 0o644), (0o775, 0o664), (0o700, 0o600)])
def test_who_shares_the_folder_shares_the_file(folder, mode, expected):
    folder.mkdir()
    folder.chmod(mode)
    _matmul_tuner.remember("one", CONFIGS[3])
    assert stat.S_IMODE((folder / "matmul.json").stat().st_mode) == expected
    (folder / "matmul.json").chmod(0o640)
    _matmul_tuner.remember("two", CONFIGS[3])
    assert stat.S_IMODE((folder / "matmul.json").stat().st_mode) == 0o640


def test_a_process_without_a_home_measures_and_keeps_nothing(monkeypatch):
    monkeypatch.setattr(cache_files, "cache_folder", lambda: None)
    assert _matmul_tuner.fastest("one", CONFIGS[:2], lambda config: config.n) == CONFIGS[0]


@pytest.mark.filterwarnings("ignore:nothing is cached:RuntimeWarning")
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path / "file" / "below"))
    assert _matmul_tuner.fastest("one", CONFIGS[:2], lambda config: config.n) == CONFIGS[0]


def test_tuning_launches_every_configuration_once_and_then_the_best(gpu, folder, monkeypatch):
    arrays = *pair(256, 512, 100), Array(3, (256, 512))
    best = CONFIGS[4]

    def time_on_gpu(launches, stream):
        copies = [kernel.py_func.__name__ for kernel, *_ in gpu.launches[-3:-1]]
        assert copies == ["copy_units"] * 2 and len(launches) >= 3
        return (
            gpu.launches[-1][0].config != best if isinstance(gpu.launches[-1][0], MatmulPlan) else 2
        )

    monkeypatch.setattr(module, "device_name", lambda: "GPU")
    monkeypatch.setattr(module, "time_on_gpu", time_on_gpu)
    monkeypatch.setattr(module, "_tuned_before", {})
    matmul(*arrays, tune=True)
    assert gpu.launches[-1][0].config == best
    count = len(gpu.launches)
    matmul(*arrays, tune=True)
    assert [launch[0] for launch in gpu.launches[count:]] == [
        launch[0] for launch in gpu.launches[-3:]
    ]
    assert len(gpu.launches) == count + 3  # nothing that was measured
    (key,) = json.loads((folder / "matmul.json").read_text())
    assert "GPU, numba_tma" in key and "bf16 K copied x bf16 K copied -> bf16 K" in key


@pytest.mark.parametrize("options", [{}, {"beta": 2.0}, {"residual": None}], ids=str)
def test_what_the_epilogue_reads_is_put_back_after_the_measurements(
    gpu, folder, monkeypatch, options
):
    """Each measurement overwrites `out`, which may be the residual; without either it need not."""
    moved = []
    monkeypatch.setattr(module, "move", lambda *given: moved.append((*given, len(gpu.launches))))
    monkeypatch.setattr(module, "device_name", lambda: "GPU")
    monkeypatch.setattr(module, "time_on_gpu", lambda launches, stream: 1.0)
    monkeypatch.setattr(module, "_tuned_before", {})
    if "residual" in options:
        options = {"residual": Array(3, (256, 512))}
    matmul(*pair(256, 512, 128), Array(3, (256, 512)), tune=True, **options)
    measured = len(gpu.launches) - 1
    assert measured >= len(CONFIGS)
    if not options:
        assert not moved
        return
    (old, saved, _, first), (put, back, _, last) = moved
    assert (first, last) == (0, measured)
    assert old.address == back.address == Array.memory + (3 << 32)
    assert saved.address == put.address != old.address and saved.shape == old.shape


def test_a_timing_is_the_best_of_three_each_of_ten_rounds(monkeypatch):
    """Events of the stream enclose the launches, and the host waits for the second."""
    done, milliseconds = [], iter([30.0, 20.0, 25.0])

    class Event:
        def record(self, stream):
            done.append(("record", stream))

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end):
            assert done[-1] == "wait" and end is not self
            return next(milliseconds)

    monkeypatch.setattr(cuda, "event", Event)
    monkeypatch.setattr(_matmul_tuner, "as_stream", lambda stream: stream + 1)
    launches = [lambda: done.append("one"), lambda: done.append("two")]
    assert _matmul_tuner.time_on_gpu(launches, 6) == pytest.approx(2e-3)
    assert done == 3 * [("record", 7), *10 * ["one", "two"], ("record", 7), "wait"]
