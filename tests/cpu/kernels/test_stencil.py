"""Stencils without a GPU: neighbourhoods, plans, compiled kernels, launches, refusals."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.stencil import api
from numba_tma.kernels.stencil.arrays import as_planes
from numba_tma.kernels.stencil.kernel import stencil_kernel
from numba_tma.kernels.stencil.neighbourhood import reads_of
from numba_tma.kernels.stencil.plan import (
    StencilPlan,
    nbytes_of,
    plan_for,
    planes_of,
    problem_of,
)
from numba_tma.tools import testing
from tests.cpu.host.test_launcher import device_array
from tests.kernels.stencil_functions import behind, box, cross, flux, line

ONE, TWO = 1, 2

# ---------------------------------------------------------------------- neighbourhoods


def test_neighbourhoods_are_found_for_each_array():
    reads = reads_of(flux, None)
    assert (reads.arrays, reads.numbers, reads.outputs) == (("a", "w"), ("c",), 2)
    assert reads.neighbourhoods == (((-1, 1), (0, 1)), ((0, 0), (-2, 0)))
    assert reads.neighbourhood == ((-1, 1), (-2, 1))
    assert reads.radii == ((1, 1), (0, 2))
    assert reads_of(box, None).neighbourhood == ((-1, 1), (-1, 1), (-2, 2))


def test_the_neighbourhood_has_the_element_itself():
    assert reads_of(lambda a: a[2] + a[3], None).neighbourhood == ((0, 3),)
    assert reads_of(lambda a: a[2] + a[3], None).radii == ((3,),)


def test_indices_from_outside_of_the_function():
    three = 3

    def far(a):
        return a[-three, +ONE] + a[TWO * three - ONE, 0]

    assert reads_of(far, None).neighbourhood == ((-3, 5), (0, 1))


def test_a_given_neighbourhood_is_of_computed_indices():
    reads = reads_of(line, ((-3, 4),))
    assert reads.neighbourhoods == (((-3, 4),),)

    def mixed(a, w):
        return sum([a[d] for d in range(2)]) * w[1]

    assert reads_of(mixed, ((-1, 1),)).neighbourhoods == (((-1, 1),), ((1, 1),))


def test_lambdas_of_one_line_are_told_apart():
    first, second = (lambda a: a[1] + a[0]), (lambda a: a[2] + a[0])
    assert [reads_of(f, None).radii for f in (first, second)] == [((1,),), ((2,),)]


@cuda.jit(device=True)
def compiled(a):
    return a[-1, 0] + a[0, 0]


def test_decorated_functions_and_methods_of_the_decorator():
    @tma.stencil
    def plain(a):
        """Say what it does."""
        return a[0, -1]

    assert plain.reads.radii == ((0, 1),) and plain.boundaries == ("constant",) * 2
    assert (plain.__name__, plain.__doc__) == ("plain", "Say what it does.")
    assert repr(plain) == "stencil(plain)"
    assert tma.stencil(compiled, boundary=["edge", "wrap"]).boundaries == ("edge", "wrap")
    assert reads_of(compiled, None).neighbourhood == ((-1, 0), (0, 0))


def computed_index(a):
    total = a[0, 0]
    for i in range(3):
        total += a[i, 0]
    return total


def renamed(a):
    b = a
    return b[0] + a[1]


def written(a):
    a[0] = 1
    return a[0]


def with_default(a, b=1):
    return a[0] * b


def with_rest(*a):
    return a[0]


def shadowed(a):
    ONE = a[0]  # noqa: N806
    return a[ONE]


def without_array(a):
    return a + 1


def without_result(a):
    a[0]


def of_two_counts(a):
    if a[0] > 1:
        return 1, 2
    return a[0]


SOURCELESS = {}
exec("def f(a): return a[0]", SOURCELESS)
SQUARE = ((-1, 1), (-1, 1))
REFUSED = {
    "computed": (computed_index, {}, "has an index that is computed, so that the neighbours are"),
    "repair": (computed_index, {}, "give them as neighbourhood=((-1, 1), (-1, 1),)"),
    "shadowed": (shadowed, {}, "a[ONE], line"),
    "renamed": (renamed, {}, "is an array that is indexed, and stands here without an index"),
    "written": (written, {}, "is written; a stencil returns its result"),
    "default": (with_default, {}, "parameter b=1 is none that a call gives by its place alone"),
    "rest": (with_rest, {}, "parameter *a is none that a call gives by its place alone"),
    "no array": (without_array, {}, "no parameter is indexed; a stencil reads its arrays by"),
    "no result": (without_result, {}, "the function returns nothing"),
    "counts": (of_two_counts, {}, "the function returns 1 or 2 results"),
    "slice": (lambda a: a[0:1], {}, "is indexed with 0:1; an index is an integer"),
    "float": (lambda a: a[0.5], {}, "is indexed with 0.5; an index is an integer"),
    "four": (lambda a: a[0, 0, 0, 0], {}, "a[0, 0, 0, 0] has 4 indices; a stencil has 1 to 3"),
    "axes": (lambda a, b: a[0, 0] + b[0], {}, "a[0, 0] and b[0] have 1 and 2 axes"),
    "no source": (SOURCELESS["f"], {}, "which cannot be read"),
    "built in": (print, {}, "fn is a builtin_function_or_method; it is a function of Python"),
    "mode": ("constant", {}, "stencil(fn='constant'): fn is a function of arrays"),
    "boundary": (cross, {"boundary": "mirror"}, "stencil(boundary='mirror'): boundary is 'const"),
    "kind of boundary": (cross, {"boundary": 3}, "stencil(boundary=3): boundary is 'constant'"),
    "boundaries": (cross, {"boundary": ("edge",)}, "1 boundaries for the 2 indices"),
    "fills": (cross, {"boundary": ("zero", "nan")}, "the copy engine fills with zeros or with"),
    "cval": (cross, {"cval": "a"}, "stencil(cval='a'): cval is a number"),
    "neighbourhood": (cross, {"neighbourhood": 3}, "a neighbourhood is the first and the last"),
    "pair": (cross, {"neighbourhood": ((-1, 1), 2)}, "a neighbourhood is the first and the last"),
    "without 0": (cross, {"neighbourhood": ((1, 2),) * 2}, "it has the element itself, 0"),
    "given axes": (cross, {"neighbourhood": ((-1, 1),)}, "neighbourhood=((-1, 1),) have 1 and 2"),
    "outside": (cross, {"neighbourhood": SQUARE}, "a[0, STEP], line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_and_options_that_are_refused(name):
    fn, options, text = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        tma.stencil(fn, **options)


# ------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@pytest.mark.parametrize("rows", [1, 3, 16, 1000])
@pytest.mark.parametrize("radius", [(0, 0, 0), (1, 1, 1), (0, 0, 90), (0, 100, 3), (12, 2, 2)])
def test_plans_hold_their_radii(radius, rows, dtype):
    dtype = as_dtype(np.dtype(dtype))
    radii = [radius, (0, 0, 0)]
    plan = plan_for(dtype, radii, rows)
    assert problem_of(plan, dtype, radii) == "" and plan.stages > 2 * radius[0]
    assert plan.rows <= max(rows, 2 * rows - 1)
    for loaded, (_, *inner) in zip(plan.boxes(dtype, radii), radii):
        assert loaded == tma.Halo((1, plan.rows, plan.columns), dtype, (0, *inner)).tile
    assert plan.blocks_per_sm * nbytes_of(plan.boxes(dtype, radii), plan.stages) <= 227 << 10


def test_radii_that_no_tile_holds():
    for radii in ([(0, 0, 128)], [(0, 128, 0)], [(200, 60, 60)]):
        assert plan_for(as_dtype("f32"), radii, 1000) is None
    problem = problem_of(StencilPlan(stages=2), as_dtype("f32"), [(1, 0, 0)])
    assert problem == "it has 2 stages, and a window has 3 planes"
    large = StencilPlan(200, 200, stages=4)
    assert "640,000 B in shared memory" in problem_of(large, as_dtype("f32"), [(0, 0, 0)])


def test_chunks_have_enough_blocks_and_few_planes_twice():
    plan = StencilPlan()
    assert planes_of(plan, 512, 1000, 1, 400) == 256  # enough tiles
    assert planes_of(plan, 512, 10, 1, 400) == 13  # one chunk for each block
    assert planes_of(plan, 512, 1, 4, 400) == 32  # a quarter of what is loaded is halo
    assert planes_of(plan, 5, 1000, 4, 400) == 5


def test_axes_of_a_batch_are_planes_or_rows():
    def shape_of(shape, axes, strides=None):
        view = as_planes(api.Array.read("f", "a", device_array(shape, strides=strides)), axes)
        return view.shape, view.strides[1]

    assert shape_of((2, 3, 4, 5), 3) == ((6, 4, 5), 20)
    assert shape_of((2, 3, 4, 5), 2) == ((6, 4, 5), 20)
    assert shape_of((2, 3, 4, 5), 1) == ((1, 24, 5), 20)
    assert shape_of((3, 1, 5), 1, (64, 4, 4)) == ((1, 3, 5), 64)
    assert shape_of((5,), 1)[0] == (1, 1, 5)
    with pytest.raises(ValueError, match="which is no single sequence of rows"):
        shape_of((2, 3, 5), 1, (80, 20, 4))


# ----------------------------------------------------------------------------- kernels


def inspected(stencil, dtype, rows, *numbers):
    """Return what is known of the compiled kernel of a stencil."""
    dtype = as_dtype(dtype)
    radii = [(0,) * (3 - stencil.reads.axes) + r for r in stencil.reads.radii]
    plan = stencil._plan(None, dtype, radii, rows)
    form = stencil._form(plan, dtype, radii)
    bits = getattr(types, f"uint{8 * dtype.itemsize}")
    written = bits if dtype.name in ("f16", "bf16") else getattr(types, dtype.numba)
    signature = (
        *map(tma.map_type, plan.boxes(dtype, radii)),
        *[types.Array(written, 3, "C")] * form.outputs,
        *[types.Array(bits, 3, "A")] * (len(radii) * form.needs_sources),
        *numbers,
        *[types.int64] * 5,
    )
    kernel = stencil_kernel(stencil.fn, form)
    return testing.inspect(kernel, signature, 32 * (plan.warps + 1)).report


def test_no_kernel_needs_local_memory():
    for report in (
        inspected(tma.stencil(box, boundary=("edge", "constant", "wrap")), "f32", 1000),
        inspected(tma.stencil(flux), "bf16", 1000, types.float32),
    ):
        assert report.stack_frame == report.spill_stores == 0


# ---------------------------------------------------------------------------- launches


def test_what_is_launched(monkeypatch):
    """A map for each input, an array for each output, and the sizes; copies where they are due."""
    launches, copies = [], []
    monkeypatch.setattr(api, "launch", lambda kernel, *given: launches.append(given))
    monkeypatch.setattr(api, "sm_count", lambda: 132)
    monkeypatch.setattr(api, "tensor_map", lambda array, tile, oob_fill: (array.shape, oob_fill))
    monkeypatch.setattr(
        api, "as_source", lambda array, *_: copies.append(array.is_loadable) or array
    )
    stencil, volume = tma.stencil(box, boundary=("nan", "wrap", "edge")), (2, 128, 300, 200)
    stencil._prepare(
        [device_array(volume, address=1 << 40), device_array(volume, address=2 << 40)],
        *(None, (), None, None),
    )
    ((blocks, threads, _, x_map, out, source, *sizes),) = launches
    assert (threads, copies, x_map) == (288, [True], ((256, 300, 200), "nan"))
    assert out.shape == source.shape == (256, 300, 200)
    assert sizes == [128, 300, 200, 43, 2 * 19 * 2 * 3] and blocks == 228
    numbers = tma.stencil(flux)
    rows = [device_array((33, 70), address=(1 + i) << 40) for i in range(4)]
    numbers._prepare(rows, None, (np.float64(2),), None, None)
    _, _, _, *arguments = launches[1]
    assert [type(a) for a in arguments[4:5]] == [np.float32]
    assert arguments[5:] == [1, 33, 70, 1, 2]
    assert copies[1:] == [False, False]


def test_the_border_of_numba():
    """Of what neighbours the results must have, and of none along other axes."""
    stencil = tma.stencil(behind, boundary=("constant", "edge"), cval=2)
    form = stencil._form(StencilPlan(), as_dtype("i32"), [(0, 2, 1)])
    assert form.margins == ((0, 0), (-2, 0), (0, 0)) and form.cval == 2
    assert form.boundaries == (None, "constant", "edge") and not form.needs_sources
