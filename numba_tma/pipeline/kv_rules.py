"""The rules for a `KVPipeline` and its methods, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_tma import simulator
from numba_tma.backend.interface import compile_target, compile_time
from numba_tma.host.architectures import TCGEN05, refusal
from numba_tma.host.layout import Swizzle, as_shape
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.pipeline.roles import WARP, Role

if TYPE_CHECKING:
    from numba_tma.pipeline.kv import KVPipeline

#: The choices of `holds`, as error messages name them.
HOLDS = {"k": "K alone", "v": "V alone", "kv": "K and V"}


def check_roles(kv: KVPipeline) -> None:
    """Raise unless the roles are different roles of one block, of whole warps."""
    roles = (kv.producer, *kv.consumers)
    if not all(isinstance(role, Role) for role in roles) or len(roles) < 2:
        raise TypeError(
            f"KVPipeline(producer={kv.producer!r}, consumer={kv.consumers!r}): give roles, as "
            "ROLES.load and ROLES.mma of ROLES = Roles(mma=Warpgroups(2), load=Warps(1))"
        )
    if len({role.block for role in roles}) > 1 or len({role.index for role in roles}) < len(roles):
        raise ValueError(
            f"KVPipeline: producer {kv.producer} and consumers {list(kv.consumers)} must be "
            "different roles of the same Roles"
        )
    for role in roles:
        if kv.by_commit and role is not kv.producer and role.sync_threads != WARP:
            raise ValueError(
                f"KVPipeline(consumer={role}, released_by='tcgen05'): one thread of a warp starts "
                "the products and commits: use Warps(1)"
            )
        if role.group.unit == 1:
            raise ValueError(
                f"KVPipeline: role {role} arrives thread by thread, but whole warps load and "
                "multiply: use Warps or Warpgroups"
            )


def check_tiles(kv: KVPipeline) -> None:
    """Raise unless sub-stages are whole spans and tensor cores can read the tiles."""
    if kv.swizzle not in (Swizzle.B32, Swizzle.B64, Swizzle.B128):
        raise ValueError(f"KVPipeline(swizzle={kv.swizzle.name}): use B128, B64 or B32")
    spans, parts = kv.padded_depth // kv.span, kv.num_qk_stages_effective
    if spans % parts:
        fits = [str(n) for n in range(1, spans + 1) if spans % n == 0]
        raise ValueError(
            f"KVPipeline(depth={kv.depth}, num_qk_stages={parts}): a row of {kv.depth} x "
            f"{kv.dtype.itemsize} B = {kv.depth * kv.dtype.itemsize} B takes {spans} span(s) of "
            f"{kv.swizzle.span} B ({kv.swizzle.name}), which {parts} sub-stages cannot share "
            f"evenly: use num_qk_stages {' or '.join(fits)}, or a swizzle with a narrower span"
        )
    if kv.v_skips_barriers and kv.num_kv_stages > 32:
        raise ValueError(
            f"KVPipeline(num_kv_stages={kv.num_kv_stages}, num_qk_stages={parts}): if K in "
            "parts and V share a ring, a consumer keeps one bit of a 32-bit register for each "
            "stage: use at most 32 stages, num_qk_stages=1, or a ring for each"
        )
    needed = {"k": (kv.k_tile, "K"), "v": (kv.v_tile, "MN")}
    for name in kv.holds:
        try:
            MatrixLayout(*needed[name])
        except ValueError as error:
            raise ValueError(f"KVPipeline, its tile of {name.upper()}: {error}") from None


@compile_time
def check_holds(method: str, kv: KVPipeline, what: str) -> None:
    """Raise unless the ring holds K (or V)."""
    if what not in kv.holds:
        raise simulator.BadOperand(holds_rule(method, kv, what))


@compile_time
def check_commits(kv: KVPipeline) -> None:
    """Raise if the ring needs products that the target does not have."""
    target = compile_target()
    if kv.by_commit and target and not TCGEN05.allow(target):
        raise simulator.BadOperand(
            f"{refusal(f'{kv}: a release by tcgen05.commit', TCGEN05, target)}; or give "
            "released_by='threads', and release a tile after the wgmma_wait of its products"
        )


def holds_rule(method: str, kv: KVPipeline, what: str) -> str:
    """Return the error of a method for K on a ring of V, or of a method for V on a ring of K."""
    has, wants = ("K-major", "MN-major") if what == "v" else ("MN-major", "K-major")
    return (
        f"{method}: {kv} holds {HOLDS[kv.holds]}, whose tiles are {has}, but {method} is for "
        f"{wants} tiles of {what.upper()}: use the ring of {what.upper()}, or one with holds='kv'"
    )


def as_keys(block_n: object) -> tuple[int, ...]:
    """Return the shape of the box that the keys of a stage form."""
    try:
        return as_shape(block_n)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"KVPipeline(block_n={block_n!r}): give a number of keys, or the shape of their box"
        ) from None


def as_swizzle(swizzle: object) -> Swizzle:
    """Return the swizzle of the tiles."""
    try:
        return Swizzle(swizzle)  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(
            f"KVPipeline(swizzle={swizzle!r}): give a Swizzle, such as Swizzle.B128"
        ) from None
