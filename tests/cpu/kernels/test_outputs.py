"""New arrays for results: of which libraries, and the error for any other."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host.outputs import empty, empty_like
from numba_tma.kernels.attention import attention_backward
from numba_tma.kernels.pointwise import add
from numba_tma.kernels.rows import layernorm_backward
from numba_tma.kernels.rows.reductions import new_array


class Shown:
    """Device memory that only knows the CUDA array interface."""

    def __init__(self, shape, typestr="<f4"):
        self.shape = shape
        self.__cuda_array_interface__ = {
            **{"shape": shape, "strides": None, "typestr": typestr, "version": 3},
            **{"data": (0x7F0000000000, False)},
        }


X, VECTOR, HEADS = Shown((4, 8)), Shown((4,)), Shown((1, 8, 2, 64), "<f2")
CALLS = {
    "add(): x is a": ("out", lambda: add(X, X)),
    "layernorm_backward(): x is a": (
        "dx",
        lambda: layernorm_backward(X, X, mean=VECTOR, rstd=VECTOR),
    ),
    "attention_backward(): k is a": (
        "dk",
        lambda: attention_backward(*[HEADS] * 5, Shown((1, 2, 8)), dq=HEADS),
    ),
}


@pytest.mark.parametrize("text", CALLS)
def test_a_library_that_makes_no_arrays_is_named_with_the_argument_and_the_output(text):
    out, call = CALLS[text]
    with pytest.raises(TypeError) as caught:
        call()
    name = f"{Shown.__module__}.Shown"
    assert str(caught.value) == (
        f"{text} {name}, and new arrays are of torch, CuPy or Numba alone: pass {out}="
    )


class _Of:
    """An array of a library: its element type is the library's float32."""

    dtype, device, shape = "<f4", "cuda:3", (4, 8)
    __cuda_array_interface__ = Shown((4, 8)).__cuda_array_interface__

    def new_empty(self, shape, dtype):
        return "torch", shape, dtype, self.device


class Torch(_Of):
    __module__ = "torch.tensors"


class CuPy(_Of):
    __module__ = "cupy.core"


class Numba(_Of):
    __module__ = "numba.cuda.arrays"


@pytest.fixture
def libraries(monkeypatch):
    """Put libraries that note what they are asked for in the place of the installed ones."""
    types_ = {name: f"torch {name}" for name in ("float16", "float32", "int64", "bfloat16")}
    torch = {"empty": lambda shape, *, dtype, device: ("torch", shape, dtype, device)}
    for name in ("torch", "cupy"):
        like = {"empty_like": lambda array, name=name: (name, array.shape)}
        own = torch if name == "torch" else {"empty": lambda shape, dtype: ("cupy", shape, dtype)}
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**types_, **like, **own))
    monkeypatch.setattr(cuda, "device_array", lambda shape, dtype: ("numba", shape, dtype))


F16, BF16, F32 = map(as_dtype, ("f16", "bf16", "f32"))


@pytest.mark.parametrize(
    ("cls", "dtype", "made"),
    [
        (Torch, None, ("torch", (2, 3), None, "cuda:3")),
        (Torch, F16, ("torch", (2, 3), "torch float16", "cuda:3")),
        (Torch, BF16, ("torch", (2, 3), "torch bfloat16", "cuda:3")),
        (CuPy, None, ("cupy", (2, 3), "<f4")), (CuPy, F16, ("cupy", (2, 3), F16.numpy)),
        (CuPy, BF16, ("cupy", (2, 3), "u2")), (Numba, None, ("numba", (2, 3), "<f4")),
        (Numba, F16, ("numba", (2, 3), F16.numpy)), (Numba, BF16, ("numba", (2, 3), "u2")),
    ],
)  # fmt: skip
def test_a_new_array_is_of_the_library_of_its_model(libraries, cls, dtype, made):
    assert empty("f", "x", cls(), (2, 3), dtype) == made
    if dtype is F16:
        assert new_array(cls(), (2, 3), dtype) == made


@pytest.mark.parametrize(
    ("cls", "made"),
    [(Torch, ("torch", (4, 8))), (CuPy, ("cupy", (4, 8))), (Numba, ("numba", (4, 8), "<f4"))],
)
def test_an_array_like_another_is_of_its_library(libraries, cls, made):
    assert empty_like("f", "x", cls()) == made


def test_an_array_of_no_such_library_gets_numbas_sums(libraries):
    assert new_array(Shown((4, 8)), (8,), F32) == ("numba", (8,), np.dtype(np.float32))
