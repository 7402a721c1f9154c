"""Block-scaled matmul: the compiled kernels, plans, launches without a GPU, and errors."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from numba_tma.host.arrays import Array as Read
from numba_tma.host.scale_factors import scale_tile
from numba_tma.host.tensor_tiles import part_of_scales, tensor_scales
from numba_tma.kernels.matmul import Config, MmaConfig, Tcgen05Config, dense, matmul, scales
from numba_tma.kernels.matmul import launch as launches
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_tcgen05, tcgen05_candidates
from numba_tma.kernels.matmul.tcgen05_scaled_kernel import tcgen05_scaled_kernel
from numba_tma.tools.testing import compile_ptx
from tests.cpu.kernels.test_matmul_host import Array, blackwell, gpu  # noqa: F401 (a fixture)
from tests.kernels.matmul_forms import EVERYTHING, scaled_form, tcgen05_signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

form = scaled_form
TARGETS = [(10, 0, "a"), (10, 3, "a"), (11, 0, "a")]
PAIR = Tcgen05Config(cta_group=2)
FORMS = {
    "mxfp8": form("mxfp8", epilogue=Epilogue(alpha=True), config=Tcgen05Config(64)),
    "mxfp8 NT": form("mxfp8", layout="NT"),
    "mxfp8 of everything": form("mxfp8", "f32", epilogue=EVERYTHING),
    "mxfp8 pair": form("mxfp8", layout="TT", config=PAIR),
    "mxfp4": form("mxfp4", config=Tcgen05Config(128)),
    "mxfp4 pair": form("mxfp4", config=Tcgen05Config(128, cta_group=2)),
    "nvfp4": form("nvfp4"),
    "nvfp4 pair": form("nvfp4", config=Tcgen05Config(192, cta_group=2)),
    "mxfp6": form("mxfp6", config=Tcgen05Config(192)),
    "mxfp8 with mxfp4": form("mxfp8 with mxfp4", config=Tcgen05Config(128, cta_group=2)),
    "odd nvfp4 pair": form(
        "nvfp4", epilogue=EVERYTHING, addressable=False, config=Tcgen05Config(64, cta_group=2)
    ),
}


def compiled(name, cc=TARGETS[0]):
    plan = FORMS[name]
    return compile_ptx(tcgen05_scaled_kernel(plan), tcgen05_signature(plan), cc=cc)


@pytest.mark.parametrize("name", quick(["mxfp8"], FORMS))
def test_nothing_is_in_local_memory(name):
    all_in_registers(compiled(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4 pair", "nvfp4 pair", "mxfp6"])
@pytest.mark.parametrize("cc", TARGETS[1:])
def test_every_target(cc, name):
    all_in_registers(compiled(name, cc))


#: Of a stage: products and their form, copies of scale factors (atoms of a and of b).
STAGES = [
    ("mxfp8", "cta_group::1.kind::mxf8f6f4.block_scale.block32", 1 + 1),
    ("mxfp4 pair", "cta_group::2.kind::mxf4.block_scale.block32", 2 + 2),
    ("nvfp4 pair", "cta_group::2.kind::mxf4nvf4.block_scale.block16", 4 + 8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "product", "copies"), STAGES)
def test_a_stage_is_its_copies_and_four_products(name, product, copies):
    ptx = compiled(name)
    found = re.findall(r"\btcgen05\.(?:mma|cp|commit)\.\S*", ptx)
    group = product.split(".")[0]
    copy = f"tcgen05.cp.{group}.32x128b.warpx4"
    stage = [*([copy] * copies), *([f"tcgen05.mma.{product}"] * 4)]
    assert [each for each in found if "commit" not in each] == stage
    assert len(found) >= len(stage) + 2  # commits of the stages, and of the accumulator
    assert all(f".{group}." in each for each in found)


def test_plans():
    one, pair = form("nvfp4", config=Tcgen05Config(192)), form("mxfp8", config=PAIR)
    assert (one.k, one.sfa_tile.shape, one.sfb_tile.shape) == (256, (1, 4, 2, 256), (2, 4, 2, 256))
    assert (one.scale_columns, one.accumulators, one.stages) == (16 + 32, 2, 4)
    assert (pair.k, pair.a_tile.shape, pair.b_tile.shape) == (128, (1, 128, 128), (1, 128, 128))
    # Two accumulators of 256 columns would leave none for scale factors.
    assert (pair.scale_columns, pair.accumulators, pair.stages) == (4 + 8, 1, 5)
    with pytest.raises(ValueError, match=r"begins at a multiple of 64 .*: use n=64, 128, 192 or"):
        form("mxfp8", config=Tcgen05Config(96))


def test_choices_are_widths_of_whole_half_atoms():
    assert {config.n for config in tcgen05_candidates(scaled=True)} == {64, 128, 192, 256}
    sizes = [(rows, columns) for rows in (1, 256, 1024, 8192) for columns in (8, 600, 8192)]
    chosen = [choose_tcgen05(MatmulProblem(*size, 4096), 148, scaled=True) for size in sizes]
    assert all(config.n % 64 == 0 for config in chosen)
    assert (chosen[0].n, chosen[-1]) == (64, PAIR)


@pytest.mark.parametrize(("rows", "k_atoms"), [(1, 1), (1, 4), (3, 2)])
def test_maps_of_scales_cover_the_atoms_that_there_are(rows, k_atoms):
    """An atom has the scales of 128 rows and, of mxfp8, of 128 elements of K: 512 B."""
    e4m3, ue8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    a, b = (Array(i, (128 * rows, 128 * k_atoms), e4m3) for i in (1, 2))
    a, b = Read.read("matmul", "a", a), Read.read("matmul", "b", b.T)
    held = (Array(i, (rows, k_atoms, 2, 256), ue8m0) for i in (3, 4))
    for source in scales.read_scales(a, b, *held, None).as_map_sources(None, []):
        assert source.shape == (rows, k_atoms, 2, 256)


def test_rows_of_scale_factors():
    factors = tensor_scales(scale_tile(256, 128), None, 1)
    assert part_of_scales(factors, 64, 192).rows == part_of_scales(factors, None, 192).rows == 192
    for row, num, text in [
        (0, 96, "num is 96; .* a multiple of 64 up to 256"),
        (0, 320, "num is 320"),
        (128, 192, "row is 128 and num 192; .* a multiple of 64 up to 64"),
        (32, 64, "row is 32"),
    ]:
        with pytest.raises(ValueError, match=text):
            part_of_scales(factors, row, num)


# ------------------------------------------------------------------------------- launches

E4M3, E5M2, E8M0, BF16 = map(
    np.dtype,
    (
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
        *(ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16),
    ),
)
U8 = np.dtype(np.uint8)


@pytest.fixture
def b200(gpu, monkeypatch):  # noqa: F811
    """Note what is launched on a GPU with tcgen05; kernels are their plans."""
    blackwell(monkeypatch)
    monkeypatch.setattr(launches, "tcgen05_scaled_kernel", lambda plan: plan)
    monkeypatch.setattr(scales, "has_tcgen05", lambda: True)
    return gpu


def mxfp8(m=256, n=512, k=256, **given):
    """Return the arguments of a product of mxfp8, with some replaced."""
    high = [-(-rows // 128) * -(-k // 128) * 512 for rows in (m, n)]
    return {
        "a": Array(1, (m, k), E4M3),
        "b": Array(2, (n, k), E5M2).T,
        "a_scales": Array(4, (high[0],), E8M0),
        "b_scales": Array(5, (high[1],), E8M0),
        "out": Array(3, (m, n), BF16),
        **given,
    }


def nvfp4(m=256, n=512, k=256, scale=E4M3, **given):
    high = [-(-rows // 128) * -(-k // 64) * 512 for rows in (m, n)]
    return {
        "a": Array(1, (m, k // 2), U8),
        "b": Array(2, (n, k // 2), U8).T,
        "a_scales": Array(4, (high[0],), scale),
        "b_scales": Array(5, (high[1],), scale),
        "out": Array(3, (m, n), BF16),
        "dtype": "e2m1",
        **given,
    }


def launched(gpu, **given):  # noqa: F811
    """Return the plan, and the arguments of its launch."""
    gpu.launches.clear()
    matmul(**given)
    *_, (plan, _, _, arguments) = gpu.launches
    return plan, arguments


def test_operands_and_scales_are_read_as_they_lie(b200):
    plan, (a, b, sfa, sfb, _, _, _, extents, _) = launched(b200, **mxfp8(200, 300, 288))
    assert (plan.a.name, plan.b.name, str(plan.factors)) == (
        *("e4m3", "e5m2"),
        "a ue8m0 for 32 elements",
    )
    assert [m[0].shape for m in (a, b, sfa, sfb)] == [
        *((1, 200, 288), (1, 300, 288)),
        *((2, 3, 2, 256), (3, 3, 2, 256)),
    ]
    assert [m[0].dtype.name for m in (sfa, sfb)] == ["ue8m0"] * 2
    assert (extents.steps, len(b200.launches), b200.memory) == (3, 1, [])


def test_packed_elements_and_bytes_of_scales(b200):
    given = nvfp4(scale=U8, scale_dtype="e4m3")
    plan, (a, b, sfa, sfb, *_, extents, _) = launched(b200, **given)
    assert (plan.a.name, plan.factors.block, extents.steps) == ("e2m1", 16, 1)
    assert (a[0].shape, a[2].name, a[1].shape) == ((1, 256, 128), "e2m1", (1, 128, 256))
    assert sfb[0].shape == (4, 4, 2, 256) and sfb[0].dtype.name == "ue4m3"
    half = [Array(i, (rows * 2 * 512,), U8) for i, rows in ((4, 2), (5, 4))]
    given = nvfp4(a_scales=half[0], b_scales=half[1], scale_dtype="ue8m0")
    assert launched(b200, **given)[0].factors.block == 32


def test_6_bits_and_mixes_with_4(b200):
    given = mxfp8(a=Array(1, (256, 192), U8), dtype=("e2m3", None))
    plan, (a, b, sfa, *_, extents, _) = launched(b200, **given)
    assert (plan.a.name, plan.b.name, plan.k, extents.steps) == ("e2m3", "e5m2", 128, 2)
    assert (a[0].shape, a[1].nbytes, a[1].shared_nbytes) == ((1, 256, 192), 128 * 96, 128 * 128)
    given = mxfp8(b=Array(2, (512, 128), U8).T, dtype=(None, "e2m1"))
    plan, (_, b, *_) = launched(b200, **given)
    assert (plan.a.name, plan.b.name, b[2].name) == ("e4m3", *["e2m1_unpacked"] * 2)


def test_rows_that_tma_cannot_address_are_copied_first(b200):
    b_scales = Array(5, (4 * 512,), E4M3, start=8)
    launched(b200, **nvfp4(k=48, b_scales=b_scales))  # rows of 24 B, and atoms at 8 B
    assert len(b200.launches) == 4 and [m.shape for m in b200.memory] == [
        *((1, 256, 32), (1, 512, 32), (1, 4, 512)),
    ]


def test_a_second_call_repeats_the_launch_unless_scales_lie_elsewhere(b200):
    given = mxfp8()
    for _ in range(2):
        matmul(**given)
    matmul(**{**given, "a_scales": Array(6, (2048,), E8M0)})
    first, second, other = (arguments for *_, arguments in b200.launches)
    assert first is second and other[2][0].address != first[2][0].address


def test_measurements_of_scaled_products_have_entries_of_their_own(b200):
    given = mxfp8()
    arrays = [given.get(name) for name in ("a", "b", "out", *[""] * 4, "a_scales", "b_scales")]
    call = dense._call(tuple(arrays), (1.0, 0.0), (None, None, None), None, None)
    assert "e4m3 K x e5m2 K scaled by a ue8m0 for 32 elements -> bf16 K" in str(call)


def test_matrices_of_part_of_an_atom_are_not_merged(b200):
    def batch(rows):
        given = mxfp8(2 * 128, 512, 256)
        given["a"] = Array(1, (2, rows, 256), E4M3)
        given["out"] = Array(3, (2, rows, 512), BF16)
        return launched(b200, **given)[1][-2].batch

    assert (batch(128), batch(96)) == (1, 2)


# --------------------------------------------------------------------------------- errors

FLOATS = np.dtype(np.float32)
WRONG = [
    (mxfp8(b_scales=None), "a_scales is given and b_scales is None: both operands have"),
    (
        mxfp8(a_scales=Array(4, (2048,), FLOATS)),
        "a is e4m3 with a_scales of f32, .* e2m1 with a ue4m3 for 16 elements .nvfp4.; .*"
        r"e5m2 or e3m2 .* 32 elements .mxfp8, mxfp6 and mixes.; float32 .* block_scaled_matmul\(\)",
    ),
    (mxfp8(a_scales=Array(4, (2048,), E4M3)), "a is e4m3 with a_scales of ue4m3, and b is e5m2"),
    (mxfp8(a=Array(1, (256, 256), BF16)), "a is bf16 with a_scales of ue8m0"),
    (nvfp4(a_scales=Array(4, (2048,), E8M0)), "a_scales of ue8m0, and b is .* of ue4m3"),
    (
        nvfp4(scale=U8),
        "a_scales holds u8, and scales of e2m1 are ue4m3 .nvfp4. or ue8m0 .mxfp4.: give "
        "scale_dtype='ue4m3' or 'ue8m0'",
    ),
    (nvfp4(a_scales=None, b_scales=None), "elements of 4 and 6 bits have scale factors: give"),
    (
        mxfp8(a_scales=Array(4, (1024,), E8M0)),
        r"a_scales has shape \(1024,\), 1,024 B; a has 256 x 8 scales in 2 x 2 atoms of 128 x 4, "
        r"2,048 B together: use to_blocked\(scales\)",
    ),
    (
        mxfp8(a_scales=Array(4, (256, 8), E8M0)),
        r"a_scales has shape \(256, 8\), that of scales which are not in atoms",
    ),
    (
        mxfp8(b_scales=Array(5, (8, 512), E8M0).T),
        r"b_scales has shape \(512, 8\), that of scales which are not in atoms",
    ),
    (
        mxfp8(b_scales=Array(5, (4, 2, 512), E8M0, strides=(2048, 1024, 1))),
        r"b_scales has shape \(4, 2, 512\) and strides .* atoms of scales follow each other: pass",
    ),
    (
        mxfp8(k=264),
        "K is 264, and a scale is a ue8m0 for 32 elements: pad K .* to a multiple of 32",
    ),
    (nvfp4(k=40), "K is 40, and a scale is a ue4m3 for 16 elements: .* to a multiple of 16"),
    (
        mxfp8(k=160, a=Array(1, (256, 120), U8), dtype=("e2m3", None)),
        "K is 160, and a copy takes 128 e2m3 along K: pad K .* with zeros to a multiple of 128",
    ),
    (mxfp8(a=Array(1, (256, 160), U8), dtype=("e2m3", None)), "K is 213 and 256, and must be the"),
    (mxfp8(out=Array(3, (256, 512), np.dtype(np.int32)), out_dtype="i32"), "out is i32, but pro"),
    (mxfp8(config=Config()), r"config is Config\(.*, whose kernel has no scale factors: use a Tc"),
    (mxfp8(config=MmaConfig()), r"config is MmaConfig\(.*, whose kernel has no scale factors"),
    (mxfp8(config=Tcgen05Config(96)), "use n=64, 128, 192 or 256"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=range(len(WRONG)))
def test_errors(b200, given, text):
    with pytest.raises(ValueError, match=text):
        matmul(**given)
    assert b200.launches == []


@pytest.mark.parametrize(
    ("given", "name", "cc", "text"),
    [
        (
            *(mxfp8(), "NVIDIA H200", (9, 0)),
            "a is e4m3 and b is e5m2, with a ue8m0 for 32 elements: NVIDIA H200 has compute "
            r"capability 9.0, and .* of 10.0, 10.3 and 11.0: .*; on this GPU block_scaled_matmul",
        ),
        (nvfp4(), "RTX PRO 6000", (12, 0), "RTX PRO 6000 has .* 12.0, .* in bf16 .dequantize.$"),
    ],
)
def test_another_gpu_is_named(gpu, monkeypatch, given, name, cc, text):  # noqa: F811
    monkeypatch.setattr(scales, "has_tcgen05", lambda: False)
    monkeypatch.setattr(scales, "device_name", lambda: name)
    monkeypatch.setattr(scales, "capability", lambda: cc)
    for config in (None, Tcgen05Config()):
        with pytest.raises(ValueError, match=text):
            matmul(**given, config=config)


# -------------------------------------------------------------------------- the page's model

#: Bytes of shared memory that an SM of a B200 reads or writes in a cycle; multiply-adds of bf16.
SHARED_RATE, PRODUCT_RATE = 128, 4096
FASTER = {"mxfp8": 2, "mxfp4": 4, "nvfp4": 4}  # than bf16
MODEL = [
    (name, group, n)
    for name in ("mxfp8", "nvfp4")
    for group, n in ((1, 128), (1, 192), (1, 256), (2, 128), (2, 192), (2, 256))
]


@pytest.mark.parametrize(("name", "group", "n"), MODEL)
def test_the_model_in_the_documentation(name, group, n):
    plan = form(name, config=Tcgen05Config(n, cta_group=group))
    products = plan.accumulator.size * plan.k // (PRODUCT_RATE * FASTER[name])
    operands = (plan.a_tile.nbytes + plan.b_tile.nbytes) // SHARED_RATE
    factors = sum(tile.nbytes for tile in plan.scale_tiles) // SHARED_RATE
    kind = "pair" if group == 2 else "one block"
    row = (
        f"| {name} | {kind} | {plan.rows} x {n} | {products} | {operands} + {operands} | "
        f"{factors} + {factors} | {plan.stages} | {plan.accumulators} |"
    )
    page = Path(__file__).parents[3] / "docs" / "kernels" / "matmul.md"
    assert row in page.read_text(), row
