"""New arrays for results: of which libraries, and the error for any other."""

import pytest

from numba_tma.kernels.attention import attention_backward
from numba_tma.kernels.pointwise import add
from numba_tma.kernels.rows import layernorm_backward


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
