"""What functions over rows pass to their kernels: addresses, strides, sizes and the number."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.rows import launching
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.plan import RowArrays, RowMemory, RowSizes
from numba_tma.kernels.rows.reductions import row_argmax, row_sum
from numba_tma.kernels.rows.softmax import softmax
from tests.cpu.host.test_launcher import device_array
from tests.cpu.kernels.test_wrappers import gpu  # noqa: F401 (a fixture)

ROWS, COLUMNS = 6, 40
_places = itertools.count(1)  # launches of another test's arrays are not repeated


def rows(pitch=4 * COLUMNS, start=0, dtype=np.float32, shape=(ROWS, COLUMNS)):
    address = (1 << 43) + (next(_places) << 20) + start
    return device_array(shape, dtype, strides=(pitch, np.dtype(dtype).itemsize), address=address)


def vector(size, dtype=np.float32, start=0):
    return device_array((size,), dtype, address=(1 << 43) + (next(_places) << 20) + start)


def address(array):
    return 0 if array is None else array.__cuda_array_interface__["data"][0]


def memory(array):
    return RowMemory(address(array), array.strides[0] if array is not None else 0)


OPTIONS = {
    "weight": lambda: vector(COLUMNS), "bias": lambda: vector(COLUMNS), "residual": rows,
    "residual_out": lambda: rows(pitch=176), "mean": lambda: vector(ROWS),
    "rstd": lambda: vector(ROWS),
}  # fmt: skip


@pytest.mark.parametrize(
    "names", [[name] for name in OPTIONS] + [[], list(OPTIONS), list(OPTIONS)[::2]], ids="-".join
)
def test_each_array_of_a_norm_has_its_place(gpu, names):  # noqa: F811
    given = {name: OPTIONS[name]() for name in names}
    x, out = rows(pitch=192), rows(pitch=208)
    weight, bias = (given.pop(name, None) for name in ("weight", "bias"))
    assert layernorm(x, weight, bias, out=out, eps=0.25, stream=7, **given) is out
    ((kernel, blocks, threads, stream, arrays, sizes, number),) = gpu.launches
    residual, total, mean, rstd = map(given.get, ("residual", "residual_out", "mean", "rstd"))
    assert arrays == RowArrays(
        memory(x), memory(residual), address(weight), address(bias), memory(out), memory(total),
        (address(mean), address(rstd)),
    )  # fmt: skip
    assert (sizes, number, stream) == (RowSizes(ROWS, COLUMNS // 4, COLUMNS), 0.25, 7)


@pytest.mark.parametrize("name", ["weight", "bias", "residual", "residual_out", "mean", "rstd"])
def test_a_kernel_is_compiled_for_what_a_call_has(name):
    """Statistics are two, and one that counts columns makes sums an index."""
    x, place = rows(), {"mean": 0, "rstd": 1}.get(name)
    both = tuple(vector(1) if i == place else None for i in range(2))
    given = {"statistics": both} if place is not None else {name: x}
    read = {key: SimpleNamespace(dtype=as_dtype("f32")) for key in given if key == name}
    read |= {"statistics": tuple(n and SimpleNamespace(dtype=as_dtype("f32")) for n in both)}
    options = launching.RowOperands(x, **read).options
    assert options.statistics == tuple(n is not None for n in both)
    flags = {n: getattr(options, n) for n in ("weight", "bias", "residual", "residual_out")}
    assert flags == {n: n == name for n in flags} and not options.output and not options.index
    places = launching.RowOperands(x, x, statistics=(None, SimpleNamespace(dtype=as_dtype("i64"))))
    assert places.options.index and places.options.output


X = (ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: {"weight": vector(COLUMNS + 1)}, "weight has shape (41,) of f32, but x has 40"),
        (lambda: {"weight": vector(COLUMNS, np.float16)}, "weight has shape (40,) of f16, but x"),
        (lambda: {"bias": vector(COLUMNS, np.float16)}, "bias has shape (40,) of f16, but x"),
        (lambda: {"mean": vector(ROWS + 1)}, "mean has shape (7,) of f32; it takes one f32"),
        (lambda: {"rstd": vector(ROWS, np.float16)}, "rstd has shape (6,) of f16; it takes"),
        (
            lambda: {"rstd": device_array((ROWS,), strides=(8,), address=1 << 44)},
            "rstd has shape (6,) and strides (8,) B: its last axis must be contiguous",
        ),
        (
            lambda: {"residual": device_array(X, strides=(160, 8), address=1 << 44)},
            "residual has shape (6, 40) and strides (160, 8) B: its last axis must be contig",
        ),
        (lambda: {"out": device_array(X, np.float16, address=1 << 44)}, "out"),
    ],
)
def test_what_a_norm_refuses(gpu, wrong, text):  # noqa: F811
    given = {"x": rows(), "out": rows()} | wrong()
    with pytest.raises((TypeError, ValueError)) as caught:
        layernorm(given.pop("x"), given.pop("weight", None), given.pop("bias", None), **given)
    assert text in str(caught.value) and not gpu.launches


def test_matrices_of_rows_are_one_sequence(gpu):  # noqa: F811
    """Rows and statistics may have more axes, which are strided as one is."""

    def of(*strides, shape=(2, 3, 40)):
        return device_array(shape, strides=strides, address=address(rows()))

    layernorm(of(624, 208, 4), out=of(480, 160, 4), mean=of(12, 4, shape=(2, 3)))
    assert gpu.launches[-1][-2] == RowSizes(6, 10, 40)
    with pytest.raises(ValueError, match=r"mean has shape \(2, 3\) of f32 with gaps; it takes one"):
        layernorm(of(624, 208, 4), out=of(480, 160, 4), mean=of(16, 4, shape=(2, 3)))
    for wrong in ("x", "out", "residual"):
        given = {"x": of(480, 160, 4), "out": of(480, 160, 4)} | {wrong: of(800, 160, 4)}
        with pytest.raises(ValueError, match=rf"{wrong} has leading shape .* no single"):
            layernorm(given.pop("x"), **given)


def test_results_lie_beside_what_is_read(gpu):  # noqa: F811
    x, weight = rows(), vector(COLUMNS)
    layernorm(x, weight, out=x, residual=rows())
    for out in (weight, x):
        shifted = device_array(X, address=address(out) + 16)
        with pytest.raises(ValueError, match="out shares memory with (weight|x): blocks"):
            layernorm(x, weight, out=shifted)


def test_rows_that_begin_anywhere_count_elements(gpu):  # noqa: F811
    x, out = rows(start=4, shape=(3, 101), pitch=404), rows(start=4, shape=(3, 101), pitch=404)
    softmax(x, out=out, scale=3.0)
    softmax(rows(start=8, shape=(3, 12), pitch=56), out=rows(shape=(3, 12), pitch=48))
    numbers = [(sizes, number) for *_, sizes, number in gpu.launches]
    assert numbers == [(RowSizes(3, 101, 101), 3), (RowSizes(3, 6, 12), 1)]


def test_one_element_is_no_empty_array(gpu, monkeypatch):  # noqa: F811
    """Sums of nothing are 0, which no kernel over rows writes."""
    filled, sums = [], vector(1)
    monkeypatch.setattr(launching, "fill", lambda array, *given: filled.append(given))
    row_sum(rows(shape=(1, 1)), out=sums, stream=7)
    softmax(rows(shape=(1, 1)), out=rows(shape=(1, 1)))
    (*_, arrays, sizes, _), (*_, of_softmax, _) = gpu.launches
    assert sizes == of_softmax == RowSizes(1, 1, 1) and arrays.y == RowMemory() and not filled
    nothing = {"shape": (1, 0), "typestr": "<f4", "data": (0, False), "version": 3, "strides": None}
    row_sum(SimpleNamespace(__cuda_array_interface__=nothing), out=sums, stream=7)
    assert filled[0] == (0, 7) and len(gpu.launches) == 2


def test_reductions_have_one_statistic_or_the_second(gpu):  # noqa: F811
    largest, places = vector(ROWS), vector(ROWS, np.int64)
    row_sum(rows(), out=largest)
    row_argmax(rows(), out=places)
    found = [arrays.statistics for *_, arrays, _, _ in gpu.launches]
    assert found == [(address(largest), 0), (0, address(places))]
