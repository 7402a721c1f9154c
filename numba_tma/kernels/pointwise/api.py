"""`pointwise`: kernels of any function of elements, and two of them, `add` and `scale_add`."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.array_interface import class_name
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import Named, shipped
from numba_tma.host.layout import MAX_BOX
from numba_tma.host.rows import Divisor, PlacedRows, form_of, part_of, pieces, units_of
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import IS_REAL, NUMBER, REAL, Rule, checked, instance, optional
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.limits import BY_THREADS
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty, empty_like, tile_for
from numba_tma.kernels._host.workspace import queue_counter
from numba_tma.kernels.pointwise.operands import Operands, result_of
from numba_tma.kernels.pointwise.plan import FULL, ROW, UNIT_THREADS, PointwisePlan, plan_for

_PAGE = "numba_tma.kernels.pointwise.kernel"
ring_kernel = shipped(_PAGE, "ring_kernel")
chunk_kernel = shipped(_PAGE, "chunk_kernel")
unit_kernel = shipped(_PAGE, "unit_kernel")

Plan = PointwisePlan  #: its name before 0.1.0

MOST_INPUTS = 4
PLAN = optional(instance(PointwisePlan))
NARROWEST = 32  #: columns of the ring's tiles over contiguous arrays


@dataclass(frozen=True)
class PointwiseCall:
    """The checked arguments of a call."""

    operands: Operands
    target: Array  #: the output, as rows
    numbers: tuple[np.float32, ...]
    stream: StreamLike

    @property
    def nbytes(self) -> int:
        """Bytes that are read and written, broadcast inputs aside."""
        return (1 + self.operands.kinds.count(FULL)) * self.target.nbytes

    def part(self, shape: tuple[int, int], first: int = 0) -> PointwiseCall:
        """Return the work on contiguous arrays from element `first` on, as a matrix."""
        offset = first * self.target.itemsize
        operands, target = self.operands.view(shape, offset), self.target.view(shape, offset=offset)
        return replace(self, operands=operands, target=target)


class Pointwise:
    """What `pointwise` returns: a function of device arrays and numbers."""

    def __init__(
        self,
        fn: Callable[..., Any] | Named,
        name: str | None = None,
        plan: PointwisePlan | None = None,
        rule: Rule = REAL,
        names: Sequence[str] = (),
    ) -> None:
        if not callable(fn) and not isinstance(fn, Named):
            raise TypeError(f"pointwise(fn={fn!r}): fn is a function of elements")
        self.plan = plan
        self.rule = rule  #: of the numbers
        self.fn = fn
        if isinstance(fn, Named):  # of the library, with a name for each parameter
            self.name, self.parameters = name or fn.name, len(names)
        else:
            function: Any = getattr(fn, "py_func", fn)
            functools.update_wrapper(self, function)
            self.name = name or function.__name__
            self.parameters = len(inspect.signature(function).parameters)
        #: How errors call the arguments.
        self.names = names or [f"argument {i}" for i in range(1, max(self.parameters, 1) + 1)]
        run = launched_again(self.name, "out", *self.names, new=self._new)
        self._run: Callable[..., DeviceArray] = run(self._prepare)

    def __repr__(self) -> str:
        return f"pointwise({self.name})"

    def __call__(
        self,
        *arguments: DeviceArray | float,
        out: DeviceArray | None = None,
        stream: StreamLike = None,
        dtype: DTypeLike | None = None,
        plan: PointwisePlan | None = None,
    ) -> DeviceArray:
        """Compute `fn` of each element; see `pointwise`."""
        return self.compute((out, *arguments), stream, dtype, plan)

    def compute(
        self,
        arguments: tuple[DeviceArray | float | None, ...],
        stream: StreamLike,
        dtype: DTypeLike | None,
        plan: PointwisePlan | None,
    ) -> DeviceArray:
        """Compute `fn`, as a call does; `out` is the first argument.

        A function costs less to call than an object.
        """
        end = len(arguments)
        if end != 1 + self.parameters:
            raise TypeError(
                f"{self.name}() takes {self.parameters} arguments, arrays first and numbers after "
                f"them, but {end - 1} were given"
            )
        while end > 1 and IS_REAL[type(arguments[end - 1])]:
            end -= 1
        if not 2 <= end <= 1 + MOST_INPUTS:
            raise TypeError(
                f"{self.name}() was given {end - 1} arrays; it takes 1 to {MOST_INPUTS}, from "
                f"{self.names[0]} on"
            )
        try:
            return self._run(arguments[:end], stream, arguments[end:], dtype, plan)
        except TypeError:
            self._check_order(arguments[1:end])
            raise

    def _new(
        self, given: tuple[DeviceArray, ...], dtype: DTypeLike | None, plan: PointwisePlan | None
    ) -> DeviceArray:
        """Return a new array for the result, like the first input that has its shape."""
        _, *arrays = given
        try:
            shape, like = result_of(tuple([array.shape for array in arrays]))
        except (AttributeError, TypeError, ValueError):  # no shapes, or none that fit together
            operands = Operands.read(self.name, self.names, arrays, dtype)
            shape, like = operands.shape, operands.like
        if like is None:
            return empty(self.name, self.names[0], arrays[0], shape)
        return empty_like(self.name, self.names[like], arrays[like])

    def _check_order(self, arrays: tuple[object, ...]) -> None:
        """Raise a TypeError if a number is followed by what is none."""
        named = itertools.pairwise(zip(self.names, arrays))
        for (name, one), (after, other) in named:
            if REAL.of_kind(one) and not REAL.of_kind(other):
                raise TypeError(
                    f"{self.name}(): {name} is a number, and {after} is a "
                    f"{class_name(other)}; arrays come first, and numbers after them"
                ) from None

    def _prepare(
        self,
        given: tuple[DeviceArray, ...],
        stream: StreamLike,
        numbers: tuple[float, ...],
        dtype: DTypeLike | None,
        plan: PointwisePlan | None,
    ) -> list[DeviceArray]:
        """Launch, and return the workspace."""
        out, *arrays = given
        operands = Operands.read(self.name, self.names, arrays, dtype)
        target = operands.target(out)
        checked(self.name, "plan", plan, PLAN)
        for name, number in zip(self.names[len(arrays) :], numbers):
            checked(self.name, name, number, self.rule)
        inputs = zip(operands.arrays, operands.kinds)
        check_outputs([target], operands.arrays, [x for x, kind in inputs if kind == FULL])
        if target.nbytes == 0:
            return []
        call = PointwiseCall(operands, target, tuple(map(np.float32, numbers)), stream)
        if operands.are_flat(target):
            return self._flat(call, plan or self._flat_plan(call))
        by_tma = plan.kernel != "vector" if plan else call.nbytes >= BY_THREADS
        if by_tma and operands.are_addressable(target):
            return self._ring(call, plan if plan and plan.kernel == "ring" else plan_for(2))
        self._units(call)
        return []

    def _flat_plan(self, call: PointwiseCall) -> PointwisePlan:
        """Return the plan for contiguous arrays of one shape."""
        inputs = len(call.operands.arrays)
        if call.nbytes < BY_THREADS:
            return PointwisePlan("vector")
        if inputs > 1 and call.target.size % NARROWEST:
            return PointwisePlan("chunk", 128, 2048)  # the ring would leave elements for a launch
        return self.plan or plan_for(inputs)

    def _flat(self, call: PointwiseCall, plan: PointwisePlan) -> list[DeviceArray]:
        """Compute contiguous arrays of one shape; return the workspace."""
        workspace: list[DeviceArray] = []
        arrays, size = (*call.operands.arrays, call.target), call.target.size
        if plan.kernel == "vector" or any(array.address % 16 for array in arrays):
            self._units(call.part((1, size)))
        elif plan.kernel == "chunk":
            self._chunk(call, plan)
        else:
            widths = (256, 128, 64, NARROWEST)
            width = next((w for w in widths if size % w == 0), MAX_BOX)
            rows = size // width
            if rows:
                workspace = self._ring(call.part((rows, width)), plan)
            if left := size - rows * width:
                self._units(call.part((1, left), rows * width))
        return workspace

    def _ring(self, call: PointwiseCall, plan: PointwisePlan) -> list[DeviceArray]:
        """Launch `ring_kernel`; return the workspace."""
        operands, target, counter = call.operands, call.target, queue_counter()
        rows, columns = target.shape
        tile = tile_for(columns, target.dtype, plan.tile_bytes)
        tiles = -(-rows // tile.shape[0]) * -(-columns // tile.shape[1])
        inputs = [
            tensor_map(array, tile) if kind == FULL else array.as_bytes()
            for array, kind in zip(operands.arrays, operands.kinds)
        ]
        launch(
            ring_kernel(self.fn, operands.kinds, len(call.numbers), tile, plan),
            min(plan.blocks_per_sm * sm_count(), tiles),
            plan.threads + 32,
            call.stream,
            *inputs,
            tensor_map(target, tile) if plan.store == "tma" else target.as_bytes(),
            *call.numbers,
            counter,
            rows,
            columns,
            target.strides[0],
        )
        return [counter]

    def _chunk(self, call: PointwiseCall, plan: PointwisePlan) -> None:
        """Launch `chunk_kernel`."""
        inputs, target = call.operands.arrays, call.target
        launch(
            chunk_kernel(self.fn, len(inputs), len(call.numbers), target.dtype, plan),
            -(-target.nbytes // plan.tile_bytes),
            plan.threads,
            call.stream,
            *[array.as_bytes() for array in (*inputs, target)],
            *call.numbers,
            target.nbytes,
        )

    def _units(self, call: PointwiseCall) -> None:
        """Launch `unit_kernel`."""
        operands, numbers = call.operands, call.numbers
        for first, rows in pieces(call.target):
            inputs = [part_of(array, first, rows) for array in operands.arrays]
            out = part_of(call.target, first, rows)
            units, kinds = units_of(out), operands.kinds
            form = form_of([x for x, kind in zip(inputs, kinds) if kind in (FULL, ROW)], out)
            launch(
                unit_kernel(self.fn, kinds, len(numbers), out.dtype, rows == 1, form),
                -(-rows * units // UNIT_THREADS),
                UNIT_THREADS,
                call.stream,
                *map(PlacedRows.of, inputs),
                PlacedRows.of(out),
                *numbers,
                rows,
                out.shape[1] * out.itemsize,
                Divisor.of(units),
            )


def pointwise(fn: Callable[..., Any]) -> Pointwise:
    """Make a kernel of a function of elements: ``pointwise(lambda x, y: x * y)``.

    `fn` is a plain Python function or a ``@cuda.jit(device=True)`` one. Its first parameters, one
    to four, are elements of arrays; the rest are numbers. All come as float32, and it returns a
    float32 (literals such as ``0.5`` are float64 in Numba: write ``np.float32(0.5)``), which is
    rounded once to the arrays' type.

    The result is called with device arrays and numbers::

        axpy = tma.kernels.pointwise.pointwise(lambda x, y, a: a * x + y)
        axpy(x, y, 2.0, out=y, stream=stream)

    Parameters of the call
    ----------------------
    *arguments
        Device arrays of f32, f16 or bf16, all of one type: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``; then numbers. An array has the shape of the
        result, or is broadcast: a row vector ``(columns,)``, a column vector ``(..., rows, 1)``, or
        one element. The last axis is contiguous; rows may have any stride and length.
    out
        Where to write; a new array like the first argument of the result's shape if None. May be an
        input of that shape.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How the work is cut up; chosen by the arrays' sizes if None.

    Notes
    -----
    TMA moves arrays that start at a multiple of 16 B with rows that do. Other arrays are computed
    by threads, which shift the 16-byte units of the inputs into those of the output.
    """
    return Pointwise(fn)


def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y


def _scale_add(x, y, alpha, beta):  # type: ignore[no-untyped-def]
    return alpha * x + beta * y


ADD = Pointwise(_add, "add", names=["x", "y"])
SCALE_ADD = Pointwise(_scale_add, "scale_add", rule=NUMBER, names=["x", "y", "alpha", "beta"])


def add(
    x: DeviceArray,
    y: DeviceArray | float,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: PointwisePlan | None = None,
) -> DeviceArray:
    """Compute x + y in float32, rounded once; see `pointwise` for what the arguments can be."""
    return ADD.compute((out, x, y), stream, dtype, plan)


def scale_add(
    x: DeviceArray,
    y: DeviceArray,
    alpha: float,
    beta: float,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: PointwisePlan | None = None,
) -> DeviceArray:
    """Compute alpha * x + beta * y in float32, rounded once; see `pointwise` for the arguments."""
    return SCALE_ADD.compute((out, x, y, alpha, beta), stream, dtype, plan)
