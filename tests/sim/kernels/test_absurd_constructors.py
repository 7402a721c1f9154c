"""No constructor, launcher or map takes a senseless value in silence; errors are in our words.

As in `test_absurd_values`: each argument gets each absurd value, in turn.
"""

import functools
import itertools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.pointwise import add, scale_add
from tests.sim.kernels.test_absurd_values import ABSURD, NUMBERS, STREAM, complaint, no_launches

__all__ = ["no_launches"]
TILE, ROW = tma.Tile((8, 32), "f32"), tma.Tile((1, 32), "f32")
MATRIX = tma.Tile((64, 64), "bf16", tma.Swizzle.B128)
ROLES = tma.Roles(load=tma.Warps(1), math0=tma.Warpgroups(1), math1=tma.Warpgroups(1))
MATH = (ROLES.math0, ROLES.math1)
X, IMAGES = np.ones((64, 64), np.float32), np.ones((2, 9, 9, 32), np.float32)


@cuda.jit
def kernel(x):
    x[0] = 1


NONE, LARGE = {"None"}, {"10**12"}
SIZE = {"list", "tuple"}  # of extents along axes
#: A tile is as large as one likes, until a kernel starts with it.
USUAL = {"cluster": SIZE | NONE, "registers": NONE, "grid": SIZE, "block": SIZE, "roles": NONE}
USUAL |= dict.fromkeys(("group", "block_q", "block_k"), LARGE)
USUAL |= {"l2_promotion": NONE, "swizzle": NONE | {"0"}, "filter": NONE, "padding": {"0"}}
USUAL |= {"stream": STREAM, 1: {"0"}}  # 1: the prefetch of a CircularBuffer
#: Of each callable: its valid arguments by name (a number: by place), and what makes sense besides.
CALLS = {
    "add": (
        add,
        {0: X, 1: X, "out": X + 1, "stream": None, "plan": None, "dtype": None},
        {1: NUMBERS | {"nan"}, "out": NONE, "stream": STREAM},
    ),
    "scale_add": (scale_add, {0: X, 1: X, 2: 1.0, 3: 1.0}, dict.fromkeys((1, 2, 3), NUMBERS)),
    "Warps": (tma.Warps, {"count": 1, "registers": 0}, {}),
    "Warpgroups": (tma.Warpgroups, {"count": 1, "registers": 0}, {}),
    "Threads": (tma.Threads, {"count": 1, "registers": 0}, {}),
    "Roles": (tma.Roles, {"load": tma.Warps(1)}, {}),
    "NamedBarrier": (tma.NamedBarrier, {"barrier_id": 8, "threads": 64}, {}),
    "TilePipeline": (
        tma.TilePipeline,
        {0: 2, "x": TILE, "k_group": 1, "producer": ROLES.load, "consumer": MATH}
        | {"filled_by": "tma", "released_by": "threads", "alternate": False, "cluster": None}
        | {"cta_group": 1, "multicast": None, "debug": None},
        {},
    ),
    "StorePipeline": (
        tma.StorePipeline,
        {0: 2, "x": TILE, "role": None, "debug": None},
        {},
    ),
    "CircularBuffer": (
        tma.CircularBuffer,
        {0: 3, 1: None, "x": TILE, "war": "sync", "barriers": "one", "role": None, "debug": None},
        {},
    ),
    "KVPipeline": (
        tma.KVPipeline,
        {"num_kv_stages": 2, "block_n": 64, "depth": 64, "dtype": "bf16", "num_qk_stages": 1}
        | {"producer": ROLES.load, "consumer": MATH, "holds": "kv", "swizzle": tma.Swizzle.B128}
        | {"released_by": "threads", "debug": None},
        {"swizzle": ()},
    ),
    "OutputTilePipeline": (
        tma.OutputTilePipeline,
        {"num_stages": 2, "acc": tma.Tile((128, 32), "f32"), "mma": ROLES.load}
        | {"epilogue": ROLES.math0, "memory": "shared", "stage_stride_cols": None}
        | {"extra_columns": 0, "cta_group": 1, "cluster": None, "debug": None},
        {"cluster": NONE},
    ),
    "OrderedSequenceBarrier": (
        tma.OrderedSequenceBarrier,
        {"depth": 2, "roles": MATH, "debug": None},
        {"roles": ()},
    ),
    "LaunchControl": (
        tma.LaunchControl,
        {"roles": ROLES, "asks": None, "slots": 3, "cluster": 1, "debug": None},
        {"cluster": SIZE},
    ),
    "GridStridedScheduler": (tma.GridStridedScheduler, {"order": "C"}, {}),
    "GroupedScheduler": (tma.GroupedScheduler, {"group": 4, "axis": 0}, {}),
    "CausalLPTScheduler": (
        tma.CausalLPTScheduler,
        {"block_q": 64, "block_k": 64, "group": None},
        {},
    ),
    "PersistentGrid": (tma.PersistentGrid, {"cluster": 1}, {"cluster": SIZE}),
    "TensorMemory": (
        tma.TensorMemory,
        {"columns": 512, "role": None, "cta_group": 1, "cluster": None},
        {},
    ),
    "MatrixLayout": (tma.MatrixLayout, {"tile": MATRIX, "major": "K", "instruction": "wgmma"}, {}),
    "launcher": (
        tma.launcher,
        {"kernel": kernel, "grid": 1, "block": 32, "cluster": None, "stream": None, "pdl": False},
        {},
    ),
    "gather_map": (
        tma.gather_map,
        {"array": X, "tile": TILE, "l2_promotion": 128, "oob_fill": "zeros", "dtype": None}
        | {"overwrite_padding": False},
        {},
    ),
    "ragged_tensor_map": (
        tma.ragged_tensor_map,
        {"array": X, "tile_or_box": TILE, "axis": 0, "encoding": None, "swizzle": None}
        | {"l2_promotion": 128, "oob_fill": "zeros", "dtype": None, "overwrite_padding": False},
        {},
    ),
    "im2col_map": (
        tma.im2col_map,
        {"array": IMAGES, "tile_or_column": TILE, "filter": 3, "padding": 1, "stride": 1}
        | {"dilation": 1, "swizzle": None, "l2_promotion": 128, "oob_fill": "zeros"}
        | {"interleave": None, "dtype": None, "overwrite_padding": False},
        {},
    ),
}


#: Arguments that errors call otherwise: most by their place in the constructor's text.
SHOWN = {"0": "", "1": "", "2": "", "3": "", "count": "", "load": "Roles", "x": ""}
SHOWN |= {
    "block_n": "",
    "tile_or_column": "im2col_map",
    "tile_or_box": "box",
    "array": "array",
    "kernel": "",
}


@pytest.mark.parametrize("name", CALLS)
def test_raw_python_errors(name):
    function, valid, sensible = CALLS[name]

    def call(**changed):
        given = {str(argument): value for argument, value in valid.items()} | changed
        places = [given.pop(k) for k in sorted(k for k in given if k.isdigit())]
        return function(*places, **given)

    assert complaint(name, "", True, call) is None
    sensible = {**USUAL, **sensible}
    wrong = []
    for argument, (kind, value) in itertools.product(valid, ABSURD.items()):
        fits = kind in sensible.get(argument, ()) or value is valid[argument]
        fits |= kind == "0" and type(valid[argument]) is int and valid[argument] == 0
        one = functools.partial(call, **{str(argument): value})
        shown = SHOWN.get(str(argument), str(argument))
        if (text := complaint("", shown, fits, one)) is not None:
            wrong.append(f"{name}({argument}={value!r}): {text}")
    assert not wrong, "\n".join(wrong)
