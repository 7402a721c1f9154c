"""What is read in a kernel's source: each refusal, and what is like it and compiles."""

import enum
import linecache
import math
import time

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.host_only import KERNEL_CODE
from numba_tma.simulator.errors import NotCompiled
from numba_tma.simulator.kernel_code import check_code, check_step


class Color(enum.IntEnum):
    RED = 1


class Mine:
    pass


class WithType:
    _numba_type_ = float32


class WithMethods:
    device_methods = ()


@cuda.jit(device=True)
def device(x):
    return x


NAMES = {
    "np": np, "cuda": cuda, "math": math, "time": time, "tma": tma, "ptx": ptx, "float32": float32,
    "plain": lambda x: x, "device": device, "PAIR": (1, 2), "ARRAY": np.zeros(4), "LIST": [1, 2],
    "TILES": [tma.Tile((8,), "f32")], "MAPPING": {}, "NAMES": {1}, "FROZEN": frozenset(),
    "MINE": Mine(), "Color": Color, "RED": Color.RED, "Mine": Mine, "TYPED": WithType(),
    "METHODS": WithMethods(), "F16": np.dtype("f2"), "BF16": ml_dtypes.bfloat16(1), "N": 3,
}  # fmt: skip


def function(body, arguments="x, n"):
    """Return a function whose source the checks find, from the second line of its file on."""
    text = f"\ndef kernel({arguments}):\n    {body}\n"
    place = f"<{text}>"
    linecache.cache[place] = len(text), None, text.splitlines(True), place
    names = dict(NAMES)
    exec(compile(text, place, "exec"), names)
    return names["kernel"]


#: Statements, and what is said of them; some of them in a kernel alone.
REFUSED = {
    "y = {1}": "a set: compare", "y = {i for i in x}": "a set: compare",
    "y = {}": "a dictionary: use", "y = {i: 1 for i in x}": "a dictionary: use",
    "y = [i for i in x]": "a list comprehension", "y = sum(i for i in x)": "a generator expression",
    "y = f'{n}'": "a formatted string", "class A: pass": "a class: define it outside",
    "import os": "an import: put", "from os import path": "an import: put",
    "global N; N = 1": "a global statement", "del n": "a del statement", "yield n": "a yield: a",
    "yield from x": "a yield: a",
    "def a():\n        nonlocal n\n        n = 1": "a nonlocal statement",
    "async def a(): pass": "an async function",
    "a, *b = x": "unpacks no rest of a tuple", "y = []": "no lists that grow",
    "y = 'a%d' % n": "formats no text", "y = 'a'.join(x)": "computes no text",
    "ARRAY[0] = 1": "ARRAY is a global", "LIST[0] = 1": "LIST is a global",
    "y = sorted(x)": "no sorted()", "open('x')": "no open()", "y = MAPPING": "MAPPING is a dict",
    "y = NAMES": "NAMES is a set", "y = FROZEN": "FROZEN is a frozenset", "y = LIST": "is a list",
    "y = plain(n)": "plain is a plain Python function", "y = time.time()": "no time.time()",
    "y = MINE": "MINE is of the class Mine", "if n.is_producer: pass": "and so never false",
    "while n.is_member: pass": "and so never false", "y = 1 if n.enters else 2": "so never false",
    "y = np.zeros(3)": "np.zeros makes an array", "y = np.copy(x)": "np.copy makes an array",
    "y = np.random.rand()": "np.rand makes an array",
    "ptx.cp_async_bulk_wait_group(cuda.threadIdx.x)": "(pending=...) is part of the instruction",
    "ptx.cp_async_bulk_wait_group(pending=cuda.blockIdx.x)": "(pending=...) is part of the instr",
    "y = cuda.shared.array(cuda.threadIdx.x, float32)": "the shape of an array in a kernel",
}  # fmt: skip
OF_KERNELS = {
    "return n": "a kernel returns no value", "return 0": "a kernel returns no value",
    "y = cuda.shared.array(n, float32)": "the shape of an array in a kernel",
    "y = cuda.local.array((2, n), float32)": "the shape of an array in a kernel",
    "ptx.cp_async_bulk_wait_group(n)": "must be a literal, not n",
    "n.consume(0, in_flight=n)": "in_flight must be a compile-time constant",
    "n.consume(0, in_flight=n - 1)": "in_flight must be a compile-time constant",
}  # fmt: skip
ACCEPTED = [
    "pass", "return", "return None", "y = (1, 2)", "a, b = x", "y = [1, 2]", "y = [n]",
    "y = n % 3", "y = 'a'", "y = x.shape", "x[0] = 1", "y = x\n    y[0] = 1", "PAIR[0]",
    "ARRAY = x\n    ARRAY[0] = 1", "y = ARRAY[0]", "y = PAIR", "y = TILES",
    "sorted = n\n    y = sorted",
    "y = len(x)", "y = device(n)", "y = math.sin(1.0)", "y = np.sin(1.0)", "y = np.float32(1)",
    "y = time", "y = Color.RED", "y = RED", "y = Mine", "y = TYPED", "y = METHODS", "y = F16",
    "y = BF16", "y = unknown", "y = time.unknown", "y = n.unknown", "if n.is_producer(): pass",
    "if n.x: pass", "y = n.is_producer", "y = cuda.shared.array(N, float32)",
    "y = cuda.local.array((2, 3), float32)", "y = n.array(n)", "y = cuda.shared.array()",
    "ptx.cp_async_bulk_wait_group(1)", "ptx.cp_async_bulk_wait_group(N)",
    "n.consume(0, in_flight=1)", "n.consume(0, in_flight=N)", "n.consume(0, other=n)",
    "n.zeros(3)", "y = np.zeros", "y = (lambda i: i * 2)(n)", "def a(i):\n        return i",
    "def a(MINE):\n        y = MINE", "def a():\n        MINE = 1\n        y = MINE",
    "assert n, 'text'", "print('a', n)",
]  # fmt: skip


@pytest.mark.parametrize("device", [False, True])
def test_what_is_refused_and_what_is_not(device):
    for body, text in (REFUSED | ({} if device else OF_KERNELS)).items():
        with pytest.raises(NotCompiled) as caught:
            check_code(function(body), device=device)
        assert text in str(caught.value), body
    for body in ACCEPTED + (list(OF_KERNELS) if device else []):
        check_code(function(body), device=device)


def test_a_refusal_names_function_and_line():
    body = "pass\n    y = (n,\n         sorted(x))"
    for _ in range(2):  # what is refused is read again
        with pytest.raises(NotCompiled, match=r"^kernel, line 5: the compiler has no sorted\(\)$"):
            check_code(function(body), device=False)


@pytest.mark.parametrize("source", ["", "\nx = 1\n", "\n(\n", "\ndef other(x, n):\n    {1, 2}\n"])
def test_without_its_source_a_function_is_not_checked(source):
    kernel = function(f"y = {{1, {len(source)}}}")  # code that no other test has read
    place = kernel.__code__.co_filename
    linecache.cache[place] = len(source), None, source.splitlines(True), place
    check_code(kernel, device=False)


def test_what_a_closure_names_is_known():
    def around(value):
        def kernel(x):
            x[0] = value

        return kernel

    check_code(around(1), device=False)
    with pytest.raises(NotCompiled, match="the global value is a dict"):
        check_code(around({}), device=False)

    def later(x):
        x[0] = not_yet  # a run decides it

    check_code(later, device=False)
    not_yet = {}
    with pytest.raises(NotCompiled, match="the global not_yet is a dict"):
        check_code(type(later)(later.__code__, {}, "later", None, later.__closure__), device=False)


class Loop:
    def produce(self, first, stop=None, step=1):
        check_step("produce", step)

    def other(self, *_):
        pass


#: Statements of a kernel whose step is -1, and the step that is refused; "" if it is none.
STEPS = {
    "loop.produce(3, -1, -1)": "", "loop.produce(3, -1, step=-1)": "",
    "loop.produce(3, -1, n)": "n",
    "loop.produce(3, -1, step=n)": "n", "loop.produce(3, step=n - 0)": "n - 0",
    "loop.produce(3, n, -1)": "", "b = -1\n    loop.produce(3, -1, b)": "",
    "b = n\n    loop.produce(3, -1, b)": "b", "b = int(-1)\n    loop.produce(3, -1, b)": "b",
    "b = -1\n    b = -1\n    loop.produce(3, -1, b)": "b",
    "b, c = -1, 2\n    loop.produce(3, -1, b)": "b",
    "b = 1\n    loop.produce(3, -1, -b)": "", "b = 1\n    loop.produce(3, -1, n * b)": "n * b",
    "loop.produce(3, -1, -ONE)": "", "loop.produce(\n        3, -1,\n        n)": "n",
    "loop.other(n, n, n); loop.produce(3, -1, -1)": "",
}  # fmt: skip


@pytest.mark.parametrize("body", STEPS)
def test_a_negative_step_is_a_constant_of_the_source(body, monkeypatch):
    kernel = function(body, "loop, n")
    kernel.__globals__["ONE"] = 1
    monkeypatch.setitem(KERNEL_CODE, id(kernel.__code__), kernel.__code__)
    if not STEPS[body]:
        kernel(Loop(), -1)
        return
    with pytest.raises(NotCompiled) as caught:
        kernel(Loop(), -1)
    assert str(caught.value).startswith(f"produce(step={STEPS[body]}) is -1 here, and a compiled")


def test_a_step_of_the_host_is_not_checked():
    function("loop.produce(3, -1, n * 2)", "loop, n")(Loop(), -1)
