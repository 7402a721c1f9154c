"""`stencil`: a function of an element and its neighbours as a pipelined kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.array_interface import class_name
from numba_tma.host.arrays import Array
from numba_tma.host.boundaries import BOUNDARIES
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import DType
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import IS_REAL, REAL, Rule, checked, instance, one_of, optional
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels.stencil.arrays import (
    as_planes,
    as_source,
    bits,
    check_inputs,
    check_output,
    stored,
)
from numba_tma.kernels.stencil.form import StencilForm
from numba_tma.kernels.stencil.neighbourhood import (
    Neighbourhood,
    Reads,
    checked_neighbourhood,
    reads_of,
)
from numba_tma.kernels.stencil.plan import (
    Radii,
    StencilPlan,
    plan_for,
    planes_of,
    problem_of,
    whole_chunks,
)

stencil_kernel = shipped("numba_tma.kernels.stencil.kernel", "stencil_kernel")

MODES = ("constant", "zero", "nan", *BOUNDARIES)
MODE = one_of(*MODES)
PLAN = optional(instance(StencilPlan))
MOST_CHUNKS = (1 << 31) - (1 << 16)  #: that 32 bits count, and the blocks of a grid beyond
ANY_REAL = Rule("a number", lambda value: IS_REAL[type(value)])

Boundary = str | Sequence[str]


class Stencil:
    """What `stencil` returns: a function of device arrays and numbers."""

    def __init__(
        self,
        fn: Callable[..., Any],
        boundary: Boundary = "constant",
        cval: float = 0,
        neighbourhood: Neighbourhood | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(
                f"stencil(fn={fn!r}): fn is a function of arrays with relative indices; options "
                "are keywords, as in @tma.stencil(boundary='edge')"
            )
        function: Any = getattr(fn, "py_func", fn)
        if not hasattr(function, "__code__"):
            raise TypeError(
                f"stencil(fn={fn!r}): fn is a {class_name(fn)}; it is a function of Python, with "
                "def or lambda"
            )
        functools.update_wrapper(self, function)
        self.fn, self.name = fn, function.__name__
        self.reads: Reads = reads_of(fn, checked_neighbourhood(neighbourhood))
        self.boundaries = _boundaries(boundary, self.reads.axes)
        self.cval = checked("stencil", "cval", cval, ANY_REAL)
        self.outs = [f"out[{k}]" for k in range(self.reads.outputs)]
        if self.reads.outputs == 1:
            self.outs = ["out"]
        again: Any = launched_again(self.name, *self.outs, *self.reads.arrays)
        self._run: Callable[..., None] = again(self._prepare)

    def __repr__(self) -> str:
        return f"stencil({self.name})"

    def __call__(
        self,
        *arguments: DeviceArray | float,
        out: DeviceArray | tuple[DeviceArray, ...] | None = None,
        stream: StreamLike = None,
        dtype: DTypeLike | None = None,
        plan: StencilPlan | None = None,
    ) -> Any:
        """Compute the function of each element and its neighbours; see `stencil`."""
        reads = self.reads
        if len(arguments) != len(reads.parameters):
            raise TypeError(
                f"{self.name}() takes {len(reads.parameters)} arguments, "
                f"{', '.join(reads.parameters)}, but {len(arguments)} were given"
            )
        given = dict(zip(reads.parameters, arguments))
        arrays = tuple(given[name] for name in reads.arrays)
        numbers = tuple(given[name] for name in reads.numbers)
        outs = self._outputs(out, arrays[0])
        self._run((*outs, *arrays), stream, numbers, dtype, plan)
        return outs[0] if reads.outputs == 1 else outs

    def _outputs(
        self, out: DeviceArray | tuple[DeviceArray, ...] | None, like: DeviceArray
    ) -> tuple[DeviceArray, ...]:
        """Return the arrays of the results, new ones if none are given."""
        count = self.reads.outputs
        if out is None:
            return tuple(empty_like(self.name, self.reads.arrays[0], like) for _ in self.outs)
        if count == 1:
            return (out,)
        if not isinstance(out, tuple | list) or len(out) != count:
            shown = f"{len(out)} arrays" if isinstance(out, tuple | list) else class_name(out)
            raise TypeError(
                f"{self.name}(): out is {shown}, and the function returns {count} results; out is "
                "a tuple with an array for each, or None for new ones"
            )
        return tuple(out)

    def _prepare(
        self,
        given: tuple[DeviceArray, ...],
        stream: StreamLike,
        numbers: tuple[float, ...],
        dtype: DTypeLike | None,
        plan: StencilPlan | None,
    ) -> list[DeviceArray]:
        """Launch, and return the workspace."""
        reads, count = self.reads, self.reads.outputs
        named = zip(reads.arrays, given[count:])
        arrays = [Array.read(self.name, name, array, dtype) for name, array in named]
        check_inputs(arrays, reads.axes, reads.radii)
        first = arrays[0]
        outs = [
            Array.read(self.name, name, array).with_bits_of(first)
            for name, array in zip(self.outs, given)
        ]
        for target in outs:
            check_output(target, first)
        check_outputs(outs, arrays)
        checked(self.name, "plan", plan, PLAN)
        passed = [
            _number(self.name, name, number, first.dtype)
            for name, number in zip(reads.numbers, numbers)
        ]
        targets = [as_planes(target, reads.axes) for target in outs]
        sources = [as_planes(array, reads.axes) for array in arrays]
        missing = (0,) * (3 - reads.axes)
        radii: Any = [missing + radius for radius in reads.radii]
        _, rows, columns = sources[0].shape
        chosen = self._plan(plan, first.dtype, radii, rows)
        form, boxes = self._form(chosen, first.dtype, radii), chosen.boxes(first.dtype, radii)
        workspace: list[DeviceArray] = []
        sources = [as_source(source, stream, workspace) for source in sources]
        depth = first.shape[-3] if reads.axes == 3 else 1
        places = sources[0].shape[0] // depth
        places *= math.prod(-(-n // t) for n, t in zip((rows, columns), form.tile))
        most = chosen.blocks_per_sm * sm_count()
        chunk = planes_of(chosen, depth, places, form.radius, most)
        total = places * -(-depth // chunk)
        if total > MOST_CHUNKS:
            raise first.error(
                f"has shape {first.shape}, which is {total:,} tiles of {form.tile}; "
                f"a launch has up to {MOST_CHUNKS:,}: split the array along its first axis"
            )
        fill: Any = "nan" if "nan" in self.boundaries else "zeros"
        launch(
            stencil_kernel(self.fn, form),
            min(most, total),
            32 * (chosen.warps + 1),
            stream,
            *[tensor_map(s, box, oob_fill=fill) for s, box in zip(sources, boxes)],
            *map(stored, targets),
            *[bits(source) for source in sources if form.needs_sources],
            *passed,
            depth,
            rows,
            columns,
            chunk,
            total,
        )
        return workspace

    def _plan(
        self, plan: StencilPlan | None, dtype: DType, radii: list[Radii], rows: int
    ) -> StencilPlan:
        """Return the plan, or raise if no tile holds the radii."""
        if plan is not None and (problem := problem_of(plan, dtype, radii)):
            raise ValueError(
                f"{self.name}(plan={plan}): {problem}, for {self._shown()} of {dtype}; make the "
                "tile smaller, or leave plan out"
            )
        chosen = plan or plan_for(dtype, radii, rows)
        if chosen is None:
            raise ValueError(
                f"{self.name}(): no tile holds {self._shown()} of {dtype}; a box has up to 256 "
                "elements along an axis, and a window of planes fits in shared memory: split the "
                "stencil into several with smaller radii"
            )
        return chosen

    def _shown(self) -> str:
        """Return the radii of the arrays, for errors."""
        named = zip(self.reads.arrays, self.reads.radii)
        return "the radii " + ", ".join(f"{radius} of {name}" for name, radius in named)

    def _form(self, plan: StencilPlan, dtype: DType, radii: list[Radii]) -> StencilForm:
        """Return what the kernel is made of."""
        reads = self.reads
        if "nan" in self.boundaries and not dtype.is_float:
            raise ValueError(
                f"stencil(boundary='nan'): {self.name}() is given {dtype}, which has no NaN; use "
                "'zero' or 'constant' with cval"
            )
        cval = float(self.cval)
        if "constant" in self.boundaries and dtype.numpy.kind in "iu":
            limits = np.iinfo(dtype.numpy)
            if not (limits.min <= self.cval <= limits.max and self.cval == int(self.cval)):
                raise ValueError(
                    f"stencil(cval={self.cval}): {self.name}() is given {dtype}; cval is an "
                    f"integer from {limits.min} to {limits.max} then"
                )
            cval = int(self.cval)
        missing = 3 - reads.axes
        ranges = zip(self.boundaries, reads.neighbourhood)
        margins = [along if mode == "constant" else (0, 0) for mode, along in ranges]
        # What lies beyond an edge matters along axes whose neighbours are read.
        beside = [max(along) for along in zip(*reads.radii)]
        read = tuple(mode if radius else None for mode, radius in zip(self.boundaries, beside))
        boundaries: Any = (None,) * missing + read
        return StencilForm(
            (plan.rows, whole_chunks(plan.columns, dtype)),
            dtype,
            tuple(radii),
            tuple(name in reads.arrays for name in reads.parameters),
            reads.axes,
            reads.outputs,
            boundaries,
            ((0, 0),) * missing + tuple(margins),
            cval,
            plan.stages,
            plan.warps,
        )


def _boundaries(boundary: object, axes: int) -> tuple[str, ...]:
    """Return the boundary of each axis, or raise."""
    given = (boundary,) * axes if isinstance(boundary, str) else boundary
    if not isinstance(given, tuple | list):
        checked("stencil", "boundary", boundary, MODE, "for all axes, or a tuple with one for each")
    assert isinstance(given, tuple | list)
    modes = tuple(
        checked("stencil", "boundary", m, MODE, "for all axes, or a tuple with one for each")
        for m in given
    )
    if len(modes) != axes:
        raise ValueError(
            f"stencil(boundary={boundary!r}): {len(modes)} boundaries for the {axes} indices of "
            "the function; give one for each, or one alone for all"
        )
    if {"zero", "nan"} <= set(modes):
        raise ValueError(
            f"stencil(boundary={boundary!r}): the copy engine fills with zeros or with NaN, and "
            "with one of them for all axes: use the same along both"
        )
    return modes


def _number(function: str, name: str, number: object, dtype: DType) -> Any:
    """Return a number as the kernel takes it: of the type that it computes in."""
    if hasattr(number, "__cuda_array_interface__") or hasattr(number, "__dlpack__"):
        if not IS_REAL[type(number)]:
            raise TypeError(
                f"{function}(): {name} is a {class_name(number)}, and the function has it without "
                f"an index: a number; write {name}[0, ...] in the function for an array"
            )
    if dtype.compute == "float32":
        return np.float32(checked(function, name, number, REAL))
    checked(function, name, number, ANY_REAL)
    if dtype.compute == "float64" or not isinstance(number, int | np.integer):
        return float(number)  # type: ignore[arg-type]
    if not -(1 << 63) <= int(number) < 1 << 63:
        raise ValueError(f"{function}({name}={number}): {name} is an integer of 64 bits")
    return int(number)


def stencil(
    fn: Callable[..., Any] | None = None,
    *,
    boundary: Boundary = "constant",
    cval: float = 0,
    neighbourhood: Neighbourhood | None = None,
) -> Any:
    """Make a kernel of a function of an element and its neighbours, as `numba.stencil` does.

    A function with relative indices is decorated::

        @tma.stencil(boundary="zero")
        def laplace(a):
            return a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1] - 4 * a[0, 0]


        y = laplace(x)
        laplace(x, out=y, stream=stream)

    A parameter that is indexed is an array, and its indices are relative to the element that is
    computed; any other parameter is a number. The function has 1 to 3 indices, for the last axes of
    the arrays; the axes before them are a batch. A function that returns a tuple has several
    results.

    Parameters
    ----------
    fn
        A plain Python function or a ``@cuda.jit(device=True)`` one. Elements of f16 and bf16 come
        as float32, those of f32 and f64 as they are, integers as int64; u64 as the int64 of the
        same bits. The result is rounded once to the arrays' type. (Literals such as ``0.5`` are
        float64 in Numba, and so is the product of an integer and a float32: write
        ``np.float32(0.5)`` where that matters.)
    boundary
        What a neighbour beyond the edge is: ``"zero"``, ``"nan"``, or that of `numpy.pad`:
        ``"edge"``, ``"reflect"``, ``"symmetric"``, ``"wrap"``. With ``"constant"``, as in
        `numba.stencil`, an element whose neighbourhood leaves the array has the result `cval`. One
        for all axes, or a tuple with one for each; not ``"zero"`` and ``"nan"`` both.
    cval
        The result at the edges that are ``"constant"``.
    neighbourhood
        The first and the last neighbour along each axis, ``((-1, 1), (-2, 2))``, of the arrays
        whose indices are computed, as in a loop. Indices that are integers, or names of integers
        outside of the function, need none.

    Parameters of the call
    ----------------------
    *arguments
        Device arrays of one shape and type (f64, f32, f16, bf16, and integers) and numbers, in the
        order of the parameters: torch, CuPy, numba, or anything with ``__cuda_array_interface__``
        or ``__dlpack__``. Rows may have any stride and length; the last axis is contiguous.
    out
        Where to write; new arrays if None. An array, or a tuple with one for each result. It shares
        no memory with an input.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        A `StencilPlan`: the sizes of tiles and of the pipeline; chosen by rules if None.

    Raises
    ------
    TypeError
        If the function does with an array what a stencil cannot, or an argument is of a wrong kind.
    ValueError
        If the neighbourhood cannot be found or no tile holds it; if arrays differ in shape or type,
        are empty, or have one element along an axis whose neighbours are read; if an output shares
        memory with an input; if a boundary does not exist.

    Notes
    -----
    TMA loads arrays that start at a multiple of 16 B with rows and planes that do. Other arrays are
    first copied to padded rows, by one launch for each. Results are written by the threads, to any
    address.
    """
    if fn is None:
        return functools.partial(Stencil, boundary=boundary, cval=cval, neighbourhood=neighbourhood)
    return Stencil(fn, boundary, cval, neighbourhood)
