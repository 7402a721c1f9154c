"""The launches of attention's gradients without a GPU: blocks, workspaces and arguments."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host import driver as _driver
from numba_tma.host.arrays import Array
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.backward import launch as module
from numba_tma.kernels.attention.backward.plan import BackwardPlan, plan_for
from numba_tma.kernels.matmul import Config
from tests.cpu.host.test_launcher import device_array
from tests.cpu.kernels.test_attention import array

NAMES = ("prepare_kernel", "backward_kernel", "finish_kernel", "add_splits_kernel")
_places = itertools.count(1)


@pytest.fixture
def gpu(monkeypatch):
    """Note what is launched, with no GPU: a kernel is its name and form, a map its array."""
    noted = SimpleNamespace(launches=[], spaces=[])

    def launch(kernel, blocks, threads, stream, *given, pdl=False):
        name, *form = kernel
        noted.launches.append(
            SimpleNamespace(name=name, form=form, grid=(blocks, threads), given=given, pdl=pdl)
        )

    def space(rows, columns):
        place = (1 << 45) + (next(_places) << 28)
        noted.spaces.append(device_array((rows, columns), np.float32, address=place))
        return noted.spaces[-1]

    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(module, "float_workspace", space)
    monkeypatch.setattr(module, "sm_count", lambda: 132)
    monkeypatch.setattr(module, "map_of", lambda array, tile: (array.address, tile.shape))
    monkeypatch.setattr(module, "tensor_map", lambda a, tile: (a.address, a.shape, tile.shape))
    for name in NAMES:
        monkeypatch.setattr(module, name, lambda *form, name=name: (name, *form))
    return noted


def address(of):
    return Array.read("f", "x", of).address


def called(batch, queries, keys, heads, kv_heads, depth, **options):
    """Call for arrays of these sizes, and return them by name."""
    q, k = (batch, queries, heads, depth), (batch, keys, kv_heads, depth)
    shapes = {"dout": q, "q": q, "k": k, "v": k, "out": q, "dq": q, "dk": k, "dv": k}
    arrays = {name: array(shape, np.float16) for name, shape in shapes.items()}
    arrays["lse"] = array((batch, heads, queries), np.float32)
    attention_backward(**arrays, **options)
    return arrays


CASES = [
    # batch, queries, keys, heads, heads of K, head dim
    (1, 1, 1, 1, 1, 64),
    (1, 64, 128, 2, 1, 64),
    (2, 129, 257, 8, 4, 64),
    (3, 65, 127, 6, 2, 128),
    (1, 1000, 300, 4, 4, 128),
]


@pytest.mark.parametrize(
    ("case", "splits"), [(case, n) for case in CASES for n in (1, 2) if case[3] // case[4] % n == 0]
)
def test_each_array_and_number_has_its_place(gpu, case, splits):
    """Of dQ each warpgroup has parts of 64 x 64; lse and delta are padded to steps of queries."""
    batch, queries, keys, heads, kv_heads, depth = case
    group = heads // kv_heads
    plan = BackwardPlan(heads_together=3, splits=splits)
    arrays = called(*case, scale=0.5, plan=plan)
    at = {name: address(given) for name, given in arrays.items()}
    strides = {n: Array.read("f", n, a).strides[:3] for n, a in arrays.items() if n != "lse"}
    step = {64: 128, 128: 64}[depth]  # queries
    steps = math.ceil(queries / step)
    parts = batch * heads * steps * step * depth // (64 * 64)
    split_rows = batch * kv_heads * splits * keys
    shapes = [(parts, 64 * 64), *[(batch * heads, steps * step)] * 2, (parts, 1)]
    shapes += [(split_rows, depth)] * 2 if splits > 1 else []
    assert [space.shape for space in gpu.spaces] == shapes
    sums, scaled_lse, delta, turns, split_dk, split_dv = (
        *map(address, gpu.spaces), *[0] * (2 * (splits == 1)),
    )  # fmt: skip
    prepare, backward, finish, *add = gpu.launches
    assert [launch.name for launch in gpu.launches] == [*NAMES[: 3 + (splits > 1)]]
    assert [launch.pdl for launch in gpu.launches] == [False] * 3 + [True] * (splits > 1)

    (problem,) = prepare.form
    assert (problem.head_dim, problem.dtype.name, problem.splits) == (depth, "f16", False)
    assert prepare.grid == (batch * heads * steps * step * depth / 8 / 256, 256)
    assert prepare.given == (
        *(at["dout"], strides["dout"], at["out"], strides["out"], at["lse"]),
        *(scaled_lse, delta, sums, turns, parts, queries, heads, steps),
    )

    problem, taken, deterministic = backward.form
    assert (problem.splits, taken, deterministic) == (
        *(splits > 1, BackwardPlan(heads_together=3), False),
    )
    assert backward.grid == (batch * kv_heads * splits * math.ceil(keys / 128), 384)
    *maps, of_sums, dk, dv, in_turn = backward.given[:10]
    rows = {"q": step, "k": 128, "v": 128, "dout": step}
    assert maps[:4] == [(at[n], (1, rows[n], 1, depth)) for n in ("q", "k", "v", "dout")]
    assert maps[4:] == [(a, (batch * heads, steps * step), (1, step)) for a in (scaled_lse, delta)]
    assert of_sums == (sums, (parts, 16, 256), (1, 16, 256))
    assert (dk, dv) == tuple((at[n], (1, 64, 1, depth)) for n in ("dk", "dv"))
    assert (address(in_turn), in_turn.shape, in_turn.dtype.name) == (turns, (parts,), "i32")
    *numbers, scale, per_power_of_2 = backward.given[10:]
    assert numbers == [queries, keys, kv_heads, batch, group // splits, splits, split_dk, split_dv]
    assert scale == np.float32(0.5) and per_power_of_2 == np.float32(0.5 / math.log(2))

    for launch in (finish, *add):
        assert [of if of == depth else of.name for of in launch.form] == ["f16", depth]
    assert finish.grid == (parts, 256)
    assert finish.given == (sums, at["dq"], strides["dq"], queries, heads, steps, np.float32(0.5))

    for launch in add:
        chunks = batch * kv_heads * keys * depth // 8
        assert launch.grid == (math.ceil(chunks / 256), 256)
        assert launch.given == (
            *(split_dk, split_dv, at["dk"], strides["dk"], at["dv"], strides["dv"]),
            *(batch * kv_heads * keys, keys, kv_heads, splits),
        )


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        (BackwardPlan(splits=3), ValueError, "splits divides the 4 heads of q that share a head"),
        (Config(), TypeError, r"attention_backward\(plan=Config"),
    ],
)
def test_a_plan_that_is_for_other_heads_or_functions(gpu, plan, error, text):
    with pytest.raises(error, match=text):
        called(1, 64, 64, 4, 1, 64, plan=plan)
    assert not gpu.launches


def test_gradients_lie_beside_what_is_read(gpu):
    dout, q, k, v, out, *gradients = (array((1, 64, 4, 64), np.float16) for _ in range(8))
    lse = array((1, 4, 64), np.float32)
    for name in ("dq", "dk", "dv"):
        given = dict(zip(("dq", "dk", "dv"), gradients)) | {name: k}
        with pytest.raises(ValueError, match=f"{name}.* shares memory"):
            attention_backward(dout, q, k, v, out, lse, **given)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_only_an_empty_batch_launches_nothing(gpu, batch):
    called(batch, 64, 64, 2, 1, 64)
    assert bool(gpu.launches) == bool(gpu.spaces) == (batch > 0)


@pytest.mark.parametrize(("causal", "deterministic"), [*itertools.product([False, True], repeat=2)])
def test_a_kernel_is_for_the_mask_and_the_order_that_a_call_names(gpu, causal, deterministic):
    called(1, 64, 64, 2, 1, 64, causal=causal, deterministic=deterministic)
    assert gpu.launches[0].form[0].causal is causal
    problem, _, in_order = gpu.launches[1].form
    assert (problem.causal, in_order) == (causal, deterministic)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 2), (1, 8), (8, 1), (8, 8)])
def test_the_plan_is_for_the_heads_of_all_sequences(gpu, batch, kv_heads):
    called(batch, 512, 512, 4 * kv_heads, kv_heads, 64, causal=True)
    problem, plan, _ = gpu.launches[1].form
    chosen = plan_for(problem, 512, 512, batch * kv_heads, 4, 132)
    assert (plan.stages, plan.heads_together) == (chosen.stages, chosen.heads_together)
    assert gpu.launches[1].given[-5] == chosen.splits


@pytest.mark.parametrize(("depth", "scale"), [(64, 0.125), (128, 128**-0.5)])
def test_scores_are_divided_by_the_root_of_the_head_dim(gpu, depth, scale):
    called(1, 64, 64, 2, 1, depth)
    assert gpu.launches[2].given[-1] == np.float32(scale)
