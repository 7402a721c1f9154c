"""Which plan attention takes: heads that are scheduled together, and splits of the keys."""

from dataclasses import replace

import numpy as np
import pytest

from numba_tma.device.causal_scheduler import CausalLPTScheduler
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host.limits import CACHED_BYTES
from numba_tma.kernels.attention.choice import (
    CANDIDATES,
    DOUBT,
    FEW_QUERIES_PLANS,
    PACKS,
    PLANS,
    plan_for,
)
from numba_tma.kernels.attention.plan import (
    AttentionForm,
    AttentionPlan,
    AttentionProblem,
    check_plan,
)
from numba_tma.kernels.attention.times import (
    COMBINE_TIME,
    COST_OF_TWICE,
    DRAM_BYTES,
    HEAD_GROUPS,
    LAUNCH_TIME,
    SPLIT_BYTES,
    SPLITS_PER_SM,
    TileTimes,
    Traffic,
    block_lengths,
    fastest_splits,
    grid_time,
    most_heads_together,
)
from tests.kernels.attention_forms import PROBLEMS

FULL, CAUSAL = (AttentionProblem(128, as_dtype("bf16"), causal) for causal in (False, True))


@pytest.mark.parametrize(("heads", "together"), [(64, 6), (7, 3), (1, 1), (5, 8)])
def test_blocks_are_as_long_as_the_schedule_makes_them(heads, together):
    """What each block has to do: the steps of its tiles, and one more for each tile's ends."""
    queries, keys, blocks = 1000, 1100, 17
    schedule = CausalLPTScheduler(128, 96, together).over(queries, keys, heads)
    done = [sum(1 + t.num_key_blocks for t in schedule.tiles(i, blocks)) for i in range(blocks)]
    steps = np.array([1 + schedule.num_key_blocks(i) for i in range(schedule.num_query_blocks)])
    assert block_lengths(steps, heads, together, blocks).tolist() == done


@pytest.mark.parametrize("mask", ["causal", "left", "right", "packed"])
def test_tiles_are_equal_where_nothing_hides_keys(mask):
    """Only equal tiles are dealt in even waves: a window's first tiles are shorter."""
    problem = PROBLEMS["d64"]
    assert problem.tiles_are_equal
    assert not replace(problem, **{mask: True}).tiles_are_equal


def test_blocks_of_a_window_are_equally_long():
    """So that heads come one after the other, and their keys stay in the L2 cache."""
    window = AttentionProblem(128, as_dtype("bf16"), causal=True, left=True)
    assert plan_for(window, 4096, 4096, 64, 1, 132) == PLANS[128]
    assert plan_for(
        AttentionProblem(128, as_dtype("bf16"), right=True), 4096, 4096, 64, 1, 132
    ) == plan_for(AttentionProblem(128, as_dtype("bf16"), causal=True), 4096, 4096, 64, 1, 132)


@pytest.mark.parametrize("keys", [512, 4096, 8192, 16384, 100_000])
@pytest.mark.parametrize("depth", [64, 128])
def test_heads_together_share_the_cache_and_the_work(depth, keys):
    problem = AttentionProblem(depth, as_dtype("bf16"), causal=True)
    plan = plan_for(problem, keys, keys, 64, 1, 132)
    together = plan.heads_together or 64
    assert replace(plan, heads_together=1) in [plan for plan, _ in CANDIDATES[depth, True]]
    assert together == 1 or 4 * keys * depth * together < 2.5 * CACHED_BYTES
    full = AttentionProblem(depth, as_dtype("bf16"))
    assert plan_for(full, keys, keys, 64, 1, 132) in [plan for plan, _ in CANDIDATES[depth, False]]


@pytest.mark.parametrize("sms", [132, 148])
@pytest.mark.parametrize("heads", [*(2**i for i in range(8)), 80, 112, 300])
@pytest.mark.parametrize("keys", [512, 2048, 4096])
def test_heads_are_dealt_out_as_evenly_as_can_be(keys, heads, sms):
    """All of them share K and V, for which the L2 cache has room."""
    plan = PLANS[128]
    schedule = CausalLPTScheduler(plan.block_q, plan.block_k).over(keys, keys, 1)
    steps = np.array([schedule.num_key_blocks(i) for i in range(schedule.num_query_blocks)])
    chosen = most_heads_together(1 + steps, Traffic(heads, 0, 4 * keys, 1), sms)
    longest = [block_lengths(1 + steps, heads, n or heads, sms).max() for n in (0, *HEAD_GROUPS)]
    assert block_lengths(1 + steps, heads, chosen or heads, sms).max() == min(longest)
    assert chosen < heads and (chosen == 0 or chosen in HEAD_GROUPS)


def test_what_a_kernel_moves():
    """K and V of a group that the L2 cache does not keep are read again for each tile."""
    mb = 1 << 20
    moved = Traffic(100, 10 * mb, mb, 5)  # 32 MiB are kept
    once = 110 * mb / DRAM_BYTES
    assert moved.time(1, 50) == moved.time(32, 50) == pytest.approx(once)
    assert moved.time(64, 16) == moved.time(80, 16) == pytest.approx((10 + 500) * mb / DRAM_BYTES)
    assert moved.time(64, 256) == pytest.approx((10 + 125) * mb / DRAM_BYTES)  # 4 tiles share one
    assert moved.time(64, 1000) == pytest.approx(once)  # all tiles of a head run at once
    half = moved.time(45, 16)  # half way from 32 to 64
    assert half == pytest.approx((10 + 300) * mb / DRAM_BYTES, rel=0.02)
    assert (moved.excess(16), moved.excess(32), moved.excess(64), moved.excess(128)) == (0, 0, 1, 2)


def test_groups_are_small_where_memory_bounds_the_time():
    """On an H100, 3 x 440 x 32 heads of depth 256 took 47 us one by one, and 60 us together."""
    problem, shape = AttentionProblem(256, as_dtype("bf16"), causal=True), (440, 440, 96, 1, 132)
    row, together = 2 * 256, plan_for(problem, *shape).heads_together
    assert 0 < together * 2 * 440 * row < CACHED_BYTES
    plan_of_all = plan_for(problem, 440, 440, 48, 1, 132)
    assert 48 * 2 * 440 * row < CACHED_BYTES and plan_of_all.heads_together == 0


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "splits"),
    [
        (1, 16384, 8, 16),  # as many parts as there are blocks for
        (1, 131072, 1, 128),
        (1000, 1000, 4, 4),
        (1, 640, 8, 1),  # to add parts up, 3 us, would take longer
        (1, 768, 8, 6),
        (1, 1152, 64, 1),
        (1, 1280, 64, 2),
        (64, 128, 1, 1),
        (1, 4096, 512, 1),
        (4096, 4096, 64, 1),
    ],
)
def test_keys_are_shared_out_where_queries_are_few(queries, keys, heads, splits):
    plan = plan_for(FULL, queries, keys, heads, 1, 132)
    usual = PLANS[128]
    short = replace(usual, q_stages=2, turns=True) if queries == 1000 else usual
    chosen = FEW_QUERIES_PLANS[128] if queries <= 64 else short
    assert plan == replace(chosen, splits=splits)


def test_parts_even_out_what_a_mask_leaves():
    """128 blocks of queries have 1 to 32 steps; in two parts each, none has more than about 17."""
    assert plan_for(CAUSAL, 4096, 4096, 4, 1, 132) == AttentionPlan(
        2, 128, splits=2, heads_together=0
    )
    assert plan_for(CAUSAL, 4096, 4096, 16, 1, 132).splits == 1


def test_a_window_is_shared_out_by_the_keys_that_it_shows():
    window = replace(CAUSAL, left=True)
    assert plan_for(window, 128, 16384, 1, 1, 132).splits == 128
    assert plan_for(window, 128, 1024, 1, 1, 132).splits == 8
    assert plan_for(replace(window, packed=True), 128, 16384, 1, 1, 132).splits == 1


def test_head_dim_256_has_turns_where_nothing_spills():
    """Of two warpgroups: keys are not split, or in two or more parts."""
    deep, narrow = replace(FULL, head_dim=256), replace(FULL, head_dim=64)
    for problem, queries, heads, turns, splits in (
        (deep, 4096, 64, True, 1),
        (replace(deep, left=True), 4096, 64, True, 1),
        (replace(deep, softcap=True), 4096, 64, False, 1),
        (replace(deep, left=True, softcap=True), 4096, 64, False, 1),
        (deep, 4096, 2, False, 2),
        (deep, 1024, 1, False, 16),
        (narrow, 1024, 1, True, 22),
        (replace(narrow, softcap=True), 4096, 64, True, 1),
    ):
        plan = plan_for(problem, queries, 16384, heads, 1, 132)
        assert (plan.turns, plan.splits) == (turns, splits) and plan.warpgroups > 1, problem


@pytest.mark.parametrize("heads", [1, 3, 7, 40])
@pytest.mark.parametrize("steps", [[5], [1, 2, 3, 4], [0, 0, 6], [100] * 3])
def test_no_number_of_parts_is_faster(steps, heads):
    """Of those that leave a block of threads no more than four or so."""
    steps, blocks, nbytes, times = np.array(steps), 17, 1_000_000, TileTimes(1.5, 2)

    def time(splits):
        parts = [-(-n // splits) * 1.5 + 2 for n in steps[::-1] for _ in range(heads * splits)]
        sums = [0] * blocks
        for number, part in enumerate(parts):
            turn, place = divmod(number, blocks)
            sums[place if turn % 2 == 0 else blocks - 1 - place] += part
        written_and_read = 2 * splits * nbytes / SPLIT_BYTES
        return max(sums) + (COMBINE_TIME + written_and_read) * (splits > 1)

    possible = range(1, max(1, min(max(steps), SPLITS_PER_SM * blocks // (len(steps) * heads))) + 1)
    fastest = min(possible, key=time)
    found, splits = fastest_splits(times, steps, nbytes, heads, blocks)
    assert splits == fastest and found == pytest.approx(time(fastest))


SHORT = AttentionPlan(2, 128, q_stages=2)
SHORT_64 = AttentionPlan(2, 128, 3, votes=False, q_stages=2)


@pytest.mark.parametrize(
    ("depth", "causal", "queries", "keys", "heads", "group", "plan"),
    [
        # 288 tiles of 192 rows leave a wave empty, and 252 do not.
        (96, False, 608, 2496, 72, 1, replace(SHORT, turns=True)),
        (96, False, 608, 2496, 72, 2, replace(PLANS[96], packed_heads=2, turns=True)),
        (96, False, 6464, 6464, 32, 1, replace(PLANS[96], turns=True)),
        (96, True, 6552, 6552, 48, 4, replace(PLANS[96], packed_heads=4)),
        (64, False, 840, 840, 992, 1, PLANS[64]),
        (64, False, 67, 67, 1856, 4, replace(PLANS[64], packed_heads=2)),
        (64, True, 256, 256, 192, 1, replace(SHORT_64, turns=True)),  # 256 is twice 128
        (64, True, 8807, 8807, 4, 1, replace(PLANS[64], splits=2)),
        (128, True, 161, 161, 1376, 1, SHORT),
        (128, True, 161, 161, 1376, 8, replace(SHORT, packed_heads=8)),
        (128, True, 4096, 4096, 64, 1, PLANS[128]),
        (128, False, 541, 541, 624, 8,
         AttentionPlan(2, 112, q_stages=2, packed_heads=4, turns=True)),
        (256, True, 175, 175, 432, 8, AttentionPlan(1, 64, packed_heads=4)),
        (256, True, 5504, 5504, 4, 1, PLANS[256]),
    ],
)  # fmt: skip
def test_tiles_are_those_that_divide_the_work_best(
    depth, causal, queries, keys, heads, group, plan
):
    problem = AttentionProblem(depth, as_dtype("bf16"), causal)
    chosen = plan_for(problem, queries, keys, heads, group, 132)
    assert replace(chosen, heads_together=1) == plan
    check_plan("f", problem, chosen, group)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 96, 128, 256])
def test_no_candidate_is_reckoned_faster(depth, causal):
    """Of tiles and packs, where keys are not split; other plans than the usual one are doubted."""
    problem, usual = AttentionProblem(depth, as_dtype("bf16"), causal), PLANS[depth]
    schedule_of = CausalLPTScheduler if causal else None
    shapes = (700, 900, 640, 8), (300, 300, 960, 3), (5000, 5000, 64, 4)
    for queries, keys, heads, group in shapes:
        times = {}
        for plan, tile_times in CANDIDATES[depth, causal]:
            for pack in (n for n in PACKS if group % n == 0):
                rows, packs = plan.block_q // pack, heads // pack
                tiles = -(-queries // rows)
                steps = np.full(tiles, -(-keys // plan.block_k))
                if schedule_of is not None:
                    over = schedule_of(rows, plan.block_k).over(queries, keys, 1)
                    steps = np.array([over.num_key_blocks(i) for i in range(tiles)])
                time = grid_time(tile_times, steps, packs, 132)
                moved = 2 * (queries + keys / group) * heads * depth * 2 / DRAM_BYTES
                one = replace(plan, packed_heads=pack)
                times[one] = (LAUNCH_TIME + max(time, moved)) * (1 if one == usual else DOUBT)
        chosen = replace(plan_for(problem, queries, keys, heads, group, 132), heads_together=1)
        assert times[chosen] == pytest.approx(min(times.values()))


@pytest.mark.parametrize(
    ("depth", "queries", "keys", "heads", "group", "sms"),
    [
        (256, 867, 867, 40, 1, 17),
        (256, 677, 677, 36, 2, 17),
        (128, 947, 1147, 64, 4, 132),
        (128, 546, 546, 8, 1, 13),
        (128, 900, 20_000, 24, 4, 40),  # the cache has the keys of 3 heads
    ],
)
def test_no_group_of_heads_is_reckoned_faster(depth, queries, keys, heads, group, sms):
    """Tiles, each of so many steps and its ends, are dealt out as the scheduler deals them."""
    problem = AttentionProblem(depth, as_dtype("bf16"), causal=True)
    chosen = plan_for(problem, queries, keys, heads, group, sms)
    assert chosen.splits == 1
    pack, key_tile = chosen.packed_heads, chosen.block_k
    times = dict(CANDIDATES[depth, True])[replace(chosen, heads_together=1, packed_heads=1)]
    rows, packs = chosen.block_q // pack, heads // pack

    def time(together):
        scheduler = CausalLPTScheduler(rows, key_tile, together).over(queries, keys, packs)
        blocks = [[t.num_key_blocks for t in scheduler.tiles(i, sms)] for i in range(sms)]
        longest = max(len(tiles) * times.ends + sum(tiles) * times.step for tiles in blocks)
        read = key_tile * sum(map(sum, blocks))  # rows of K
        kv = 2 * keys * depth * 2 / (group // pack)  # bytes for each of the packs
        full = max(0, np.log2(together * kv / CACHED_BYTES))
        again = max(1, read / packs / keys * (group // pack) * min(1, together / sms))
        moved = 4 * queries * heads * depth + packs * kv * (1 + min(1, full) * (again - 1))
        return max(longest * (1 + COST_OF_TWICE * full), moved / DRAM_BYTES)

    reckoned = {n % packs: time(n) for n in (*HEAD_GROUPS, packs) if n <= packs}
    assert reckoned[chosen.heads_together] == pytest.approx(min(reckoned.values()))
    assert len(set(reckoned.values())) > 2


@pytest.mark.parametrize("causal", [False, True])
def test_no_keys_and_few_keys_have_a_plan(causal):
    problem = AttentionProblem(128, as_dtype("bf16"), causal)
    for keys in (0, 1):
        assert plan_for(problem, 500, keys, 40, 1, 132).splits == 1


@pytest.mark.parametrize("what", ["left", "right", "softcap", "packed"])
def test_what_has_no_times_has_the_usual_plan(what):
    problem = AttentionProblem(64, as_dtype("bf16"), **{what: True})
    for queries in range(100, 2000, 100):
        chosen = plan_for(problem, queries, queries, 60, 1, 132)
        assert replace(chosen, heads_together=1, splits=1) == PLANS[64]


def test_the_usual_plan_comes_first():
    for (depth, _), candidates in CANDIDATES.items():
        assert candidates[0][0] == PLANS[depth]
    assert CANDIDATES.keys() == {(depth, causal) for depth in PLANS for causal in (False, True)}


def test_two_stages_of_queries_need_room_for_the_results():
    """Results would take the place of queries that are being loaded."""
    for keys in (128, 144):
        problem, plan = PROBLEMS["d128"], AttentionPlan(2, keys, q_stages=2)
        if AttentionForm(problem, plan).stages_o_in_q:
            with pytest.raises(ValueError, match="q_stages is 1 where O is staged in Q's memory"):
                check_plan("f", problem, plan)
        else:
            check_plan("f", problem, plan)
    assert not AttentionForm(PROBLEMS["d128"], AttentionPlan(2, 128, q_stages=2)).stages_o_in_q
    assert AttentionForm(PROBLEMS["d128"], AttentionPlan(2, 144, q_stages=2)).stages_o_in_q


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_heads_that_share_keys_may_share_a_tile(heads):
    plan, problem = AttentionPlan(2, 128, packed_heads=heads), PROBLEMS["d128 causal"]
    check_plan("f", problem, plan, 8)
    form = AttentionForm(problem, plan)
    assert (form.tile_queries, form.warpgroup_queries) == (128 // heads, 64 // heads)
    assert problem.tile(64, heads).shape == (1, 64 // heads, heads, 128)
    assert problem.o_tile(64, heads).shape == (1, 64 // heads, heads, 128)
    assert form.q_rows.shape == form.o_rows.shape == (64, 128)
    for group in (1, heads // 2, 3 * heads + 1):
        with pytest.raises(ValueError, match=rf"packed_heads is .* that divides the {group} heads"):
            check_plan("f", problem, plan, group)
    with pytest.raises(ValueError, match="packed_heads is a power of 2"):
        check_plan("f", problem, replace(plan, packed_heads=3), 6)
    with pytest.raises(ValueError, match="splits is 1 where heads are packed"):
        check_plan("f", problem, replace(plan, splits=2), 8)
    with pytest.raises(ValueError, match="turns is False with one warpgroup"):
        check_plan("f", problem, AttentionPlan(1, 64, turns=True))
    for what in ("left", "right", "packed", "q_scale", "k_scale", "v_scale"):
        with pytest.raises(ValueError, match="and 1 with a window, scales of heads or packed seq"):
            check_plan("f", replace(PROBLEMS["d128"], **{what: True}), plan, 8)


def test_a_plan_of_no_arguments_is_that_of_the_usual_head_dim():
    assert AttentionPlan() == PLANS[128]


@pytest.mark.parametrize(("dtype", "unit"), [("bf16", 16), ("f16", 16), ("e4m3", 32)])
def test_a_product_takes_32_bytes_of_keys_at_a_time(dtype, unit):
    problem = AttentionProblem(64, as_dtype(dtype))
    for keys in range(16, 257, 16):
        if keys % unit:
            with pytest.raises(ValueError, match=rf"f\(plan=.*block_k is a multiple of {unit} up"):
                check_plan("f", problem, AttentionPlan(block_k=keys))
        else:
            check_plan("f", problem, AttentionPlan(block_k=keys))
    check_plan("f", problem, AttentionPlan(splits=2))
    with pytest.raises(ValueError, match="splits is 1 for packed sequences"):
        check_plan("f", replace(problem, packed=True), AttentionPlan(splits=2))


@pytest.mark.parametrize("warpgroups", [1, 2, 3])
@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
def test_what_follows_from_a_plan(kind, warpgroups):
    plan, dtype = AttentionPlan(warpgroups, 96, 3), as_dtype(kind)
    problem = AttentionProblem(64, dtype, result=as_dtype("f16") if kind == "e4m3" else None)
    form, size = AttentionForm(problem, plan), dtype.itemsize
    assert (plan.block_q, plan.q_rows) == (64 * warpgroups, 64)
    assert plan.threads == 128 * (warpgroups + 1)
    # 65,536 registers: of the consumers 240 a thread with one or two warpgroups, 160 with three.
    assert plan.load_registers == (32 if warpgroups == 3 else 24)
    assert (form.span_nbytes, form.span, form.spans) == (64 * size, 64, 1)
    assert form.q_tile.shape == (1, 64 * warpgroups, 1, 64)
    assert problem.v_tile(96).shape == ((1, 64, 1, 96) if kind == "e4m3" else (1, 96, 1, 64))
    assert problem.v_tile(96).swizzle.span == (32 if kind == "e4m3" else 128)
    assert form.o_rows.shape == (64, 64) and form.o_rows.dtype.name in ("bf16", "f16")
    assert problem.o_tile(64).swizzle.span == form.o_rows.swizzle.span == 128
    assert problem.o_tile(48).shape == problem.tile(48).shape == (1, 48, 1, 64)
    masks = [(form.masks_left, form.masks_right, form.masks_end)]
    for mask in ("left", "right", "causal"):
        form = AttentionForm(replace(problem, **{mask: True}), plan)
        masks.append((form.masks_left, form.masks_right, form.masks_end))
    assert masks == [(False, False, True), (True, False, True), (False, True, True),
                     (False, True, False)]  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "plan", "shared"),
    [
        (64, AttentionPlan(3, 128, 3), False),  # 24 KiB of Q and of O, six times 16 KiB
        (128, AttentionPlan(2, 128), False),  # twice 32 KiB, four times 32 KiB
        (128, AttentionPlan(3, 128), False),  # 96 KiB and 128 KiB of 225
        (128, AttentionPlan(3, 144), True),
        (256, AttentionPlan(2, 80), True),  # twice 64 KiB, four times 40 KiB
        (256, AttentionPlan(1, 48), False),
        (128, AttentionPlan(2, 160, 2), False),  # 64 KiB and 160 KiB of 225
        (128, AttentionPlan(2, 176, 2), True),
    ],
)
def test_o_takes_the_place_of_q_where_there_is_no_room(depth, plan, shared):
    problem = AttentionProblem(depth, as_dtype("bf16"))
    assert AttentionForm(problem, plan).stages_o_in_q == shared
    assert not AttentionForm(replace(problem, splits=True), plan).stages_o_in_q
