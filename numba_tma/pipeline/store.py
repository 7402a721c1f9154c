"""`StorePipeline`: tiles that threads write into stages, from which the copy engine stores them.

A stage may be written again when the copy engine has read it. Bulk groups belong to a thread, so
only the thread that stored can wait for the read. Each stage is one bulk group of the role's first
thread, and the role's named barrier passes the result on to the other threads.

Between the writes to two stages the role synchronises for two conditions: the first stage is
written and can be stored, and the second stage has been read. With one stage both are the same
stage, which has to be stored before it is read, so the role synchronises twice. With two stages or
more the role synchronises once. The first thread waits before the barrier, until all but
`num_stages` - 2 of the groups that it has committed have been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import Constant, constant_class, simulator_only, u32
from numba_tma.backend.primitives import add32, allocate_shared
from numba_tma.device.shared import TileAccesses
from numba_tma.host.debug import Site, is_bounded
from numba_tma.host.layout import Tile
from numba_tma.pipeline.memory import given_address
from numba_tma.pipeline.roles import WARP, Role, RoleTable, index_from, of_own_role
from numba_tma.pipeline.stage_layout import (
    StageLayout,
    named_tiles,
    positive,
    round_up,
    tile_stride,
)
from numba_tma.pipeline.start import check_launch
from numba_tma.pipeline.store_handle import StorePipelineHandle, prepare_meeting
from numba_tma.ptx import ntid_x, tid_x


@dataclass(frozen=True)
class StorePipeline(StageLayout):
    """A ring of `num_stages` stages that threads write and the copy engine stores.

    Made on the host, used from a kernel's globals. `start` returns a `StorePipelineHandle` with
    `acquire`, `store`, `reduce`, `commit` and `tail`. CUTLASS: PipelineTmaStore.

    Parameters
    ----------
    num_stages
        Stages of the ring, at least 1. While threads write one stage, the copy engine may read all
        others. With 2 or more the role synchronises once for each stage, with 1 twice.
    payload
        The tiles of a stage as one object, in place of `tiles`, as in `TilePipeline`.
    role
        The `Role` whose threads write and store; by default all threads of the block, which then
        has one dimension. Each of several roles, given as a tuple, has stages of its own: a thread
        cannot wait for another thread's stores.
    debug
        Whether waits that take too long raise an exception, as in `TilePipeline`.
    **tiles
        The tiles of a stage, by the name they have in the kernel: ``stage.y``.

    Examples
    --------
    >>> OUT = StorePipeline(2, y=Tile((64, 128), "f32"))
    >>> OUT.nbytes
    65536
    """

    device_methods = ("start", "_memory")
    num_stages: int
    tiles: tuple[tuple[str, Tile], ...]
    roles: tuple[Role, ...]
    debug: bool = False

    def __init__(
        self,
        num_stages: int,
        payload: Any = None,
        /,
        *,
        role: Role | tuple[Role, ...] | None = None,
        debug: bool | None = None,
        **tiles: Tile,
    ) -> None:
        rule = "a pipeline has at least 1 stage; 2 are usual"
        values = {
            "num_stages": positive("StorePipeline", "num_stages", num_stages, rule),
            "tiles": named_tiles(StorePipeline, payload, tiles),
            "roles": storing_roles(role),
            "debug": is_bounded(StorePipeline, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = [f"{name}={tile}" for name, tile in self.tiles]
        if self.roles:
            shown.append(f"role={self.roles[0] if len(self.roles) == 1 else self.roles}")
        if self.debug:
            shown.append("debug=True")
        return f"StorePipeline({self.num_stages}, {', '.join(shown)})"

    @property
    def num_parties(self) -> int:
        """Groups of threads that have stages of their own."""
        return max(1, len(self.roles))

    @property
    def role_nbytes(self) -> int:
        """Bytes from the stages of one role to those of the next."""
        return round_up(self.storage_nbytes, self.alignment)

    @property
    def nbytes(self) -> int:
        """Shared memory of all stages, in bytes."""
        return (self.num_parties - 1) * self.role_nbytes + self.storage_nbytes

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block}" if self.block else "line"

    @property
    def has_roles(self) -> bool:
        """Whether roles store; otherwise all threads of the block do."""
        return bool(self.roles)

    @property
    def role_table(self) -> RoleTable:
        """The roles that store, as a table."""
        return RoleTable(self.roles)

    @property
    def role_offsets(self) -> tuple[int, ...]:
        """Offset of each role's stages from the base, in bytes."""
        return tuple(number * self.role_nbytes for number in self.role_table.numbers)

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        if what == "barriers":
            return {what: self.sync_nbytes}
        each, roles = f"{self.num_stages} stages", self.num_parties
        each = f"{roles} roles x {each}" if roles > 1 else each
        parts = {}
        for name, tile in self.tiles:
            stages = roles * self.num_stages * tile_stride(tile)
            parts[f"{name}: {each} x {tile_stride(tile):,} B"] = stages
        parts["alignment"] = self.nbytes - sum(parts.values())
        parts["barriers"] = self.sync_nbytes
        return {name: nbytes for name, nbytes in parts.items() if nbytes}

    @property
    def block(self) -> int:
        """Threads of the block; 0 for any number of whole warps."""
        return self.roles[0].block if self.roles else 0

    @property
    def still_reading(self) -> int:
        """Bulk groups that need not have been read when the role synchronises for a stage."""
        return max(0, self.num_stages - 2)

    # ------------------------------------------------------- its waits in debug mode

    @property
    def sync_site(self) -> Site:
        """The name of the role's synchronisation."""
        role = self.roles[0].name if len(self.roles) == 1 else ""
        return Site(f"sync() or store() of '{self._name}'", role, kind="sync", debug=self.debug)

    @property
    def sync_nbytes(self) -> int:
        """Shared memory of debug mode's mbarriers for named barriers, in bytes."""
        return 8 * self.num_parties if self.debug else 0

    def start(self, tiles: Constant[Any] = None) -> StorePipelineHandle:
        """Allocate the stages and return the handle.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises only
        in debug mode.

        Parameters
        ----------
        tiles
            Memory for the stages: a `SharedTile` of at least `nbytes`, or an address that is a
            multiple of `alignment`. By default `start` allocates it. Earlier use of the memory must
            be complete, and the role must have synchronised with the threads that used it.
        """
        check_launch(self)
        thread, num_threads, sync_id = tid_x(), ntid_x(), u32(0)
        base, number = self._memory(tiles), u32(0)
        label_store_stages(self, base)
        if self.has_roles:
            table = self.role_table
            number = of_own_role(thread, table, table.numbers)
            num_threads = of_own_role(thread, table, table.members)
            sync_id = of_own_role(thread, table, table.barriers)
            base = add32(base, of_own_role(thread, table, self.role_offsets))
            thread = index_from(thread, of_own_role(thread, table, table.firsts))
        meeting = u32(0)
        if self.debug:
            meeting = add32(allocate_shared(self, self.sync_nbytes, 8, "barriers"), 8 * number)
            prepare_meeting(meeting, thread, num_threads, sync_id)
        return StorePipelineHandle(
            self,
            base=base,
            thread=thread,
            num_threads=num_threads,
            sync_id=sync_id,
            accesses=TileAccesses(),
            meeting=meeting,
            index=self.num_stages,
        )

    def _memory(self, tiles: Constant[Any]) -> int:
        """Return the address of all stages."""
        if tiles is None:
            return allocate_shared(self, self.nbytes, self.alignment, "", self.launch_kind)
        return given_address("tiles", tiles, self.nbytes, self.alignment)


@simulator_only
def label_store_stages(pipeline: StorePipeline, base: int) -> None:
    """Name the stages for the simulator's errors and timeline."""
    for number in range(pipeline.num_parties):
        of = f" for {pipeline.roles[number].name}" if len(pipeline.roles) > 1 else ""
        for name, tile in pipeline.tiles:
            for stage in range(pipeline.num_stages):
                offset = number * pipeline.role_nbytes + stage * tile_stride(tile)
                address = base + pipeline.tile_offset(name) + offset
                simulator.label(address, f"{name}[{stage}]{of} of {pipeline}")


def storing_roles(role: Any) -> tuple[Role, ...]:
    """Return the roles that store; raise unless they are different roles of one block.

    Every role has whole warps.
    """
    if role is None:
        return ()
    roles = role if isinstance(role, tuple) else (role,)
    for one in roles or (role,):
        if not isinstance(one, Role):
            raise TypeError(
                "StorePipeline(role=...) takes a role, as ROLES.epilogue with ROLES = "
                f"Roles(load=Warps(1), epilogue=Warps(4)), or a tuple of roles, not {one!r}"
            )
        if one.members % WARP:
            raise ValueError(
                f"StorePipeline(role={one}): a role that stores synchronises by whole warps; give "
                f"Warps(n), or Threads(n) with a multiple of {WARP}"
            )
    if len({one.block for one in roles}) > 1 or len({one.index for one in roles}) < len(roles):
        raise ValueError(
            f"StorePipeline(role={list(roles)}): these must be different roles of the same Roles"
        )
    return roles


constant_class(StorePipeline)
