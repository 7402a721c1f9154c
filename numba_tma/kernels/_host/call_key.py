"""What tells calls apart, read by code that is written out for the classes of their arrays.

The key of a call has its arrays' addresses and their `CallForm`: all else that a launch depends on.
Reading three tensors is most of what a repeated call costs the host. So nothing is looked up or
called for them that need not be. The code is generated as `dataclasses` generates an ``__init__``.

`form_reader` reads any arrays. `near_reader` compares tensors of torch with those of a known form,
by the one call that TorchDynamo guards a compiled function with.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import form_source, is_torch, read_array, readers

Arrays = tuple[DeviceArray | None, ...]
#: Takes arrays and returns their form's key and a tuple of their addresses; None for others.
FormReader = Callable[[Arrays], Any]
#: Takes a context's number, a stream's handle, options and arrays. Returns the call's key, and its
#: result, which is new if none was given. None for arrays of another form.
NearReader = Callable[[int, int, Any, Arrays], tuple[tuple[Any, ...], DeviceArray] | None]

_FORM = """
def read(arrays):
    if len(arrays) == {count}:
        ({names}) = arrays
        if {fits}:
            return ({forms}), ({addresses})
"""

_NEAR = """
def near(context, stream, options, arrays):
    if len(arrays) == {count}:
        ({names}) = arrays
        if {fits}:{new}
            return (form, context, stream, options, {addresses}), {result}
"""

_NEW = """
            {result} = empty(shape, strides, dtype)
            if {result}.get_device() != device:
                return None"""

_MOST_NEAR = 16  # readers that are made for a form


class CallForm:
    """What arrays have besides addresses: classes, shapes, strides and element types."""

    __slots__ = ("_known", "_made", "_near")

    def __init__(self) -> None:
        self._near: NearReader = no_arrays  #: the last one
        self._known: dict[tuple[int, ...], NearReader] = {}  #: by which arrays are the same object
        self._made = 0

    def nearest(
        self, failed: tuple[NearReader, ...], arrays: Arrays, result: DeviceArray, at: int
    ) -> NearReader:
        """Return the reader for the next call, after those that `failed` to know these arrays.

        `near_reader` has the other parameters.
        """
        if self._near in failed or self._near is no_arrays:
            same = _same_objects(arrays)
            near = self._known.get(same, no_arrays)
            if (near in failed or near is no_arrays) and self._made < _MOST_NEAR:
                self._made += 1  # a mode of torch may have changed since
                near = self._known[same] = near_reader(self, arrays, result, at)
            self._near = near
        return self._near


def no_arrays(context: int, stream: int, options: Any, arrays: Arrays) -> None:
    """Return None: a `NearReader` that knows no arrays."""


def form_reader(arrays: Arrays) -> FormReader:
    """Return the function that reads arrays of these classes, or None.

    Arrays of one class have equal forms if their views differ in nothing but the address. No form
    equals that of another library's arrays.

    Raises
    ------
    NoDeviceArray
        If one is no array in device memory.
    """
    for array in arrays:
        if array is not None:
            read_array(array)  # which finds its reader
    return _form_reader(tuple(map(type, arrays)))


@functools.lru_cache(1024)
def _form_reader(classes: tuple[type, ...]) -> FormReader:
    names = [f"array{i}" for i in range(len(classes))]
    given = [(n, cls) for n, cls in zip(names, classes) if cls is not type(None)]
    empty = [n for n, cls in zip(names, classes) if cls is type(None)]
    tests = [f"type({n}) is {n}_class" for n, _ in given] + [f"{n} is None" for n in empty]
    read = {n: form_source(cls, n, f"{n}_reader") for n, cls in given}
    source = _FORM.format(
        count=len(names),
        names=_listed(names),
        fits=" and ".join(tests) or "True",
        forms=_listed([read[n][0] if n in read else "None" for n in names]),
        addresses=_listed([address for _, address in read.values()]),
    )
    namespace: dict[str, Any] = {f"{n}_class": cls for n, cls in given}
    namespace |= {f"{n}_reader": readers[cls] for n, cls in given}
    reader: FormReader = _function(_code(source), namespace)
    return reader


def near_reader(form: CallForm, arrays: Arrays, result: DeviceArray, at: int) -> NearReader:
    """Return the function that knows arrays of a form, if torch can tell them.

    Parameters
    ----------
    form
        The form of the arrays, with the result among them.
    arrays
        Those of a call: at `at` the result, or None if the call made `result`.
    """
    distinct = {id(array): array for array in arrays if array is not None}
    try:
        if not all(map(is_torch, distinct.values())):
            return no_arrays
        torch = sys.modules["torch"]
        guards = torch._C._dynamo.guards
        options = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
        check = guards.TensorGuards(*distinct.values(), **options).check
        namespace = {"form": form, "check": check}
        if at >= 0 and arrays[at] is None:
            namespace |= _new_result(torch, result)
        if not check(*distinct.values()):
            return no_arrays
    except (AttributeError, KeyError, RuntimeError, TypeError):  # of another version of torch
        return no_arrays
    near: NearReader = _function(_near_code(_same_objects(arrays), at), namespace)
    return near


def _same_objects(arrays: Arrays) -> tuple[int, ...]:
    """Return of each array which is the first that is the same object; -1 of None."""
    places: dict[int, int] = {id(None): -1}
    return tuple(places.setdefault(id(array), i) for i, array in enumerate(arrays))


@functools.lru_cache(1024)
def _near_code(same: tuple[int, ...], at: int) -> CodeType:
    """Return the code for arrays with these `_same_objects`."""
    names = [f"array{i}" for i in range(len(same))]
    new, result = at >= 0 and same[at] < 0, f"array{at}" if at >= 0 else "None"
    given = [name for i, name in enumerate(names) if same[i] >= 0 or (new and i == at)]
    tests = [f"{names[i]} is None" for i, j in enumerate(same) if j < 0]
    tests += [f"{names[i]} is {names[j]}" for i, j in enumerate(same) if 0 <= j < i]
    tests += [f"check({', '.join(names[i] for i, j in enumerate(same) if i == j)})"]
    return _code(
        _NEAR.format(
            count=len(names),
            names=_listed(names),
            fits=" and ".join(tests),
            new=_NEW.format(result=result) if new else "",
            addresses=_listed([f"{name}.data_ptr()" for name in given]),
            result=result,
        )
    )


def _new_result(torch: Any, result: Any) -> dict[str, Any]:
    """Return what makes a result like the one that torch's `empty_like` made, at less cost.

    Inductor makes its buffers so: on torch's current device, which may be another one.

    Raises
    ------
    TypeError
        If torch made another class, or one that autograd follows.
    """
    if type(result) is not torch.Tensor or result.requires_grad:
        raise TypeError
    return {
        "empty": torch._C._dynamo.guards._empty_strided_cuda,
        "shape": tuple(result.shape),
        "strides": tuple(result.stride()),
        "dtype": result.dtype,
        "device": result.get_device(),
    }


def _listed(items: list[str]) -> str:
    return "".join(f"{item}, " for item in items)


@functools.lru_cache(1024)
def _code(source: str) -> CodeType:
    """Return the code of the one function of a source."""
    module = compile(source, "<string>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def _function(code: CodeType, namespace: dict[str, Any]) -> Any:
    return FunctionType(code, {"__builtins__": __builtins__, **namespace})
