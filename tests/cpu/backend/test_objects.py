"""Objects in kernels: constructors, what bodies return, constant branches, and sums of memory."""

import gc
import importlib
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.backend import lowering
from numba_tma.backend.interface import (
    Unknown,
    compile_time,
    constant_class,
    device_class,
    device_function,
    i64,
    u32,
)
from numba_tma.backend.lowering.instructions import _form
from numba_tma.backend.numba_cuda import kernels, launches
from numba_tma.backend.numba_cuda.constants import known
from numba_tma.backend.numba_cuda.handles import HANDLES
from numba_tma.backend.numba_cuda.kernels import PLAIN_SHARED, _check_sum, static_shared
from numba_tma.backend.numba_cuda.object_types import ObjectType
from numba_tma.host.host_only import not_in_shared_memory
from numba_tma.ptx import TABLE
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import Machine

U32 = types.uint32


@device_class(mutable=True)
@dataclass
class Cell:
    value: u32


@device_class(mutable=True)
@dataclass
class Two:
    a: Cell
    b: Cell


@device_class(static=("name",))
@dataclass(frozen=True)
class Options:
    first: "u32"
    name: str = "default"
    second: "u32" = 7
    third: "i64" = -2


def refused(body, *kinds):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(cuda.jit(body), kinds, cc=(9, 0, "a"))
    return re.sub(r"\s+", " ", str(caught.value))


def run(body, out, *values, kinds=()):
    ptx = compile_ptx(cuda.jit(body), (types.int64[::1], *kinds), cc=(9, 0, "a"))
    Machine(ptx, out, *values).run()
    return out.tolist()


# ------------------------------------------------------------------------- constructors


def test_a_constructor_fills_in_the_defaults():
    def kernel(out, x):
        for_all, some, named = Options(x), Options(x, third=5), Options(x, "other", 9, x)
        out[0], out[1], out[2] = for_all.first, for_all.second, for_all.third
        out[3], out[4], out[5] = some.first, some.second, some.third
        out[6], out[7], out[8] = named.first, named.second, named.third
        out[9], out[10] = for_all.name == "default", named.name == "other"

    found = run(kernel, np.zeros(11, np.int64), 3, kinds=(U32,))
    assert found == [3, 7, -2, 3, 7, 5, 3, 9, 3, 1, 1]


def test_a_type_that_lowerings_name_is_that_of_an_object_with_the_defaults():
    found = 0
    for module in pkgutil.walk_packages(lowering.__path__, f"{lowering.__name__}."):
        for typ in vars(importlib.import_module(module.name)).values():
            if isinstance(typ, ObjectType):
                described = typ.description
                assert typ.static == tuple(described.defaults[n] for n in described.static)
                assert typ.field_types == tuple(described.fields.values())
                assert typ.mutable == described.mutable
                found += 1
    assert found


# ------------------------------------------------------------------- what a body returns


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_an_object_that_lives_in_its_function_is_not_returned(mutable, local):
    @device_class(mutable=mutable, local=local)
    @dataclass
    class Made:
        value: u32

    @cuda.jit(device=True)
    def make(x):
        return Made(x)

    def kernel(out, x):
        out[0] = make(x).value

    if mutable or local:
        assert "lives in the function that made it and cannot be returned" in refused(
            kernel, types.int64[::1], U32
        )
    else:
        assert run(kernel, np.zeros(1, np.int64), 7, kinds=(U32,)) == [7]


@constant_class
@dataclass(frozen=True)
class Width:
    columns: int


def test_a_constant_is_returned():
    width_of_all = Width(3)

    @cuda.jit(device=True)
    def width():
        return width_of_all

    def kernel(out):
        out[0] = width().columns

    assert run(kernel, np.zeros(1, np.int64)) == [3]


@device_function
def maybe_given(cell, flag):
    if flag:
        return cell
    return Cell(u32(1))


@device_function
def twice():
    cell = Cell(u32(1))
    return cell, cell


@device_function
def twice_in_one():
    cell = Cell(u32(1))
    return Two(cell, cell)


@device_function
def replaced():
    two = Two(Cell(u32(1)), Cell(u32(2)))
    two.a = Cell(u32(3))
    return two


@device_function
def itself(cell):
    return cell


@device_function
def through_a_call():
    return itself(Cell(u32(1)))


@device_function
def made():
    return Two(Cell(u32(1)), Cell(u32(2)))


@device_function
def one_part_twice():
    two = Two(Cell(u32(1)), Cell(u32(2)))
    return two.a, two.a


REFUSED = {
    maybe_given: "returns an object that it was given on one way and one that it makes on another",
    twice: "is returned as a part of two objects, which would each get a copy",
    twice_in_one: "is returned as a part of two objects, which would each get a copy",
    replaced: "replaced: .a is given another mutable object, and the function returns one",
    through_a_call: "returns, through a call, an object that this function makes: return the",
    one_part_twice: "is returned as a part of two objects, which would each get a copy",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_a_body_does_not_return(body):
    if body is maybe_given:

        def kernel(flag):
            maybe_given(Cell(u32(3)), flag)
    else:

        def kernel(flag):
            body()

    assert REFUSED[body] in refused(kernel, types.boolean)


def test_what_a_body_makes_or_is_given_is_one_object():
    def kernel(out):
        cell = Cell(u32(5))
        same = itself(cell)
        same.value += u32(1)
        two, other = made(), made()
        two.b.value += u32(10)
        out[0], out[1], out[2], out[3] = cell.value, two.a.value, two.b.value, other.b.value

    assert run(kernel, np.zeros(4, np.int64)) == [6, 1, 12, 2]


# ------------------------------------------------------------------------ constant branches


@compile_time
def is_large(n: object) -> bool:
    if isinstance(n, Unknown):
        raise ValueError("n is a literal")
    return n > 100


@device_function
def of_a_literal(n: "Constant[int]", x):  # noqa: F821
    if is_large(n):
        return x.no_such_attribute
    return x + n


@device_function
def of_a_changed_variable(x, n):
    kind = 1
    for _ in range(n):
        kind = 2
    return x + 40 if kind == 2 else x


def test_a_branch_that_a_compile_time_function_excludes_is_not_typed():
    def kernel(out, x):
        out[0] = of_a_literal(3, x)

    assert run(kernel, np.zeros(1, np.int64), 4, kinds=(U32,)) == [7]

    def excluded(out, x):
        out[0] = of_a_literal(300, x)

    assert "no_such_attribute" in refused(excluded, types.int64[::1], U32)


def test_a_variable_that_changes_is_no_constant():
    def kernel(out, x):
        out[0], out[1] = of_a_changed_variable(x, x), of_a_changed_variable(x, x - x)

    assert run(kernel, np.zeros(2, np.int64), 2, kinds=(U32,)) == [42, 2]


# --------------------------------------------------------------------- unknown arguments


def test_what_is_not_known_shows_its_type_or_its_first_constant():
    tile = tma.Tile((8, 32), "f32")
    shared = known(ObjectType(tma.SharedTile, (tile,), (U32,)))
    assert (repr(shared), repr(known(types.int64))) == (repr(tile), "int64")
    options = known(ObjectType(Options, ("of this name",), (U32, U32, types.int64)))
    assert (repr(options), options.name) == ("'of this name'", "of this name")
    assert repr(options.third) == "int64"


# --------------------------------------------------------------- the sum of shared memory


@pytest.mark.parametrize(
    ("toolkit", "target", "limit", "hint"),
    [
        ((13, 0), "90a", static_shared("90a"), ""),
        ((13, 0), "120", PLAIN_SHARED, "own"),
        (
            (12, 9), "90a", PLAIN_SHARED,
            " with CUDA 12, whose ptxas refuses more than 48 KiB of static shared memory (CUDA 13 "
            f"allows {static_shared('90a'):,} B: install numba-cuda[cu13])",
        ),
        ((12, 9), "80", PLAIN_SHARED, ""),
    ],
)  # fmt: skip
def test_the_sum_of_shared_memory_is_shown(monkeypatch, toolkit, target, limit, hint):
    monkeypatch.setattr(kernels, "toolkit", lambda: toolkit)
    if hint == "own":
        own = static_shared(f"{target}a")
        hint = f" ({own:,} B on sm_{target}a)" if own > static_shared(target) else ""
    _check_sum("it", {"tiles": limit - 8, "barriers": 8}, limit, target)
    with pytest.raises(CudaTypingError) as caught:
        _check_sum("it", {"tiles": limit, "barriers": 8}, limit, target)
    assert str(caught.value) == (
        f"it needs {limit:,} B (tiles) + 8 B (barriers) = {limit + 8:,} B of shared memory, but a "
        f"block has {limit:,} B on sm_{target}{hint}: use fewer stages or smaller tiles"
    )
    with pytest.raises(CudaTypingError):
        _check_sum("it", {"tiles": limit + 1}, limit, target)


# ------------------------------------------------------------------------- handles, copies


def test_a_stage_that_is_acquired_again():
    """Of these a second acquire without a release gets the same stage, or releases the first."""
    same = {
        (name, opens)
        for name, kinds in HANDLES.items()
        for handle in kinds
        for opens in handle.opens
        if handle.at_most_one
    }
    assert same == {
        ("TMAConsumerPipeline", "wait_k"), ("TMAConsumerPipeline", "wait_v"),
        ("TMAConsumerPipeline", "wait"), ("OutputProducer", "acquire"),
        ("OutputTilePipelineHandle", "acquire_for_mma"),
    }  # fmt: skip


TILE = tma.Tile((8, 32), "f32")
MAP = tma.TensorMapType(2, TILE)


def test_a_copy_goes_to_shared_memory():
    def to_an_argument(x, y):
        x.load(y, (0, 0), tma.shared_barrier())

    def to_a_named_argument(x, y):
        x.store(coords=(0, 0), tile=y[0])

    def to_shared_memory(x, y):
        x.load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier())
        x.load(cuda.shared.array((8, 32), np.float32), (0, 0), tma.shared_barrier())

    kinds = MAP, types.float32[:, ::1]
    sentence = re.sub(r"\s+", " ", not_in_shared_memory("the array y"))
    assert sentence in refused(to_an_argument, *kinds)
    assert sentence in refused(to_a_named_argument, MAP, types.float32[:, :, ::1])
    compile_ptx(cuda.jit(to_shared_memory), kinds, cc=(9, 0, "a"))


def test_the_first_kernel_of_a_thread_is_no_device_function():
    """In a device function a copy's tile may be anywhere; in a kernel it is no argument."""

    def to_an_argument(x, y):
        x.load(y, (0, 0), tma.shared_barrier())

    with ThreadPoolExecutor(1) as thread:
        text = thread.submit(refused, to_an_argument, MAP, types.float32[:, ::1]).result()
    assert re.sub(r"\s+", " ", not_in_shared_memory("the array y")) in text


def test_each_call_that_allocates_has_memory_of_its_own():
    @device_function
    def allocated(x):
        tile = tma.shared_tile(TILE)
        tile[0, 0] = x
        return tile

    def kernel(out):
        first, second, third = allocated(1), allocated(2), allocated(3)
        out[0], out[1], out[2] = first[0, 0], second[0, 0], third[0, 0]

    for _ in range(2):
        assert run(kernel, np.zeros(3, np.int64)) == [1, 2, 3]
        gc.collect()


def test_a_kernel_is_compiled_once_for_its_arguments(monkeypatch):
    """numba-cuda is told of it, in case that the kernel depends on its launch's configuration."""
    told = []

    class Chosen:
        specialized, overloads = True, {"signature": "compiled"}

        def _update_launch_config_sensitivity(self, compiled, configuration):
            told.append((compiled, configuration))

    configuration = SimpleNamespace(
        _push_args=lambda args: told.append(args) or "before",
        _pop_args=lambda before: told.append(before),
    )
    kernel = SimpleNamespace(
        configure=lambda grid, block: configuration,
        _select_launch_config_dispatcher=lambda given: Chosen(),
    )
    assert launches.compiled_for(kernel, 1, 32, (3,)) == "compiled"
    assert told == [(3,), ("compiled", configuration), "before"]


def test_the_form_of_a_call_has_the_optional_operands_that_are_given():
    for row in TABLE.values():
        optional = [n for n in row.operands if row.is_optional(n) and n not in row.choices]
        given = {name: types.uint32 for name in row.operands if name not in row.choices}
        given |= {"coordinates": types.UniTuple(types.int32, 3)} if row.ranks else {}
        form = _form(row, given, {})
        assert (form.given, form.rank) == (frozenset(optional), 3 if row.ranks else None)
        for absent in (types.none, types.Omitted(None)):
            form = _form(row, given | dict.fromkeys(optional[:1], absent), {"num": 4})
            assert form.given == frozenset(optional[1:]) and form.choices == {"num": 4}
        assert _form(row, {}, {}).given == frozenset()
