"""Errors of kernels: the library's sentence, and the line of the kernel."""

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.numba_cuda import refusals
from numba_tma.tools.testing import compile_ptx

TILE = tma.Tile((8, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)
ARRAY = types.float32[:]


def text(kernel, *signature):
    """Return the lines of the error of a kernel."""
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, signature)
    return str(caught.value).splitlines()


@cuda.jit
def wrong_call(x):
    tma.shared_tile(3)
    x[0] = 1


@cuda.jit
def wrong_instruction(x):
    ptx.setmaxnreg_dec(41)
    x[0] = 1


@cuda.jit
def wrong_method(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load(tile, (0, 0, 0), barrier)


@cuda.jit
def wrong_index(x):
    x[0] = tma.shared_tile(TILE)[1, 2, 3]


@cuda.jit(device=True)
def helper(x, tile, barrier):
    x.load(tile, (0, 0, 0), barrier)


@cuda.jit
def wrong_helper(x):
    helper(x, tma.shared_tile(TILE), tma.shared_barrier())


@cuda.jit
def starts_in_a_loop(x):
    for _ in range(3):
        PIPE.start()


MAP = tma.TensorMapType(2, TILE)


@pytest.mark.parametrize(
    ("kernel", "argument", "sentence", "line"),
    [
        (wrong_call, ARRAY, "shared_tile(tile=...) takes a Tile, not 3", "tma.shared_tile(3)"),
        (wrong_instruction, ARRAY, "setmaxnreg_dec(registers=...) is 41", "ptx.setmaxnreg_dec(41)"),
        (wrong_method, MAP, "TensorMap.load: 3 coordinates for", "x.load(tile, (0, 0, 0)"),
        (wrong_index, ARRAY, "Tile((8, 32), f32, NONE) has 2 axes but", "x[0] = tma.shared_tile"),
        (wrong_helper, MAP, "TensorMap.load: 3 coordinates for", "x.load(tile, (0, 0, 0)"),
        (starts_in_a_loop, ARRAY, "", "PIPE.start()"),
    ],
    ids=lambda value: getattr(getattr(value, "py_func", None), "__name__", None),
)
def test_the_sentence_comes_first_and_then_the_line(kernel, argument, sentence, line):
    first, *others = text(kernel, argument)
    assert first.startswith(sentence) and "pipeline (step" not in first
    assert sum("File " in other and "test_refusals.py" in other for other in others) == 1, others
    assert any(other.strip().startswith(line) for other in others), others
    joined = "\n".join(others)
    assert "Resolution failure" not in joined and "implementation" not in joined


@cuda.jit
def of_numba(x):
    x[0] = x.absent


@cuda.jit
def of_an_unknown_function(x):
    x[0] = len(1.0)


@pytest.mark.parametrize("kernel", [of_numba, of_an_unknown_function])
def test_errors_of_numba_are_left_alone(kernel):
    whole = "\n".join(text(kernel, ARRAY))
    assert "Unknown attribute 'absent'" in whole or "No implementation of function" in whole


def test_the_whole_text_is_behind_a_variable(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_FULL_ERRORS", "1")
    assert text(wrong_method, MAP)[0] == "- Resolution failure for literal arguments:"


def test_colours_are_left_out():
    said = "\x1b[1m- Resolution failure for {} arguments:\n{}\n\x1b[0m".format
    error = TypingError(said("literal", "None") + said("non-literal", "\x1b[31mwrong\x1b[0m"))
    error.numba_tma_method = True
    refusals.shorten(error)
    assert str(error) == "wrong"


def test_a_place_in_the_kernel_replaces_one_in_the_library():
    class Loc:
        def __init__(self, filename):
            self.filename = filename

    inside, outside, other = Loc(refusals.__file__), Loc("kernel.py"), Loc("caller.py")
    error = TypingError("wrong")
    for loc, kept in ((inside, inside), (outside, outside), (other, outside)):
        refusals.note_place(error, None, loc)
        assert error.numba_tma_place is kept and not error.numba_tma_method
