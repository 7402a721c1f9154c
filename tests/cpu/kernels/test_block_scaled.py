"""The block-scaled matmul without a GPU: its kernels in registers, its launches, its messages."""

import re
from collections import Counter

import numpy as np
import pytest

from numba_tma.kernels.matmul import Config
from numba_tma.kernels.matmul import block_scaled as module
from numba_tma.kernels.matmul.block_scaled import CONFIGS, block_scaled_matmul
from numba_tma.kernels.matmul.block_scaled_kernel import block_scaled_kernel
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from numba_tma.tools.testing import compile_ptx, find_tool
from tests.cpu.kernels.test_matmul_host import BF16, E4M3, Array
from tests.cpu.kernels.test_matmul_host import gpu as gpu
from tests.kernels import golden_kernels
from tests.kernels.block_forms import scaled_form, scaled_signature
from tests.machine_code import all_in_registers, shortest_loop

needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
TALL = ScaledConfig(256, 128, cluster=2, out_stages=1)
WIDE = ScaledConfig(128, 192, cluster=2, out_stages=1)

FORMS = {
    **{str(config): scaled_form(config) for config in CONFIGS},
    "tall": scaled_form(TALL),
    "wide": scaled_form(WIDE),
    "mixed": scaled_form(ScaledConfig(128, 128), "e5m2"),
    "odd": scaled_form(ScaledConfig(128, 160), addressable=False),
}
QUICK = ("tall", "odd")


def compiled(form):
    return compile_ptx(block_scaled_kernel(form), scaled_signature(form))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FORMS]
)
def test_registers_hold_sums_and_products(name):
    report = all_in_registers(compiled(FORMS[name]))
    if FORMS[name].warpgroups == 2:
        assert report.registers == 168  # of each thread at launch


@needs_nvdisasm
def test_a_step_is_its_products_and_one_multiply_add_for_each_sum():
    config = ScaledConfig(128, 128, cluster=2)
    step = shortest_loop(compiled(scaled_form(config)), lambda code: "QGMMA" in code)
    count = Counter(operation for operation, _ in step)
    assert count["QGMMA"] == 4  # of 32 along K each, and so not unrolled further
    assert count["FFMA"] == 64
    assert count["MOV"] + count["STL"] + count["LDL"] < 8
    # Every second one yields to the products of others, and so keeps no scale for the next.
    assert sum(".reuse" in line for operation, line in step if operation == "FFMA") <= 36
    reads = places(step, r"LDS|LDG|MEMBAR|SHFL|.*TRYWAIT")
    assert len(reads) > 4
    # All that the next stage needs is done while the product is under way.
    assert max(places(step, "QGMMA")) < min(reads)
    assert max(reads) < places(step, "WARPGROUP.DEPBAR")[0]


@needs_nvdisasm
def test_a_step_of_two_products():
    step = shortest_loop(golden_kernels.compiled("block_scaled"), lambda code: "QGMMA" in code)
    products, adds, waits = (places(step, what) for what in ("QGMMA", "FFMA", "WARPGROUP.DEPBAR"))
    assert (len(products), len(adds), len(waits)) == (8, 128, 2)
    assert sum(".reuse" in step[i][1] for i in adds) <= 72
    # A product, the next stage, a wait, additions; a product, the fence, a wait, additions.
    assert products[3] < waits[0] < adds[0] and adds[63] < products[4]
    assert products[7] < waits[1] < adds[64]
    reads, (fence,) = places(step, r"LDS|LDG|SHFL|.*TRYWAIT"), places(step, "MEMBAR")
    assert products[3] < min(reads) and max(reads) < waits[0]
    assert products[7] < fence < waits[1]


def places(step, what):
    """Return where instructions of a step are that begin so."""
    return [i for i, (_, line) in enumerate(step) if re.match(what, line)]


# -------------------------------------------------------------------------- what is launched


@pytest.fixture
def scaled(gpu, monkeypatch):
    """Note the launches of the block-scaled matmul, as `gpu` does those of matmul."""
    monkeypatch.setattr(module, "tensor_map", lambda view, tile, dtype=None: (view, tile, dtype))
    monkeypatch.setattr(module, "block_scaled_kernel", lambda form: form)
    monkeypatch.setattr(module, "sm_count", lambda: 132)
    return gpu


def operands(m, n, k):
    """Return a, b and scales as DeepSeek-V3 has them, and out."""
    blocks = -(-k // 128)
    return (
        *(Array(1, (m, k), E4M3), Array(2, (n, k), E4M3).T),
        *(Array(3, (blocks, m), "f4").T, Array(4, (-(-n // 128), blocks), "f4").T),
        Array(5, (m, n), BF16),
    )


def test_all_is_read_where_it_lies(scaled):
    block_scaled_matmul(*operands(256, 512, 384), config=ScaledConfig())
    ((form, blocks, threads, (a, b, rows, scales, out, sizes)),) = scaled.launches
    assert (form.a_major, form.b_major, form.addressable) == ("K", "K", True)
    assert [x[0].shape for x in (a, b, rows, out)] == [
        *((1, 256, 384), (1, 512, 384), (1, 3, 256), (1, 256, 512))
    ]
    assert (scales.k, scales.column, scales.last) == (4, 12, 3)
    assert (sizes.steps, sizes.tile_rows, sizes.tile_columns) == (3, 2, 4)
    assert (blocks, threads) == (8, 384)


def test_what_tma_cannot_read_is_moved_first(scaled):
    a, b, rows, blocks, out = operands(131, 512, 300)
    block_scaled_matmul(a, b, rows, blocks, out)
    names = [getattr(kernel, "__name__", "") for kernel, *_ in scaled.launches[:-1]]
    assert names == ["copy_units"] * 3
    scaled.launches.clear()
    a, b, _, _, out = operands(256, 512, 384)
    row_major = Array(6, (256, 3), "f4"), Array(7, (3, 4), "f4")
    block_scaled_matmul(a, b, *row_major, out)
    *before, (_, _, _, arguments) = scaled.launches
    assert len(before) == 1 and arguments[3][1:] == (16, 4, 3)


def test_few_tiles_of_a_long_k_are_computed_in_parts(scaled):
    block_scaled_matmul(*operands(64, 64, 16384))
    (form, *_, arguments), (added, *_) = scaled.launches
    assert arguments[5].splits > 1 and form.out.name == "f32" and added[0] == "add"


def test_nothing_is_launched_for_nothing(scaled):
    block_scaled_matmul(*operands(0, 64, 128))
    assert scaled.launches == []


def test_a_configuration_of_another_kind(scaled):
    with pytest.raises(TypeError, match=r"matmul\(\): config is Config.*; it is a ScaledConfig"):
        block_scaled_matmul(*operands(64, 64, 128), config=Config())


def test_mistakes(scaled):
    a, b, rows, blocks, out = operands(64, 256, 384)

    def fails(message, *arrays, **options):
        with pytest.raises(ValueError, match=message):
            block_scaled_matmul(*arrays, **options)

    fails("a is bf16; blocks of e4m3 or e5m2 have scales", Array(1, (64, 384)), b, rows, blocks)
    fails(r"a has shape \(1, 64, 384\); it is one matrix", Array(1, (1, 64, 384), E4M3), b, 0, 0)
    fails(r"K is 384 and 256, .* is b transposed\?", a, b.T, rows, blocks, out)
    fails(
        r"a_scales has shape \(3, 64\) of f32; .* it has shape \(64, 3\)", a, b, rows.T, blocks, out
    )
    wrong = Array(4, (3, 2), "f2")
    fails(r"b_scales has shape \(3, 2\) of f16; .* of f32", a, b, rows, wrong, out)
    fails(
        "out is i32, but results are stored as bf16, f16, f32", a, b, rows, blocks, out_dtype="i32"
    )
    fails(r"out has shape \(256, 64\)", a, b, rows, blocks, Array(5, (256, 64)))
    fails("its last axis must be contiguous", a, b, rows, blocks, Array(5, (256, 64)).T)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 192}, "m is 64, 128 or 256"),
        ({"n": 224}, r"ScaledConfig\(m=128, n=224\): sums and products .* use n=192 or less"),
        ({"m": 256, "n": 160}, "use n=128 or less"),
        ({"k": 256}, "a stage has the 128 elements of K that share a scale: use k=128"),
    ],
)
def test_configurations_that_do_not_work(options, message):
    with pytest.raises(ValueError, match=message):
        ScaledConfig(**options)


def test_a_new_result_is_bf16_unless_named(scaled, monkeypatch):
    made = []

    def empty(function, name, like, shape, dtype):
        made.append((shape, dtype.name))
        return Array(9, shape, {"bf16": BF16}.get(dtype.name, np.dtype("f4")))

    monkeypatch.setattr(module, "empty", empty)
    for options in ({}, {"out_dtype": "f32"}):
        block_scaled_matmul(*operands(64, 256, 384)[:4], **options)
    assert made == [((64, 256), "bf16"), ((64, 256), "f32")]
