"""The launches of attention without a GPU: blocks, maps, masks, splits and scales."""

import itertools
import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.host import driver as _driver
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention import attention, attention_varlen, split_kv
from numba_tma.kernels.attention import launch as module
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from tests.cpu.host.test_launcher import device_array
from tests.cpu.kernels.test_attention import array as shown

SMS = 132
ONE, TWO = AttentionPlan(1, 64), AttentionPlan(2, 64)
BLACKWELL = Tcgen05AttentionPlan()
_places = itertools.count(1)  # launches of another test's arrays are not repeated


def array(*shape, dtype=np.float16):
    return device_array(shape, dtype, address=(1 << 41) + (next(_places) << 28))


@pytest.fixture
def gpu(monkeypatch):
    """Note what is launched, with no GPU: a kernel is its problem and plan, a map its array."""
    noted = SimpleNamespace(launches=[], combined=[], spaces=[], counters=[])

    def launch(kernel, blocks, threads, stream, *arguments):
        *maps, queries, keys, heads, batch, group, scale, options = arguments
        (q, q_tile), (k, k_tile), (v, v_tile), (out, out_tile) = maps
        assert isinstance(kernel[0], AttentionProblem)
        noted.launches.append(
            SimpleNamespace(
                **{"problem": kernel[0], "plan": kernel[1], "blocks": blocks, "threads": threads},
                **{"q": q, "k": k, "v": v, "out": out, "scale": scale, "options": options},
                **{"tiles": (q_tile, k_tile, v_tile, out_tile)},
                **{"extents": (queries, keys, heads, batch, group)},
            )
        )

    def counter():
        noted.counters.append(array(1, dtype=np.uint32))
        return noted.counters[-1]

    def space(rows, columns):
        noted.spaces.append(array(rows, columns, dtype=np.float32))
        return noted.spaces[-1]

    for name, fake in {
        "launch": launch,
        "queue_counter": counter,
        "sm_count": lambda: SMS,
        "has_tcgen05": lambda: False,
        "attention_kernel": lambda *form: form,
        "tcgen05_attention_kernel": lambda *form: form,
        "map_of": lambda array, tile: (array, tile),
        "ragged_map_of": lambda array, tile: (array, tile),
        "transposed_v": lambda v, stream, workspace: ("transposed", v, stream),
        "combine_splits": lambda *given: noted.combined.append(given),
    }.items():
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(split_kv, "float_workspace", space)
    monkeypatch.setattr(cuda, "as_cuda_array", lambda view: view)
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    return noted


def launched(gpu, queries, keys, heads=1, kv_heads=None, batch=1, depth=64, **options):
    """Return the launch for sequences of these lengths."""
    q, out = (array(batch, queries, heads, depth) for _ in range(2))
    k, v = (array(batch, keys, kv_heads or heads, depth) for _ in range(2))
    attention(q, k, v, out, **options)
    done = gpu.launches[-1]
    done.given = {"q": q, "k": k, "v": v, "out": out}
    return done


def packed(gpu, rows, sequences, heads=1, **options):
    """Return the launch for so many sequences of `rows` in all."""
    q, k, v, out = (array(rows, heads, 64) for _ in range(4))
    starts = [array(sequences + 1, dtype=np.int32) for _ in range(2)]
    attention_varlen(q, k, v, *starts, out, **options)
    return gpu.launches[-1]


# ----------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("plan", [ONE, TWO, BLACKWELL], ids=["one", "two", "blackwell"])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 3), (5, 32)])
@pytest.mark.parametrize("queries", [2, 128, 129, 1000])
def test_every_tile_has_a_block_or_blocks_have_the_fewest_tiles(gpu, queries, batch, heads, plan):
    """A block has the same number of equal tiles as all SMs would; under a mask all SMs run."""
    tiles = batch * heads * math.ceil(queries / plan.block_q)
    full = launched(gpu, queries, 300, heads, batch=batch, plan=plan)
    waves = math.ceil(tiles / SMS)
    assert math.ceil(tiles / full.blocks) == waves and full.blocks == math.ceil(tiles / waves)
    causal = launched(gpu, queries, 300, heads, batch=batch, plan=plan, causal=True)
    assert causal.blocks == min(tiles, SMS)
    assert full.threads == causal.threads == plan.threads
    assert full.extents == causal.extents == (queries, 300, heads, batch, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "heads", "kv_heads", "packed_heads"), [
    (1, 8, 2, 4), (67, 32, 8, 4), (67, 32, 8, 2), (300, 8, 1, 8)])  # fmt: skip
def test_heads_in_one_tile_are_one_head_of_more_rows(
    gpu, queries, heads, kv_heads, packed_heads, causal
):
    plan = AttentionPlan(2, 64, packed_heads=packed_heads)
    done = launched(gpu, queries, 90, heads, kv_heads, 3, plan=plan, causal=causal)
    packs = heads // packed_heads
    assert done.extents == (queries, 90, packs, 3, packs // kv_heads)
    tiles = 3 * packs * math.ceil(queries * packed_heads / 128)
    assert done.blocks <= min(tiles, SMS) and math.ceil(tiles / done.blocks) == math.ceil(
        tiles / SMS
    )
    (q_tile, k_tile, _), out_tile = done.tiles[:3], done.tiles[3]
    assert q_tile.shape == out_tile.shape == (1, 64 // packed_heads, packed_heads, 64)
    assert k_tile.shape == (1, 64, 1, 64)
    assert done.q.shape == done.out.shape == (3, queries, heads, 64)


@pytest.mark.parametrize(
    ("rows", "sequences", "heads"), [(1, 1, 1), (1, 4, 3), (300, 3, 4), (1000, 5, 2), (9000, 2, 8)]
)
def test_packed_sequences_have_blocks_for_any_lengths(gpu, rows, sequences, heads):
    """The most tiles: one row in every sequence but one, or all rows in one."""
    done = packed(gpu, rows, sequences, heads, plan=TWO)
    others = min(rows, sequences) - 1
    most = heads * (others + math.ceil((rows - others) / TWO.block_q))
    assert min(most, SMS) <= done.blocks <= min(most + heads * sequences, SMS)
    assert done.extents == (rows, rows, heads, sequences, 1)
    assert done.problem.packed and not done.problem.tiles_are_equal


# ------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    ("window", "causal"),
    [(None, False), (None, True), ((100, 7), False), ((100, 7), True), ((100, None), False),
     ((900, 3), False), ((None, 5), False)],
)  # fmt: skip
@pytest.mark.parametrize(("queries", "keys"), [(300, 800), (700, 640), (5, 40)])
def test_a_plan_is_for_the_keys_that_a_tile_of_queries_sees(gpu, queries, keys, window, causal):
    """Of 128 queries; all keys where the window has no end on the left."""
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr(module, "plan_for", lambda *given: asked.append(given) or ONE)
        done = launched(gpu, queries, keys, 6, 2, 4, window=window, causal=causal)
    ((problem, *sizes),) = asked
    assert problem == done.problem and done.plan == ONE
    left, right = window or (None, None)
    right = 0 if causal else right
    first = np.arange(queries) + keys - queries - (keys + queries if left is None else left)
    last = np.arange(queries) + keys - queries + (keys + queries if right is None else right)
    first, last = first.clip(0, keys), (last + 1).clip(0, keys)
    seen = max((last[i : i + 128].max() - first[i : i + 128].min()) for i in range(queries))
    assert sizes[0::2] == [queries, 4 * 6, SMS] and sizes[3] == 3
    if left is None or left >= keys - 1:
        assert sizes[1] == keys
    else:
        assert seen <= sizes[1] <= min(keys, seen + 128)


def test_results_of_e4m3_are_wider_and_its_values_are_transposed(gpu):
    q, k, v = (shown((2, 70, 2, 64), ml_dtypes.float8_e4m3fn) for _ in range(3))
    out = array(2, 70, 2, 64)
    attention(q, k, v, out, plan=ONE, stream=7)
    done = gpu.launches[-1]
    assert done.problem.result is done.out.dtype is as_dtype("f16")
    name, values, stream = done.v
    assert (name, stream) == ("transposed", 7)
    assert values.address == v.__cuda_array_interface__["data"][0]
    assert launched(gpu, 70, 70, plan=ONE).problem.result is None


# ------------------------------------------------------------------------------------ masks


@pytest.mark.parametrize("window", [None, 0, 2, 39, 40, 41, (2, None), (None, 3)])
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_one_query_sees_the_last_keys_and_no_mask(gpu, causal, kv_heads, window):
    done = launched(gpu, 1, 40, 6, kv_heads, 2, causal=causal, window=window)
    left = window[0] if isinstance(window, tuple) else window
    seen = 40 if left is None else min(40, left + 1)
    assert done.problem.tiles_are_equal and done.options.left == done.options.right == ()
    for name in "kv":
        view, whole = getattr(done, name), done.given[name]
        assert view.shape == (2, seen, kv_heads, 64) and view.strides == whole.strides
        first = (40 - seen) * whole.strides[1]
        assert view.address == whole.device_ctypes_pointer.value + first
    group = 6 // kv_heads
    assert done.extents == (group, seen, kv_heads, 2, 1)
    for name in ("q", "out"):  # query i of a head is head i of its group
        view = getattr(done, name)
        assert view.shape == (2, group, kv_heads, 64)
        assert view.strides == (6 * 128, 128, group * 128, 2)


@pytest.mark.parametrize(
    ("window", "causal", "left", "right"),
    [
        (None, False, (), ()),
        (None, True, (), ()),
        ((9, 4), False, 9, 4),
        ((9, 4), True, 9, ()),
        ((58, 48), False, 58, 48),
        ((59, 49), False, (), ()),  # nothing lies outside
        ((0, 48), False, 0, 48),
        ((None, 0), False, (), ()),
    ],
)
def test_a_side_of_a_window_that_hides_nothing_takes_no_mask(gpu, window, causal, left, right):
    done = launched(gpu, 50, 60, window=window, causal=causal)
    assert (done.options.left, done.options.right) == (left, right)
    assert (done.problem.left, done.problem.right) == (left != (), right != ())
    assert done.problem.causal == (causal or window == (None, 0))


@pytest.mark.parametrize("shape", ["dense", "packed"])
@pytest.mark.parametrize(
    "more", [{}, {"softcap": 3.0}, {"lse": True}, {"window": (5, 4)}, {"causal": True}]
)
def test_a_kernel_has_the_arguments_of_its_problem(gpu, more, shape):
    if "lse" in more:
        more = {"lse": array(2, 70, dtype=np.float32) if shape == "packed" else
                array(1, 2, 70, dtype=np.float32)}  # fmt: skip
    if shape == "packed":
        done = packed(gpu, 70, 3, 2, plan=ONE, **more)
    else:
        done = launched(gpu, 70, 80, 2, plan=ONE, **more)
    given = {name for name, value in done.options._asdict().items() if not isinstance(value, tuple)}
    flags = ("lse", "left", "right", "softcap", "splits")
    assert given & set(flags) == {name for name in flags if getattr(done.problem, name)}
    of_packed = {"starts_q", "starts_k", "counter"}
    assert given & of_packed == (of_packed if shape == "packed" else set())
    assert [done.options.counter] * (shape == "packed") == gpu.counters
    assert {"lse", "softcap"} & given == set(more) & {"lse", "softcap"}


@pytest.mark.parametrize(("scale", "depth"), [(None, 64), (None, 128), (0.3, 64)])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_scores_are_scaled_for_a_power_of_two(gpu, softcap, scale, depth):
    """exp(x) is 2**(x log2(e)); a cap multiplies the scores after tanh, so it has that factor."""
    done = launched(gpu, 70, 80, depth=depth, scale=scale, softcap=softcap, plan=ONE)
    factor = scale or 1 / math.sqrt(depth)
    assert done.scale == np.float32((softcap or factor) / math.log(2))
    if softcap:
        assert done.options.softcap == np.float32(factor / softcap)


# ----------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(("splits", "parts"), [(2, 8), (8, 8), (9, 32)])
def test_the_grid_that_combines_splits_starts_early(monkeypatch, splits, parts):
    """Its threads have 4 columns of a row each, and hold 8 or 32 of the splits."""
    noted = []
    monkeypatch.setattr(split_kv, "launch", lambda *given, **how: noted.append((given, how)))
    monkeypatch.setattr(split_kv, "combine_kernel", lambda *form: form)
    out = Array.read("attention", "out", array(2, 5, 3, 64))
    split_kv.combine_splits(1 << 20, 2 << 20, splits, out, None, 0)
    (((kernel, blocks, threads, stream, *arguments), how),) = noted
    assert kernel == (out.dtype, 64, False, parts) and how == {"pdl": True}
    assert blocks == math.ceil(30 * 16 / threads) and (threads, stream) == (split_kv.THREADS, 0)
    assert arguments == [
        1 << 20, 2 << 20, splits, out.address, out.strides[:3], 30, 5, 3, 0
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("splits", "keys", "parts"), [(1, 300, 1), (2, 300, 2), (9, 300, 5), (2, 64, 1), (3, 65, 2)]
)
@pytest.mark.parametrize("lse", [False, True])
def test_no_more_splits_than_tiles_of_keys(gpu, lse, splits, keys, parts):
    logs = array(2, 6, 70, dtype=np.float32) if lse else None
    plan = AttentionPlan(1, 64, splits=splits)
    done = launched(gpu, 70, keys, 6, 3, 2, plan=plan, lse=logs)
    assert done.extents == (70, keys, 6, 2 * parts, 2)
    assert done.blocks == 2 * parts * 6 * 2  # each part of a tile has its block
    assert done.plan == ONE  # one kernel for any number
    if parts == 1:
        assert not gpu.combined and not gpu.spaces and not done.problem.splits
        assert done.problem.lse == lse
        return
    partials, logs_of_parts = gpu.spaces
    assert (partials.shape, logs_of_parts.shape) == ((840 * parts, 64), (840, parts))
    addresses = tuple(space.device_ctypes_pointer.value for space in gpu.spaces)
    assert (done.options.partials, done.options.lse) == addresses
    assert done.options.splits == parts and done.problem.splits and done.problem.lse
    ((*memory, count, out, combined, _),) = gpu.combined
    assert (tuple(memory), count) == (addresses, parts)
    assert out.address == done.out.address and (combined is not None) == lse


# ------------------------------------------------------------------------------------- maps


@pytest.mark.parametrize("plan", [ONE, TWO, BLACKWELL], ids=["one", "two", "blackwell"])
def test_tiles_are_those_of_the_plan(gpu, plan):
    done = launched(gpu, 200, 300, 4, 2, depth=128, plan=plan)
    rows = [tile.shape for tile in done.tiles]
    q, kv = (1, plan.q_rows, 1, 128), (1, plan.block_k, 1, 128)
    assert rows == [q, kv, kv, q]
    for name, whole in done.given.items():
        view = getattr(done, name)
        assert view.address == whole.device_ctypes_pointer.value and view.shape == whole.shape


@pytest.mark.parametrize("empty", ["queries", "batch", "heads", "sequences"])
def test_nothing_is_launched_for_nothing(gpu, empty):
    batch, queries, heads = (0 if empty == name else 3 for name in ("batch", "queries", "heads"))
    if empty == "sequences":
        q, k, v, out = (shown((5, 2, 64), np.float16) for _ in range(4))
        attention_varlen(q, k, v, shown((1,), np.int32), shown((1,), np.int32), out)
    else:
        q, out = (shown((batch, queries, heads, 64), np.float16) for _ in range(2))
        k, v = (shown((batch, 7, 3, 64), np.float16) for _ in range(2))
        attention(q, k, v, out)
    assert not gpu.launches
