"""The small families: every row runs, and its result is checked."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests import conversions
from tests.fragments import fragments
from tests.gpu.worker import on_gpu

POISON = 0xDEADBEEF


def filled(shape, dtype=np.uint32, value=POISON):
    return cuda.to_device(np.full(shape, np.array(value).astype(dtype), dtype))


# ------------------------------------------------------------------------- registers


@cuda.jit
def read_indices(out):
    x, y, z = ptx.tid_x(), ptx.tid_y(), ptx.tid_z()
    row = out[ptx.ctaid_x(), ptx.ctaid_y(), ptx.ctaid_z(), x, y, z]
    row[0], row[1], row[2] = ptx.ntid_x(), ptx.ntid_y(), ptx.ntid_z()
    row[3], row[4], row[5] = ptx.nctaid_x(), ptx.nctaid_y(), ptx.nctaid_z()
    row[6], row[7] = ptx.warpid(), ptx.nwarpid()
    row[8], row[9] = ptx.smid(), ptx.nsmid()
    row[10] = ptx.laneid()
    row[11] = ptx.lanemask_eq()
    row[12] = ptx.lanemask_le()
    row[13] = ptx.lanemask_lt()
    row[14] = ptx.lanemask_ge()
    row[15] = ptx.lanemask_gt()


@on_gpu
def test_special_registers():
    grid, block = (2, 3, 4), (8, 4, 3)
    out = filled((*grid, *block, 16))
    read_indices[grid, block](out)
    found = out.copy_to_host().astype(np.int64)
    np.testing.assert_array_equal(
        found[..., :6], np.broadcast_to((*block, *grid), (*grid, *block, 6))
    )
    x, y, z = np.indices(block)
    lane = np.broadcast_to((x + 8 * y + 32 * z) % 32, (*grid, *block))
    np.testing.assert_array_equal(found[..., 10], lane)
    this, full = 1 << lane, 2**32 - 1
    masks = [this, 2 * this - 1, this - 1, full - (this - 1), full - (2 * this - 1)]
    np.testing.assert_array_equal(found[..., 11:], np.stack(masks, -1))
    warp, warps, sm, sms = (found[..., i] for i in range(6, 10))
    assert (warp < warps).all() and (warps == 64).all()
    assert (sm < sms).all() and (sms >= cuda.get_current_device().MULTIPROCESSOR_COUNT).all()
    # A warp is in one place: z numbers the block's warps here.
    assert (np.ptp(warp, axis=(3, 4)) == 0).all() and (np.ptp(sm, axis=(3, 4, 5)) == 0).all()


# ------------------------------------------------------------------------------ time


@cuda.jit
def read_clocks(cycles, times):
    """Read both clocks, sleep, and so on."""
    for i in range(cycles.size):
        cycles[i] = ptx.clock64()
        times[i] = ptx.globaltimer()
        ptx.nanosleep(20_000)


@on_gpu
def test_clocks_go_forward():
    cycles, times = filled(200, np.uint64), filled(200, np.uint64)
    read_clocks[1, 1](cycles, times)
    cycles, times = (np.diff(x.copy_to_host().astype(np.int64)) for x in (cycles, times))
    assert (cycles > 0).all() and (times >= 0).all()
    # A sleep lasts at most twice as long as asked; on average it must be seen at all.
    assert 200 * 1_000 < times.sum() < 200 * 100_000
    assert 0.1 < cycles.sum() / times.sum() < 10  # GHz


@cuda.jit
def sleep_for_no_time(out):
    ptx.nanosleep(0)
    out[cuda.threadIdx.x] = 1


@on_gpu
def test_no_sleep():
    out = filled(64)
    sleep_for_no_time[1, 64](out)
    np.testing.assert_array_equal(out.copy_to_host(), np.ones(64))


# ---------------------------------------------------------------------------- memory

ROOM = tma.Tile(256, "u32")


@cuda.jit
def through_words(words, out):
    """Write 16 bytes per thread in one way and read them in another, all round."""
    thread = cuda.threadIdx.x
    at = tma.shared_tile(ROOM).address + 16 * thread
    a, b, c, d = words[thread, 0], words[thread, 1], words[thread, 2], words[thread, 3]
    ptx.st_shared_v4_u32(at, (a, b, c, d))
    e, f, g, h = ptx.ld_shared_v4_u32(at)
    out[thread, 0], out[thread, 1], out[thread, 2], out[thread, 3] = e, f, g, h
    ptx.st_shared_v2_u32(at, (ptx.ld_shared_u32(at + 12), ptx.ld_shared_u32(at + 8)))
    out[thread, 4], out[thread, 5] = ptx.ld_shared_v2_u32(at)
    ptx.st_shared_u64(at + 8, ptx.ld_shared_u64(at))
    out[thread, 6], out[thread, 7] = ptx.ld_shared_v2_u32(at + 8)
    ptx.st_shared_u16(at + 2, ptx.ld_shared_u16(at + 8))
    ptx.st_shared_u32(at + 4, 7)
    out[thread, 8], out[thread, 9] = ptx.ld_shared_v2_u32(at)


@on_gpu
def test_words_and_vectors_of_shared_memory():
    words = np.random.default_rng(0).integers(0, 2**32, (64, 4), np.uint32)
    out = filled((64, 10))
    through_words[1, 64](cuda.to_device(words), out)
    _, _, c, d = words.T
    mixed = (d & 0xFFFF) | (d & 0xFFFF) << 16
    expected = np.stack([*words.T, d, c, d, c, mixed, np.full_like(d, 7)], -1)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@cuda.jit
def through_floats(x, out):
    thread = cuda.threadIdx.x
    at = tma.shared_tile(ROOM).address + 16 * thread
    ptx.st_shared_v4_f32(at, (x[thread, 0], x[thread, 1], x[thread, 2], x[thread, 3]))
    ptx.st_shared_f32(at + 4, ptx.ld_shared_f32(at + 8))
    a, b, c, d = ptx.ld_shared_v4_f32(at)
    out[thread, 0], out[thread, 1], out[thread, 2], out[thread, 3] = a, b, c, d


@on_gpu
def test_floats_of_shared_memory():
    x = np.random.default_rng(0).integers(0, 2**32, (64, 4), np.uint32)
    out = filled((64, 4))
    through_floats[1, 64](cuda.to_device(x.view(np.float32)), out.view(np.float32))
    np.testing.assert_array_equal(out.copy_to_host(), x[:, [0, 2, 2, 3]])


# -------------------------------------------------------------------------- matrices

BUFFER = tma.Tile(128, "u32")


MATRICES = """
def kernel(source, rows, fragment, image):
    lane = ptx.laneid()
    here, there = tma.shared_tile(BUFFER), tma.shared_tile(BUFFER)
    for i in range(lane, 128, 32):
        here[i] = source[i]
        there[i] = POISON
    ptx.bar_warp_sync()
    {words} = ptx.ldmatrix_x{count}(here.address + 16 * rows[lane]{load})
    ptx.stmatrix_x{count}(there.address + 16 * rows[lane], ({words}){store})
    ptx.bar_warp_sync()
    for i in range(lane, 128, 32):
        image[i] = there[i]
    for i, word in enumerate(({words},)):
        fragment[lane, i] = word
"""


def compiled(source, **names):
    """Make a kernel of a template: the choices of an instruction are literals."""
    scope = {}
    exec(source.format(**names), globals(), scope)
    return cuda.jit(scope["kernel"])


@on_gpu
def test_matrices_and_fragments():
    rng = np.random.default_rng(0)
    for count in (1, 2, 4):
        words = ", ".join(f"w{i}" for i in range(count))
        for load in (False, True):
            for store in (False, True):
                chosen = {"load": ", 'trans'" * load, "store": ", 'trans'" * store}
                kernel = compiled(MATRICES, count=count, words=words, **chosen)
                source = rng.integers(0, 2**16, (32, 8), np.uint16)
                rows = rng.permutation(32).astype(np.uint32)
                fragment, image = filled((32, count)), filled(128)
                device = cuda.to_device(source.view(np.uint32).reshape(-1)), cuda.to_device(rows)
                kernel[1, 32](*device, fragment, image)
                used = rows[: 8 * count]
                matrices = source[used].reshape(count, 8, 8)
                np.testing.assert_array_equal(fragment.copy_to_host(), fragments(matrices, load))
                stored = matrices.transpose(0, 2, 1) if load != store else matrices
                expected = np.full(128, POISON, np.uint32).view(np.uint16).reshape(32, 8)
                expected[used] = stored.reshape(-1, 8)
                found = image.copy_to_host().view(np.uint16).reshape(32, 8)
                np.testing.assert_array_equal(found, expected)


# ----------------------------------------------------------------------- conversions

CONVERT = """
def kernel(high, low, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = ptx.{name}({operands}{choice})
"""


def convert(name, high, low=None, choice=None):
    """Return what a conversion makes of pairs of floats, or of what is packed in `high`."""
    narrow = name.startswith(("cvt_e4m3", "cvt_e5m2"))
    operands = "high[i]" if low is None else "high[i], low[i]"
    chosen = "" if choice is None else f", {choice!r}"
    kernel = compiled(CONVERT, name=name, operands=operands, choice=chosen)
    high = cuda.to_device(high)
    low = high if low is None else cuda.to_device(low)
    out = filled(high.size, np.uint16 if narrow else np.uint32, 0xBEEF)
    kernel[-(-high.size // 256), 256](high, low, out)
    return out.copy_to_host()


def expected_pairs(high, low, name, relu=False):
    return conversions.packed(*(conversions.rounded(x, name, relu) for x in (high, low)))


def assert_bits(found, expected, *inputs):
    wrong = np.flatnonzero(found != expected)
    shown = [[hex(int(x[i])) for x in (found, expected, *inputs)] for i in wrong[:5]]
    assert not wrong.size, f"{wrong.size} differ: found, expected, inputs: {shown}"


@on_gpu
def test_float32_to_16_and_8_bits():
    high, low = conversions.hard_floats(2**20, 1), conversions.hard_floats(2**20, 2)
    bits = high.view(np.uint32), low.view(np.uint32)
    for name in conversions.FORMATS:
        found = convert(f"cvt_{name}x2_f32", high, low)
        assert_bits(found, expected_pairs(high, low, name), *bits)


@on_gpu
def test_float32_to_16_and_8_bits_relu():
    high, low = conversions.hard_floats(2**18, 3), conversions.hard_floats(2**18, 4)
    bits = high.view(np.uint32), low.view(np.uint32)
    for name in conversions.FORMATS:
        found = convert(f"cvt_{name}x2_f32", high, low, "relu")
        assert_bits(found, expected_pairs(high, low, name, relu=True), *bits)


@on_gpu
def test_every_float16_to_8_bits():
    every = np.arange(2**16, dtype=np.uint32)
    pairs = every | np.random.default_rng(0).permutation(every) << np.uint32(16)
    high, low = conversions.unpacked(pairs, "f16")
    for name in ("e4m3", "e5m2"):
        found = convert(f"cvt_{name}x2_f16x2", pairs)
        assert_bits(found, expected_pairs(high, low, name), pairs)
        found = convert(f"cvt_{name}x2_f16x2", pairs, choice="relu")
        assert_bits(found, expected_pairs(high, low, name, relu=True), pairs)


@on_gpu
def test_every_pair_of_8_bits_to_float16():
    pairs = np.arange(2**16, dtype=np.uint16)
    for name in ("e4m3", "e5m2"):
        high, low = conversions.unpacked(pairs, name)
        found = convert(f"cvt_f16x2_{name}x2", pairs)
        assert_bits(found, expected_pairs(high, low, "f16"), pairs)
        found = convert(f"cvt_f16x2_{name}x2", pairs, choice="relu")
        assert_bits(found, expected_pairs(high, low, "f16", relu=True), pairs)


@on_gpu
def test_float32_to_tf32():
    values = conversions.hard_floats(2**20, 5)
    bits = values.view(np.uint32)
    missing = np.isnan(values)
    for rounding in ("rna", "rn"):
        found = convert("cvt_tf32_f32", values, choice=rounding) & 0xFFFFE000
        half = 0x1000 if rounding == "rna" else 0xFFF + (bits >> 13 & 1)
        expected = np.where(np.isinf(values), bits, bits + half) & 0xFFFFE000
        assert_bits(found[~missing], expected[~missing], bits[~missing])
        quiet = missing & (bits >> 22 & 1 == 1)  # the others may lose their payload, and become inf
        assert np.isnan(found[quiet].view(np.float32)).all()
    np.testing.assert_array_equal(
        convert("cvt_tf32_f32", values), convert("cvt_tf32_f32", values, choice="rna")
    )


# -------------------------------------------------------------------------- policies

FRACTIONAL = """
def kernel(fractions, out):
    for i in range(fractions.size):
        out[i] = ptx.createpolicy_fractional(fractions[i], {priorities})
"""
RANGE = """
def kernel(window, nbytes, out):
    for i in range(len(nbytes)):
        out[i] = ptx.createpolicy_range(window, nbytes[i, 0], nbytes[i, 1], {priorities})
"""
PRIORITIES = [
    (primary, *secondary)
    for primary in ("evict_last", "evict_normal", "evict_first", "evict_unchanged")
    for secondary in ((), ("evict_first",), ("evict_unchanged",))
]


@on_gpu
def test_policies_of_a_fraction():
    fractions = np.array([1e-6, 0.0625, 0.1, 0.25, 0.5, 0.7, 0.99, 1.0], np.float32)
    for priorities in PRIORITIES:
        out = filled(len(fractions), np.uint64)
        kernel = compiled(FRACTIONAL, priorities=str(priorities)[1:-1])
        kernel[1, 1](cuda.to_device(fractions), out)
        expected = [ptx.createpolicy_fractional(f, *priorities) for f in fractions]
        assert [hex(p) for p in out.copy_to_host()] == [hex(p) for p in expected]


def policy_of_range(start, primary_nbytes, total_nbytes, priorities):
    """Return the policy of a window: its priorities as for a fraction, then blocks of addresses."""
    kind = ptx.createpolicy_fractional(1.0, *priorities) >> 52 & ~0xF | 0x80
    shift = max(int(np.ceil(np.log2(total_nbytes))) - 7, 12)
    blocks = (start + primary_nbytes + 2**shift - 1 >> shift) - (start >> shift)
    fields = (kind | shift - 12) << 8 | start >> shift & 0x7F
    return (fields << 7 | min(blocks, 0x7F)) << 37


@on_gpu
def test_policies_of_a_window():
    window = filled(2**20, np.uint8, 0)
    start = window.__cuda_array_interface__["data"][0]
    sizes = [(4096, 8192), (1000, 65536), (65536, 2**19), (100_000, 2**20), (2**20, 2**20)]
    for priorities in PRIORITIES:
        out = filled(len(sizes), np.uint64)
        kernel = compiled(RANGE, priorities=str(priorities)[1:-1])
        kernel[1, 1](window, cuda.to_device(np.array(sizes, np.uint32)), out)
        expected = [policy_of_range(start, *nbytes, priorities) for nbytes in sizes]
        assert [hex(p) for p in out.copy_to_host()] == [hex(p) for p in expected]


@cuda.jit
def converted_policies(properties, out):
    for i in range(out.size):
        out[i] = ptx.createpolicy_cvt(properties[i])


@on_gpu
def test_policies_of_access_properties():
    """What createpolicy made is a policy: the conversion leaves it as it is."""
    policies = np.array([*tma.CachePolicy, 0x1470000000000000], np.uint64)
    out = filled(policies.size, np.uint64)
    converted_policies[1, 1](cuda.to_device(policies), out)
    np.testing.assert_array_equal(out.copy_to_host(), policies)


# ------------------------------------------------------------- fences for the copy engine

FENCED = """
def kernel(rounds, out):
    tile, lane = tma.shared_tile(CHUNK), ptx.laneid()
    for k in range(rounds):
        tile[31 - lane] = 1000 * k + lane
        {fence}
        ptx.bar_warp_sync()
        if lane == 0:
            {acquire}
            ptx.cp_async_bulk_store(out[32 * k :], tile, CHUNK.nbytes)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)
        ptx.bar_warp_sync()
"""
CHUNK = tma.Tile(32, "u32")


@on_gpu
def test_fences_of_shared_memory_before_a_store():
    for fence in ("", "'shared::cta'", "'shared::cluster'", "all", "release"):
        call = f"ptx.fence_proxy_async({fence})"
        if fence in ("all", "release"):
            suffix = {"all": "all", "release": "generic_release"}[fence]
            call = f"ptx.fence_proxy_async_{suffix}()"
        acquire = "ptx.fence_proxy_async_generic_acquire()" if fence == "release" else "pass"
        out = filled(32 * 500)
        compiled(FENCED, fence=call, acquire=acquire)[1, 32](500, out)
        expected = 1000 * np.arange(500)[:, None] + np.arange(31, -1, -1)
        np.testing.assert_array_equal(out.copy_to_host().reshape(500, 32), expected)


@cuda.jit
def load_what_was_written(rounds, words, out):
    """Write to global memory, and let a copy load it."""
    tile, barrier, lane = tma.shared_tile(CHUNK), tma.shared_barrier(), ptx.laneid()
    if lane == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    ptx.bar_warp_sync()
    for k in range(rounds):
        words[31 - lane] = 1000 * k + lane
        ptx.fence_proxy_async("global")
        ptx.bar_warp_sync()
        if lane == 0:
            barrier.arrive_expect_tx(CHUNK.nbytes)
            ptx.cp_async_bulk_load(tile, words, CHUNK.nbytes, barrier)
        for _ in range(100_000):
            if barrier.try_wait(k % 2):
                break
        out[k, lane] = tile[lane]
        ptx.bar_warp_sync()


@on_gpu
def test_fence_of_global_memory_before_a_load():
    words, out = filled(32), filled((500, 32))
    load_what_was_written[1, 32](500, words, out)
    expected = 1000 * np.arange(500)[:, None] + np.arange(31, -1, -1)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


# -------------------------------------------------------------- fences between threads

MESSAGES = """
def kernel(numbers, flags, out):
    # The first half of the threads writes, each for one of the second half, which polls.
    me, half = cuda.grid(1), numbers.shape[1]
    for k in range(numbers.shape[0]):
        if me < half:
            numbers[k, me] = 1000 * k + me
            {fence}
            cuda.atomic.exch(flags[k], me, 1)
        else:
            you = me - half
            for _ in range(100_000):
                if cuda.atomic.add(flags[k], you, 0) == 1:
                    break
                ptx.nanosleep(20)
            {fence}
            out[k, you] = numbers[k, you]
"""


@on_gpu(limit=60)
def test_fences_between_threads():
    narrow, wide = (1, 128), (2, 64)
    for fence, shape in (
        *(
            (f"ptx.fence_{kind}('{scope}')", wide)
            for kind in ("acq_rel", "sc")
            for scope in ("gpu", "sys")
        ),
        *(
            (f"ptx.fence_{kind}('{scope}')", narrow)
            for kind in ("acq_rel", "sc")
            for scope in ("cta", "cluster")
        ),
    ):
        numbers, out = filled((50, 64)), filled((50, 64))
        flags = filled((50, 64), np.int32, 0)
        compiled(MESSAGES, fence=fence)[shape](numbers, flags, out)
        expected = 1000 * np.arange(50)[:, None] + np.arange(64)
        np.testing.assert_array_equal(out.copy_to_host(), expected)


@cuda.jit
def write_and_look(mine, seen):
    """Each of two blocks sets its flag and then looks at the other's."""
    me, thread = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(mine.shape[0]):
        cuda.atomic.exch(mine[k, me], thread, 1)
        ptx.fence_sc("gpu")
        seen[k, me, thread] = cuda.atomic.add(mine[k, 1 - me], thread, 0)


@on_gpu
def test_sequentially_consistent_fences_have_one_order():
    mine, seen = filled((1000, 2, 32), np.int32, 0), filled((1000, 2, 32), np.int32, 7)
    write_and_look[2, 32](mine, seen)
    seen = seen.copy_to_host()
    assert np.isin(seen, (0, 1)).all()
    assert (seen[:, 0] | seen[:, 1]).all(), "neither block saw the other's flag"


@cuda.jit
def through_an_alias(words):
    thread = cuda.threadIdx.x
    words[thread] += 1
    ptx.fence_proxy_alias()
    words[thread] *= 2


@on_gpu
def test_the_alias_fence_changes_no_values():
    words = filled(64, np.uint32, 4)
    through_an_alias[1, 64](words)
    np.testing.assert_array_equal(words.copy_to_host(), np.full(64, 10))


# ------------------------------------------------------------------ registers, grids


@cuda.jit(launch_bounds=(384, 1))
def redistribute_registers(x, out):
    thread = cuda.threadIdx.x
    if thread < 128:
        ptx.setmaxnreg_dec(40)
        out[thread] = x[thread] + 1
    else:
        ptx.setmaxnreg_inc(232)
        total = 0
        for i in range(32):
            total += x[(thread + i) % 384] * i
        out[thread] = total


@on_gpu
def test_setmaxnreg_between_warpgroups():
    x = np.random.default_rng(0).integers(0, 1000, 384).astype(np.int64)
    out = filled(384, np.int64, -1)
    redistribute_registers[1, 384](cuda.to_device(x), out)
    expected = x + 1
    for thread in range(128, 384):
        expected[thread] = sum(x[(thread + i) % 384] * i for i in range(32))
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    # Where ptxas leaves setmaxnreg out, the kernel has a few registers only.
    assert set(redistribute_registers.get_regs_per_thread().values()) == {168}


@cuda.jit(launch_bounds=(128, 4))
def give_back_and_take_again(out):
    ptx.setmaxnreg_dec(24)
    cuda.syncthreads()
    ptx.setmaxnreg_inc(128)
    out[cuda.grid(1)] = cuda.threadIdx.x


@on_gpu
def test_setmaxnreg_of_one_warpgroup():
    out = filled(8 * 128)
    give_back_and_take_again[8, 128](out)
    np.testing.assert_array_equal(out.copy_to_host(), np.tile(np.arange(128), 8))


@cuda.jit
def add_one_in_order(words):
    ptx.griddepcontrol_wait()
    i = cuda.grid(1)
    words[i] += 1
    ptx.griddepcontrol_launch_dependents()


@on_gpu
def test_griddepcontrol_without_a_dependent_launch_does_nothing():
    words = filled(1024, np.uint32, 0)
    for _ in range(10):
        add_one_in_order[8, 128](words)
    np.testing.assert_array_equal(words.copy_to_host(), np.full(1024, 10))
