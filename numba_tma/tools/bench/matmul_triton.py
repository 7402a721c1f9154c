"""A matmul as Triton's users write it for Hopper: tensor descriptors, persistent, pipelined.

Its own warp specialisation does nothing on Hopper: that takes Gluon, in `matmul_gluon`.
"""

# mypy: ignore-errors
from __future__ import annotations

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.timing import Run

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # then there is nothing to run
    triton = None

#: Rows and columns of a tile, stages, warps, rows of tiles in a group, and whether persistent.
PLANS = (
    (128, 256, 4, 8, 8, True),
    (128, 256, 4, 8, 16, True),
    (128, 256, 3, 8, 8, True),
    (128, 256, 4, 8, 8, False),
    (256, 128, 4, 8, 8, True),
    (128, 128, 5, 4, 8, True),
    (128, 128, 3, 4, 8, False),
)
K_BYTES = 128  # of a row of a tile: the widest swizzle


def candidates(a: DeviceArray, w: DeviceArray, c: DeviceArray, sms: int) -> dict[str, Run]:
    """Return what multiplies a by w.T, by the names of the plans, each into a copy of c."""
    if triton is None:
        raise ImportError("triton is not installed")
    return {f"Triton, {plan}": _run(a, w, c.clone(), sms, *plan) for plan in PLANS}


def _run(a, w, c, sms, rows, columns, stages, warps, group, persistent):
    (M, K), N = a.shape, w.shape[0]
    deep = K_BYTES // a.element_size()
    tiles = triton.cdiv(M, rows) * triton.cdiv(N, columns)
    launch = matmul_tiles[(min(tiles, sms) if persistent else tiles,)]
    descriptors = (
        TensorDescriptor.from_tensor(a, [rows, deep]),
        TensorDescriptor.from_tensor(w, [columns, deep]),
        TensorDescriptor.from_tensor(c, [rows, columns // 2]),
    )
    sizes = {"BM": rows, "BN": columns, "BK": deep, "GROUP": group}

    def run():
        launch(*descriptors, M, N, K, **sizes, num_stages=stages, num_warps=warps)
        return c

    return run


if triton is not None:

    @triton.jit
    def matmul_tiles(
        A,
        B,
        C,
        M,
        N,
        K,
        BM: tl.constexpr,
        BN: tl.constexpr,
        BK: tl.constexpr,
        GROUP: tl.constexpr,
    ):
        """Multiply A by B.T, a tile after another for each program, each stored in two halves."""
        high = tl.cdiv(M, BM)
        wide = tl.cdiv(N, BN)
        for tile in tl.range(tl.program_id(0), high * wide, tl.num_programs(0), flatten=True):
            # Rows of tiles are done in groups, column after column, so that L2 has both operands.
            group = tile // (GROUP * wide)
            within = tile % (GROUP * wide)
            rows = min(high - group * GROUP, GROUP)
            row = (group * GROUP + within % rows) * BM
            column = within // rows * BN
            sums = tl.zeros((BM, BN), tl.float32)
            for k in range(tl.cdiv(K, BK)):
                sums = tl.dot(A.load([row, k * BK]), B.load([column, k * BK]).T, sums)
            left, right = sums.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
            C.store([row, column], left.to(C.dtype))
            C.store([row, column + BN // 2], right.to(C.dtype))
