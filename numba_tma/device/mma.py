"""wgmma: products of matrices on the tensor cores, asynchronous, by a warpgroup. sm_90a alone.

A kernel starts a product with `wgmma`, does other things, and waits with `wgmma_wait`; the result
is a `Fragment`. `docs/guide/mma.md` is the page to start from.
"""

from __future__ import annotations

import functools
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import native
from numba_tma.device.fragments import Fragment, Rows, fragment, load_fragment, load_rows, rows
from numba_tma.device.fragments import _checked as checked
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.host.annotations import Integer
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.mma_rules import RegisterOperand, check_pending, check_product

__all__ = [
    "Fragment",
    "Rows",
    "fragment",
    "load_fragment",
    "load_rows",
    "rows",
    "wgmma",
    "wgmma_wait",
]

_product = functools.lru_cache(check_product)  # all threads of a warpgroup check the same product


@native
def wgmma(
    acc: Fragment,
    a: MatrixDescriptor | Fragment,
    b: MatrixDescriptor,
    *,
    scale_d: Integer = True,
    negate_a: bool = False,
    negate_b: bool = False,
    k_steps: int | None = None,
    fence: bool = True,
    commit: bool = True,
) -> Fragment:
    """Start ``acc + a @ b.T``, 64 x n, and return the fragment that `acc` becomes.

    Executed by all 128 threads of a warpgroup, converged, whose first warp is a multiple of 4. It
    returns at once: the tensor cores read the tiles and write the registers until `wgmma_wait`.
    Until then the result may only be passed as `acc` to another `wgmma`, the tiles must not be
    written, their stage must not be released, and the registers of a fragment `a` must not be
    reused: pass `a` through the wait too, or use it after.

    n is that of `acc`. The types, K, and which operand is transposed (MN-major) follow from the
    operands. The tensor cores multiply f16 to f16 or f32, bf16 to f32, f32 and tf32 (as tf32) to
    f32, e4m3 and e5m2 in any mix to f16 or f32, i8 and u8 in any mix to i32. Other types are an
    error that lists these.

    It orders registers (wgmma.fence) and no memory. Wait for the copies of the tiles first.
    Threads that wrote a tile execute `fence_proxy_async` and then synchronise.

    Parameters
    ----------
    acc
        Fragment that the product is added to.
    a
        64 rows of A, (64, K): a descriptor, from where it stands, or a fragment of 16 or 8 bits.
    b
        n columns of B, (n, K): a descriptor, from where it stands.
    scale_d
        False: the first step overwrites `acc`. May be a run-time value.
    negate_a, negate_b
        Subtract the product; not for integers. Literals.
    k_steps
        How many instructions, each of 32 bytes of every row along K, are issued; all that the tiles
        have by default. A literal.
    fence, commit
        What begins and ends a call: wgmma.fence, and wgmma.commit_group, which makes it a group of
        its own for `wgmma_wait`. ``commit=False`` joins it to the next call, and that one may leave
        out the fence if it goes on with the same accumulator. Literals.

    Notes
    -----
    PTX: ``wgmma.mma_async.sync.aligned.m64n{n}k{k}``, one for each step along K.
    """
    if not isinstance(acc, Fragment) or not isinstance(b, MatrixDescriptor):
        raise simulator.BadOperand(
            f"wgmma(acc, a, b): acc is a fragment and b a matrix descriptor, not {acc!r} and {b!r}"
        )
    for each in (a, b):
        if isinstance(each, MatrixDescriptor) and each.layout.instruction != "wgmma":
            checked(MatrixLayout, each.layout.tile, each.layout.major)
    left: simulator.SharedOperand | RegisterOperand
    if isinstance(a, Fragment):
        left, registers = RegisterOperand(a._dtype, a._n), a._ready("wgmma(a=...)")
    else:
        left, registers = simulator.SharedOperand(a.value, a.layout), None
    if not fence and (acc._product is None or registers is not None):
        raise simulator.UnfinishedProduct(
            "wgmma(fence=False): a thread may still write the registers of acc, which no wgmma "
            "has made, or of a fragment a: leave fence=False to calls that go on with the result "
            "of the call before"
        )
    layout = left if isinstance(left, RegisterOperand) else left.layout
    negates = negate_a or negate_b
    product = checked(
        _product, acc._dtype, acc._n, layout, b.layout, negates=negates, k_steps=k_steps
    )
    right = simulator.SharedOperand(b.value, b.layout)
    call = simulator.ProductCall(
        product, acc._dtype, left, right, bool(scale_d), negate_a, negate_b
    )
    elements, pending = simulator.wgmma(call, acc._elements, registers)
    if commit:
        simulator.wgmma_commit_group()
    return Fragment(acc._dtype, acc._n, elements, pending)


@native
def wgmma_wait(fragments: Any, pending: int = 0, *, after: Rows | None = None) -> Any:
    """Wait until at most `pending` groups are under way, and return the fragments, to be used.

    Executed by all threads of the warpgroup, converged. Groups end in the order in which they were
    committed, one by each `wgmma` with ``commit=True``. `fragments` is one, or a tuple of them:
    those that the ended groups have made, and those of which they read A. Only what is returned
    here can be used. A fragment of a newer group is still under way and is returned unchanged.
    After the wait the stages may be released that the ended groups have read.

    `pending` is a literal from 0 to 7. The wait stays behind the computation of the rows `after`.
    Otherwise ptxas moves a wait up past arithmetic that does not need its fragments, and that
    arithmetic no longer overlaps with the product. Attention passes the sums of the weights, which
    it computes before it waits for a product. `after` costs two comparisons.

    PTX: ``wgmma.wait_group.sync.aligned``.
    """
    given = fragments if isinstance(fragments, tuple) else (fragments,)
    if not all(isinstance(each, Fragment) for each in given):
        raise simulator.BadOperand(
            f"wgmma_wait(fragments=...) takes a fragment or a tuple of them, not {fragments!r}"
        )
    if after is not None and not isinstance(after, Rows):
        raise simulator.BadOperand(f"wgmma_wait(after=...) takes rows of float32, not {after!r}")
    checked(check_pending, pending)
    simulator.wgmma_wait_group(pending)
    waited = tuple(each._after_wait() for each in given)
    return waited if isinstance(fragments, tuple) else waited[0]
