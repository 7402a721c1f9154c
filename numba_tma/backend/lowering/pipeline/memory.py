"""Where the tiles and barriers of what a kernel starts lie: own memory, or such as is handed in."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, ObjectType, TypingError, get_field, ir, types
from numba_tma.device.barrier import BarrierArray
from numba_tma.device.shared import SharedTile
from numba_tma.pipeline import started
from numba_tma.pipeline.ring import TilePipeline

U32 = types.uint32


def constant(value: int) -> Any:
    """Return an i32."""
    return ir.Constant(I32, value)


def check_memory(name: str, given: types.Type, nbytes: int, alignment: int) -> bool:
    """Return whether memory was handed in; raise if it is not enough."""
    if isinstance(given, types.NoneType | types.Omitted):
        return False
    if not isinstance(types.unliteral(given), types.Integer):
        host: Any = given
        if isinstance(given, ObjectType) and given.cls in (SharedTile, BarrierArray):
            host = given.static[0]
            host = _Memory(host) if isinstance(host, int) else _Memory(tile=host)
        if problem := started.storage_problem(name, host, nbytes, alignment):
            raise TypingError(problem)
    elif isinstance(given, types.IntegerLiteral) and given.literal_value % alignment:
        raise TypingError(started.address_rule(name, given.literal_value, alignment))
    return True


class _Memory:
    """What `storage_problem` looks at, from the type of a tile or a barrier array."""

    def __init__(self, num_barriers: int = 0, tile: Any = None) -> None:
        if tile is None:
            self.num_barriers = num_barriers
        else:
            self.tile = tile

    def __repr__(self) -> str:
        return str(getattr(self, "tile", None) or f"{self.num_barriers} barriers")


def given_arguments(*args: types.Type | None) -> list[types.Type]:
    """Return the arguments up to the last that is given, with None for those left out before."""
    last = max((i for i, typ in enumerate(args, 1) if typ is not None), default=0)
    return [typ or types.none for typ in args[:last]]


def synchronises(sync: types.Type | None) -> bool:
    """Return whether a start() synchronises, which a literal says."""
    return sync is None or bool(compiler.static_of(sync, "start(sync=...)"))


def memory_address(builder: Any, typ: types.Type, value: Any) -> Any:
    """Return the shared-memory address of a tile, a barrier array or an integer."""
    if isinstance(typ, ObjectType):
        return get_field(builder, typ, value, "address")
    return builder.trunc(value, I32) if value.type.width > 32 else value


def allocate(builder: Any, value: TilePipeline, sig: Any, args: Any) -> tuple[Any, Any]:
    """Return the addresses of the tiles and of the barriers, allocating what is not given."""
    given = {
        name: memory_address(builder, typ, argument)
        for name, typ, argument in zip(("tiles", "barriers"), sig.args[1:], args[1:])
        if not isinstance(typ, types.NoneType | types.Omitted)
    }
    # The launch reads from the name how many threads the roles want.
    what = f"ring{value.block or ''}"
    base, barriers = given.get("tiles"), given.get("barriers")
    if base is None:
        nbytes = value.nbytes if barriers is None else value.storage_nbytes
        base = compiler.allocate_shared(builder, nbytes, value.alignment, repr(value), what)
        if barriers is None:
            return base, builder.add(base, constant(value.barriers_offset))
    if barriers is None:
        nbytes = 8 * value.num_barriers
        barriers = compiler.allocate_shared(builder, nbytes, 8, f"barriers of {value}", what)
    return base, barriers
