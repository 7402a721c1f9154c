"""The grouped matmul without a GPU: its kernels in registers, its launches, its messages."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import grouped as module
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.choice import ROW_CLUSTERS, MatmulProblem
from numba_tma.kernels.matmul.grouped import grouped_matmul
from numba_tma.kernels.matmul.grouped_kernel import grouped_kernel
from numba_tma.kernels.matmul.plan import Config, StreamKConfig, SwappedConfig
from numba_tma.tools.testing import compile_ptx
from tests.cpu.kernels.test_matmul_host import BF16, E4M3, Array
from tests.cpu.kernels.test_matmul_host import gpu as gpu
from tests.kernels.block_forms import grouped_signature
from tests.kernels.matmul_forms import form
from tests.machine_code import all_in_registers

ALPHA = Epilogue(alpha=True)
#: Forms, and whether groups are told by their ends, lie apart, and have scales.
FORMS = {
    "pairs": (form(config=Config(cluster=2)), False, False, False),
    "ends": (form(config=Config(cluster=2)), True, False, False),
    "apart": (form(layout="TT", config=Config(cluster=2)), False, True, False),
    "scales": (form("e4m3", epilogue=ALPHA, config=Config(cluster=2)), False, False, True),
    "odd": (form(addressable=False, epilogue=ALPHA), True, False, True),
    **{str(config): (form(config=config), False, False, False) for config in ROW_CLUSTERS},
}
QUICK = ("odd",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FORMS]
)
def test_registers_hold_everything(name):
    shape, *options = FORMS[name]
    ptx = compile_ptx(grouped_kernel(shape, *options), grouped_signature(shape, options[-1]))
    all_in_registers(ptx)


@pytest.fixture
def grouped(gpu, monkeypatch):
    """Note the launches of the grouped matmul, as `gpu` does those of matmul."""
    for name in ("tensor_map", "ragged_tensor_map"):
        monkeypatch.setattr(
            module, name, lambda view, tile, name=name, **options: (name, view, tile, options)
        )
    monkeypatch.setattr(module, "grouped_kernel", lambda *of: of)
    monkeypatch.setattr(module, "sm_count", lambda: 132)
    return gpu


I4, F4 = np.dtype(np.int32), np.dtype(np.float32)


def operands(m, n, k, groups, dtype=BF16):
    """Return a, b, sizes and out."""
    a, b = Array(1, (m, k), dtype), Array(2, (groups, k, n), dtype)
    if dtype == E4M3:
        b = Array(2, (groups, k, n), dtype, strides=(n * k, 1, k))
    return a, b, Array(3, (groups,), I4), Array(4, (m, n), BF16)


def test_a_launch(grouped):
    config = Config(128, 256, 2)
    grouped_matmul(*operands(1000, 512, 256, 5), config=config)
    ((kernel, blocks, threads, arguments),) = grouped.launches
    assert kernel[0].b_major == "MN" and kernel[1:] == (False, False, False)
    a, b, out, groups, extents, alpha = arguments
    # Without split-K, and with one matrix of rows, whatever their number.
    assert tuple(extents) == (1000, 512, 0, 2, 1, 0, 0, 1, 1)
    assert (a[1].shape, b[1].shape, out[1].shape) == ((1, 1000, 256), (5, 256, 512), (1, 1000, 512))
    assert out[0] == "ragged_tensor_map" and out[3] == {"axis": 1}
    assert (groups.total, groups.apart, groups.tile_columns, groups.steps) == (5, 0, 2, 4)
    # Groups end anywhere: 3 clusters down for whole ones, and one more for each group, 2 across.
    assert (blocks, threads, alpha) == (2 * 2 * (3 + 5), 384, 1)


def test_groups_in_their_places(grouped):
    _, b, sizes, _ = operands(0, 512, 256, 5)
    grouped_matmul(Array(1, (5, 300, 256)), b, sizes, Array(4, (5, 300, 512)), config=Config())
    ((kernel, blocks, _, (a, _, out, groups, *_)),) = grouped.launches
    assert kernel[1:] == (False, True, False) and groups.apart == 300
    assert a[1].shape == (1, 1500, 256) and out[1].shape == (1, 1500, 512) and blocks == 5 * 3 * 2


def test_ends_and_scales(grouped):
    a, b, ends, out = operands(100, 512, 256, 5, E4M3)
    scales = Array(5, (5,), F4)
    grouped_matmul(a, b, None, out, offsets=ends, scales=scales, alpha=0.5)
    ((kernel, _, _, (*_, groups, _, alpha)),) = grouped.launches
    assert kernel[1:] == (True, False, True) and kernel[0].epilogue == ALPHA
    assert groups.scales.shape == (20,) and alpha == 0.5


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_results_are_scaled_only_if_a_factor_is_given(grouped, alpha, scaled):
    scales = Array(5, (5,), F4) if scaled else None
    grouped_matmul(*operands(100, 512, 256, 5), scales=scales, alpha=alpha)
    *_, (kernel, _, _, (*_, groups, _, given)) = grouped.launches
    assert kernel[0].epilogue.alpha == (scaled or alpha != 1) and given == alpha
    assert kernel[3] == scaled and (scaled or groups.scales == 0)


def test_threads_store_what_tma_would_not(grouped):
    grouped_matmul(*operands(100, 511, 256, 5))
    (*_, (_, _, _, arguments)) = grouped.launches
    assert arguments[2].dtype.name == "u16"


def test_a_long_k_of_few_rows_is_not_split(grouped):
    grouped_matmul(*operands(8, 64, 1 << 17, 1))
    *_, (kernel, *_) = grouped.launches
    assert kernel[0].config.splits == 1


@pytest.mark.parametrize(("m", "groups"), [(100, 1), (100, 5), (1000, 7), (3, 5)])
def test_the_usual_group_has_an_equal_share_of_the_rows(grouped, monkeypatch, m, groups):
    asked = []
    monkeypatch.setattr(module, "choose_from", lambda *given: asked.append(given) or Config())
    grouped_matmul(*operands(m, 512, 256, groups))
    rows = max(1, -(-m // groups))
    assert asked == [(ROW_CLUSTERS, MatmulProblem(rows, 512, 256, groups, 2, 2, False), 132)]


@pytest.mark.parametrize("config", [Config(64, 128), Config(128, 256, 2), Config(128, 64)])
@pytest.mark.parametrize(("rows", "groups", "n"), [(1, 1, 8), (128, 3, 256), (9000, 2, 264)])
def test_no_more_blocks_than_tiles_of_any_groups(grouped, rows, groups, n, config):
    """Rows of each group, of which all may end within a tile; a cluster has its tiles together."""
    height, across = config.m * config.cluster, -(-n // config.n)
    resident = 132 // config.cluster
    a, b, sizes, out = operands(rows * groups, n, 64, groups)
    grouped_matmul(a, b, sizes, out, config=config)
    most = (rows * groups // height + groups) * across
    apart = Array(1, (groups, rows, 64)), b, sizes, Array(4, (groups, rows, n), BF16)
    grouped_matmul(*apart, config=config)
    exact = groups * -(-rows // height) * across
    wanted = [min(resident, tiles) * config.cluster for tiles in (most, exact)]
    assert [launch[1] for launch in grouped.launches] == wanted
    steps = [(launch[3][3].tile_columns, launch[3][3].steps) for launch in grouped.launches]
    assert steps == [(across, 1)] * 2


TYPES = ("bf16", "f16", "e4m3", "e5m2", "f32")
OUTS = {"bf16": "bf16 f32 f16", "f16": "f16 f32 bf16", "e4m3": "bf16 f16 f32"}


@pytest.mark.parametrize(("left", "right"), [*itertools.product(TYPES, repeat=2)])
def test_which_types_are_multiplied_and_stored(left, right):
    """Those of one width and kind; the first result is the one that is not named."""
    eights = {left, right} <= {"e4m3", "e5m2"}
    outs = OUTS.get("e4m3" if eights else left, "").split() if eights or left == right else []
    a, b = (
        SimpleNamespace(dtype=as_dtype(kind), shape=shape)
        for kind, shape in ((left, (8, 64)), (right, (2, 64, 16)))
    )
    taken = []
    for name in TYPES:
        try:
            taken.append(module._result(a, b, as_dtype(name))[1].name)
        except ValueError:
            continue
    assert set(taken) == set(outs) and len(taken) == len(outs)
    if outs:
        assert module._result(a, b, None) == ((8, 16), as_dtype(outs[0]))


@pytest.mark.parametrize("config", [StreamKConfig(), SwappedConfig(), 3, "fast"])
def test_a_configuration_of_another_kind(grouped, config):
    with pytest.raises(TypeError, match=r"grouped_matmul\(\): config is .*; it is a Config, from"):
        grouped_matmul(*operands(100, 512, 256, 5), config=config)


def test_nothing_is_launched_for_nothing(grouped):
    grouped_matmul(*operands(0, 512, 256, 5))
    grouped_matmul(*operands(100, 512, 256, 0))
    assert grouped.launches == []


def test_mistakes(grouped):
    a, b, sizes, out = operands(100, 512, 256, 5)

    def fails(message, *arrays, **options):
        with pytest.raises(ValueError, match=message):
            grouped_matmul(*arrays, **options)

    fails("a is bf16 and b is e4m3; groups are multiplied", a, operands(1, 8, 256, 2, E4M3)[1])
    fails(r"a has shape \(100, 256\) and b \(256, 512\); b is", a, Array(2, (256, 512)), sizes, out)
    fails("with the same K; is b transposed", a, Array(2, (5, 512, 256)), sizes, out)
    fails(r"and a \(M, K\) or \(groups, rows, K\)", Array(1, (4, 25, 256)), b, sizes, out)
    fails("neither given; pass group_sizes", a, b, None, out)
    fails("offsets given; pass group_sizes", a, b, sizes, out, offsets=sizes)
    places = Array(1, (5, 20, 256)), b, None, Array(4, (5, 20, 512))
    fails("offsets given; pass group_sizes", *places, offsets=sizes)
    fails(r"group_sizes has shape \(5,\) of i64; .* of i32", a, b, Array(3, (5,), "i8"), out)
    fails(r"offsets has shape \(6,\) of i32", a, b, None, out, offsets=Array(3, (6,), I4))
    fails(
        r"scales has shape \(5,\) of f16; .* of f32", a, b, sizes, out, scales=Array(5, (5,), "f2")
    )
    fails(r"out has shape \(512, 100\)", a, b, sizes, out.T)
    fails("its last axis must be contiguous and its rows", Array(1, (256, 100)).T, b, sizes, out)
    fails("out shares memory with a", a, b, sizes, Array(1, (100, 512), BF16))
    fails("out shares memory with group_sizes", a, b, sizes, Array(3, (100, 512), BF16))
    fails("out is i32, but products of bf16 and bf16", a, b, sizes, out_dtype="i32")
    fails("config has splits=2: use splits=1", a, b, sizes, out, config=Config(splits=2))
    fails("config has across=2: use across=1", a, b, sizes, out, config=Config(across=2))
