"""Words of global memory, lanes and arithmetic: kernels for a GPU, the simulator and ptxas."""

import numpy as np

from numba_tma import CachePolicy, ptx

FIRST = int(CachePolicy.EVICT_FIRST)


def move_words(source, destination, number, floats):
    """Move 64 bytes from `source` to `destination`, in words of every size; one thread."""
    ptx.st_global_u16(destination, ptx.ld_global_u16(source))
    ptx.st_global_u16(destination, ptx.ld_global_u16(source, offset=2), offset=2)
    ptx.st_global_u32(destination, ptx.ld_global_u32(source, offset=4, l1="no_allocate"), offset=4)
    pair = ptx.ld_global_v2_u32(source, offset=8, cache_hint=FIRST)
    ptx.st_global_v2_u32(destination, pair, offset=8)
    ptx.st_global_v4_u32(destination, ptx.ld_global_v4_u32(source, offset=16), offset=16)
    ptx.st_global_u64(destination, number, offset=32)
    a, b, c, d = floats[0], floats[1], floats[2], floats[3]
    ptx.st_global_v2_f32(destination, (a, b), offset=40)
    ptx.st_global_v4_f32(destination, (a, b, c, d), offset=48)
    ptx.st_global_f32(destination, d, offset=56)


def moved_words(source, number, floats):
    """Return what `move_words` leaves in `destination`, as bytes."""
    a, b, c, d = floats
    tail = np.array([a, b, a, b, d, d], np.float32)
    return np.concatenate([source[:32], np.array([number]).view(np.uint8), tail.view(np.uint8)])


def move_if(source, destination, loaded, condition):
    """Load and store where `condition` is true; `loaded` has what the loads returned."""
    loaded[0] = ptx.ld_global_u16(source, condition=condition)
    loaded[1] = ptx.ld_global_u32(source, condition=condition)
    loaded[2], loaded[3] = ptx.ld_global_v2_u32(source, condition=condition)
    a, b, c, d = ptx.ld_global_v4_u32(source, condition=condition)
    loaded[4], loaded[5], loaded[6], loaded[7] = a, b, c, d
    ptx.st_global_u32(destination, 7, condition=condition)
    ptx.st_global_v4_u32(destination, (1, 2, 3, 4), offset=16, condition=condition)


def read_relaxed(source, loaded):
    """Read each word of `source` at system scope; one thread."""
    for i in range(loaded.size):
        loaded[i] = ptx.ld_relaxed_sys_global_u32(source[i:])


def replace_words(words, old):
    """Add to the first word and exchange the second, by every thread."""
    thread = ptx.tid_x()
    old[thread, 0] = ptx.atom_add_u32(words, 3)
    old[thread, 1] = ptx.atom_exch_b32(words[1:], thread)


def exchange(words, floats, out, sums):
    """Exchange between the lanes of a warp: `out` (32, 5), `sums` (32,)."""
    lane = ptx.laneid()
    word = words[lane]
    out[lane, 0] = ptx.shfl_sync_bfly_b32(word, 5)
    out[lane, 1] = ptx.shfl_sync_idx_b32(word, 3)
    out[lane, 2] = ptx.shfl_sync_idx_b32(word, 3, 0x181F)  # the 3rd of each 8
    out[lane, 3] = ptx.activemask()
    out[lane, 4] = ptx.prmt_b32(word, 0x80402010, 0x7BF0 + lane % 4)
    total = floats[lane]
    distance = 16
    while distance > 0:
        total += ptx.shfl_sync_bfly_f32(total, distance)
        distance //= 2
    sums[lane] = total


def exchanged(words):
    """Return what `exchange` leaves in `out`."""
    lane = np.arange(32)
    given = words.view(np.uint8).reshape(32, 4)
    # From the lowest: a byte of the word, the sign of byte 0x80 and of the word's own highest, and
    # byte 7, which is 0x80.
    signs = np.where(words >> 31, 0xFF, 0).astype(np.uint32)
    picked = given[lane, lane % 4].astype(np.uint32)
    mixed = picked | np.uint32(0xFF << 8) | signs << 16 | np.uint32(0x80 << 24)
    return np.stack(
        [words[lane ^ 5], words[lane * 0 + 3], words[lane & 24 | 3], lane * 0 + 2**32 - 1, mixed],
        -1,
    )


def compute(x, out):
    """Compute each fast function of positive `x` (n,) into `out` (n, 5)."""
    i = ptx.tid_x()
    value = x[i]
    out[i, 0] = ptx.rcp_approx_f32(value)
    out[i, 1] = ptx.rsqrt_approx_f32(value)
    out[i, 2] = ptx.lg2_approx_f32(value)
    out[i, 3] = ptx.fma_rn_f32(value, value, -value)
    out[i, 4] = ptx.max_f32(np.float32(3), value)


def computed(x):
    """Return what `compute` leaves in `out`, computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    columns = [1 / wide, 1 / np.sqrt(wide), np.log2(wide), wide * wide - wide, np.maximum(wide, 3)]
    return np.stack(columns, -1).astype(np.float32)
