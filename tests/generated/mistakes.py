"""What can be wrong in a program: one thing in each, and what compiler and simulator say of it."""

from __future__ import annotations

from tests.generated.program import Mistake

MISTAKES: list[Mistake] = []

# Words of errors.
COORDINATES = "takes a tuple of 1 to 5 integers in the array's axis order, not"
BARRIER = "takes a Barrier (or its shared-memory address), not"
TILE = "takes a tile in shared memory, not"
INTEGER = "takes an integer, not"
INDEX = "is indexed with integers, not"
OPERAND = "takes an integer (u"
#: Families whose hole `use` has a tile that the caller may read, and write.
WRITABLE = ("store", "reduce")
WITH_A_TILE = (*WRITABLE, "bulk")


def wrong(
    name: str, hole: str, text: str, says: str = "", of: tuple[str, ...] = (), objects: str = ""
) -> None:
    """Enter a mistake that both halves refuse, in words of the library if `says` has them."""
    MISTAKES.append(Mistake(name, hole, text, says, of, objects=objects))


def only(half: str, name: str, hole: str, text: str, reason: str, of: tuple[str, ...] = ()) -> None:
    """Enter a mistake that one half alone can refuse, with the reason."""
    MISTAKES.append(Mistake(name, hole, text, "", of, (half,), reason=reason))


# coordinates

wrong("a float coordinate", "coords", "(0.0, 0)", COORDINATES)
wrong("a computed float coordinate", "coords", "(cuda.threadIdx.x / 2, 0)", COORDINATES)
wrong("a list of coordinates", "coords", "[0, 0]", COORDINATES)
wrong("a scalar coordinate", "coords", "0", COORDINATES)
wrong("one coordinate", "coords", "(0,)", "per axis, in the array's axis order")
wrong("three coordinates", "coords", "(0, 0, 0)", "per axis, in the array's axis order")
wrong("a boolean coordinate", "coords", "(True, 0)", COORDINATES)
wrong("no coordinates", "coords", "None", COORDINATES)
wrong("a string for coordinates", "coords", "'00'", COORDINATES)
wrong("an array for coordinates", "coords", "y", COORDINATES)
wrong("a complex coordinate", "coords", "(1j, 0)", COORDINATES)
wrong("a nested tuple", "coords", "((0, 0),)", COORDINATES)

# operands of a load

wrong("None for a barrier", "barrier", "None", BARRIER)
wrong("a tile for a barrier", "barrier", "{tile}", BARRIER)
wrong("a float for a barrier", "barrier", "1.5", BARRIER)
wrong("an array for a barrier", "barrier", "y", BARRIER)
wrong("a tuple for a barrier", "barrier", "(0,)", BARRIER)
wrong("an array for a map", "map", "y", "an array is no tensor map; pass tensor_map(array, tile)")
wrong("an integer for a map", "map", "(3)")
wrong("None for a tile", "tile", "None", TILE)
wrong("a float for a tile", "tile", "0.5", TILE)
wrong("a barrier for a tile", "tile", "{barrier}", TILE)
wrong(
    "an array for a tile",
    "tile",
    "y",
    "which is not in shared memory; give a stage's tile",
    of=("ring", "reduce", "store", "circular", "multicast", "products"),
)
wrong("a Tile for a tile", "tile", "TILE", TILE)
wrong(
    "another tile",
    "tile",
    "tma.shared_tile(OTHER)",
    "",
    of=(
        "ring",
        "store",
        "reduce",
        "stores",
        "multicast",
        "circular",
    ),
)
wrong(
    "a keyword that is none",
    "barrier",
    "{barrier}, colour=1",
    "got an unexpected keyword argument 'colour'",
)
wrong("too many arguments", "barrier", "{barrier}, None, None, 1, 2")
wrong("a barrier twice", "barrier", "{barrier}, barrier={barrier}")
wrong(
    "a float cache hint",
    "barrier",
    "{barrier}, cache_hint=1.5",
    "takes a CachePolicy or a createpolicy result, not",
)
wrong("a float mask", "mask", "1.5", OPERAND)
wrong("a string mask", "mask", "'all'", OPERAND)
wrong("a cta_group of 3", "barrier", "{barrier}, cta_group=3")

# objects of the host

wrong(
    "a Tile in a kernel", "start", "T = tma.Tile((4, 32), 'f32')", "Tile(...) is for the host: call"
)
wrong(
    "a TilePipeline in a kernel",
    "start",
    "P = tma.TilePipeline(2, x=TILE)",
    "TilePipeline(...) is for the host: call",
)
wrong(
    "a StorePipeline in a kernel",
    "start",
    "P = tma.StorePipeline(2, x=TILE)",
    "StorePipeline(...) is for the host: call",
)
wrong(
    "a CircularBuffer in a kernel",
    "start",
    "P = tma.CircularBuffer(2, 1, x=TILE)",
    "CircularBuffer(...) is for the host: call",
)
wrong(
    "a map in a kernel",
    "start",
    "m = tma.tensor_map(y, TILE)",
    "tensor_map(...) is for the host: call",
)
wrong(
    "a NamedBarrier in a kernel",
    "start",
    "b = tma.NamedBarrier(8, 64)",
    "NamedBarrier(...) is for the host: call",
)
wrong("Warps in a kernel", "start", "w = tma.Warps(1)", "Warps(...) is for the host: call")
wrong(
    "Warpgroups in a kernel",
    "start",
    "w = tma.Warpgroups(1)",
    "Warpgroups(...) is for the host: call",
)
wrong("Threads in a kernel", "start", "w = tma.Threads(32)", "Threads(...) is for the host: call")
wrong(
    "Roles in a kernel",
    "start",
    "w = tma.Roles(a=tma.Warps(1))",
    "Warps(...) is for the host: call",
)
wrong(
    "a scheduler in a kernel",
    "start",
    "w = tma.GridStridedScheduler()",
    "GridStridedScheduler(...) is for the host: call",
)
wrong(
    "a launcher in a kernel",
    "start",
    "w = tma.launcher(kernel, 1, 1)",
    "launcher(...) is for the host: call",
)
wrong("a swizzle in a kernel", "start", "w = tma.Swizzle('B32')")
wrong("a DType in a kernel", "start", "w = tma.DType('f32')")
wrong("a pack in a kernel", "start", "w = tma.pack(y)", "pack(...) is for the host: call")
wrong(
    "a PersistentGrid in a kernel",
    "start",
    "w = tma.PersistentGrid()",
    "PersistentGrid(...) is for the host: call",
)
wrong(
    "a KVPipeline in a kernel",
    "start",
    "w = tma.KVPipeline(2, 16, 64, 'f16', 1)",
    "KVPipeline(...) is for the host: call",
)
wrong(
    "a cluster in a kernel",
    "start",
    "w = tma.cluster((2, 1))",
    "cluster(...) is for the host: call",
)
wrong(
    "a reference in a kernel",
    "start",
    "w = tma.reference_tile(y, TILE, (0, 0))",
    "reference_tile(...) is for the host: call",
)

# attributes

wrong("the shape of a map", "start", "r = {map}.shape[0]", "TensorMap.shape is for the host: read")
wrong("the array of a map", "start", "r = {map}.array", "TensorMap.array is for the host: read")
wrong("the box of a map", "start", "r = {map}.box", "TensorMap.box is for the host: read")
wrong("the copies of a map", "start", "r = {map}.copies", "TensorMap.copies is for the host: read")
wrong("a map explains", "start", "r = {map}.explain()", "TensorMap.explain is for the host: read")
wrong("an unknown attribute of a map", "start", "r = {map}.colour", "attribute 'colour'")
wrong("an unknown method of a map", "start", "{map}.load_all()", "attribute 'load_all'")
wrong("an attribute of a map is set", "start", "{map}.colour = 1", "attribute 'colour'")
wrong(
    "the offset of a tile",
    "use",
    "y[0, 0] = TILE.offset(1, 2)",
    "Tile.offset is for the host: read",
)
wrong("the reference of a tile", "use", "r = TILE.explain()", "attribute 'explain'")
wrong("an unknown attribute of a Tile", "use", "r = TILE.colour", "attribute 'colour'")
wrong(
    "an unknown attribute of a shared tile",
    "use",
    "r = {tile}.colour",
    "attribute 'colour'",
    of=(
        "store",
        "bulk",
    ),
)
wrong("the strides of a tile", "use", "r = {tile}.strides", "attribute 'strides'", of=WITH_A_TILE)
wrong("the flags of a tile", "use", "r = {tile}.flags", "attribute 'flags'", of=WITH_A_TILE)
wrong("a float index", "use", "y[0, 0] = {tile}[0.0, 0]", INDEX, of=WITH_A_TILE)
wrong(
    "one index",
    "use",
    "y[0, 0] = {tile}[0]",
    "has 2 axes but is indexed with 1 integers",
    of=WITH_A_TILE,
)
wrong(
    "three indices",
    "use",
    "y[0, 0] = {tile}[0, 0, 0]",
    "has 2 axes but is indexed with 3 integers",
    of=WITH_A_TILE,
)
wrong("a slice of a tile", "use", "r = {tile}[0:1, 0]", INDEX, of=WITH_A_TILE)
wrong("an ellipsis", "use", "r = {tile}[...]", INDEX, of=WITH_A_TILE)
wrong("None as an index", "use", "r = {tile}[None]", INDEX, of=WITH_A_TILE)
wrong("a boolean index", "use", "y[0, 0] = {tile}[True, 0]", "", of=WITH_A_TILE)
wrong("a string is written", "use", "{tile}[0, 0] = 'a'", "", of=WRITABLE)
wrong("None is written", "use", "{tile}[0, 0] = None", "", of=WRITABLE)
wrong("a tuple is written", "use", "{tile}[0, 0] = (1, 2)", "", of=WRITABLE)
wrong("an array is written", "use", "{tile}[0, 0] = y", "", of=WRITABLE)
wrong(
    "a tile is iterated",
    "use",
    "for v in {tile}: y[0, 0] = v",
    "a shared tile cannot be iterated over",
    of=WITH_A_TILE,
)
wrong("the length of a tile", "use", "y[0, 0] = len({tile})", "", of=WITH_A_TILE)
wrong("a tile is added to", "use", "r = {tile} + 1", "", of=WITH_A_TILE)
wrong("a tile is a condition", "use", "if {tile}: pass", "", of=WITH_A_TILE)
wrong(
    "an atomic on the first element of a tile",
    "use",
    "cuda.atomic.compare_and_swap({tile}, 0, 1)",
    "cuda.atomic.compare_and_swap takes the first element of an array of one axis, and Tile(",
    of=WITH_A_TILE,
)
wrong("an element is deleted", "use", "del {tile}[0, 0]", "", of=WITH_A_TILE)
wrong("in a tile", "use", "r = 1 in {tile}", "", of=WITH_A_TILE)
wrong(
    "a vector off 16 bytes",
    "use",
    "v = {tile}.read_vector((0, 1))",
    "B after a multiple of 16 B",
    of=WITH_A_TILE,
)
wrong("a vector of a float index", "use", "v = {tile}.read_vector((0.0, 0))", INDEX, of=WITH_A_TILE)
wrong(
    "a vector at one index",
    "use",
    "v = {tile}.read_vector(0)",
    "has 2 axes but is indexed with 1 integers",
    of=WITH_A_TILE,
)
wrong("a scalar written as a vector", "use", "{tile}.write_vector((0, 0), 1.0)", "", of=WITH_A_TILE)
wrong(
    "a tuple written as a vector",
    "use",
    "{tile}.write_vector((0, 0), (1, 2, 3, 4))",
    "",
    of=WITH_A_TILE,
)
wrong("the address of no index", "use", "r = {tile}.address_of()", "", of=WITH_A_TILE)
wrong(
    "a view of another size",
    "use",
    "r = {tile}.view(TILE2)",
    "and cannot be seen as",
    of=WITH_A_TILE,
)
wrong(
    "a view of no tile",
    "use",
    "r = {tile}.view(3)",
    "SharedTile.view(tile=...) takes a Tile",
    of=WITH_A_TILE,
)

# pipelines' loops

wrong("a step of zero", "step", "0", "the loop would not end")
wrong("a float step", "step", "1.0", INTEGER)
wrong("a float stop", "stop", "n / 2", INTEGER)
wrong("a float first", "first", "0.0")
wrong("a string stop", "stop", "'n'", INTEGER)
wrong("None as stop", "stop", "None", INTEGER)
wrong("an array as stop", "stop", "y", INTEGER)
wrong("a boolean first", "first", "True")
wrong("in_flight of all stages", "in_flight", "3", "can be held back")
wrong("in_flight is negative", "in_flight", "-1", "can be held back")
wrong("in_flight is a variable", "in_flight", "n - n", "must be a compile-time constant")
wrong("in_flight is a float", "in_flight", "0.0", "must be a compile-time constant")
wrong("a window of more tiles than stages", "before", "7", "a window holds 7 + 1 + ")
wrong("a negative side of a window", "after", "-1", "a window has 0 tiles or more on each side")
wrong("a side that is a variable", "before", "n - n", "must be a compile-time constant")
wrong("a float side of a window", "after", "1.0", "must be a compile-time constant")
wrong("windows that leave tiles out", "step", "2", "a window moves by one tile", of=("windows",))
wrong("a distance beyond the window", "distance", "-3", "this window has the tiles")
wrong("a float distance", "distance", "0.0", "takes an integer, the distance from the tile")
wrong("a forgotten release", "release", "pass")
wrong("scopes are missing", "scopes", "# no scopes", "needs @tma.scopes")
wrong("an unknown tile of a stage", "use", "r = stage.z", "has no tile 'z'", of=("ring",))
wrong(
    "an unknown method of a handle",
    "start",
    "PIPE.begin()",
    "attribute 'begin'",
    of=(
        "ring",
        "circular",
        "stores",
        "outputs",
    ),
)
wrong("an attribute of a pipeline", "start", "r = PIPE.roles", "attribute 'roles'", of=("ring",))
wrong(
    "a method of the host",
    "start",
    "r = PIPE.shared_parts('x')",
    "TilePipeline.shared_parts is for the host: read",
    of=("ring",),
)
wrong("a handle is iterated", "use", "for q in pipe: pass", "", of=("ring",))
wrong("a stage is unpacked", "use", "q, r = stage", "", of=("ring loop",))
wrong("a stage is indexed", "use", "q = stage[0]", "", of=("ring",))
wrong("a stage is called", "use", "q = stage()", "", of=("ring",))
wrong("a stage is written to", "use", "stage.x = 1", "", of=("ring",))
wrong("is_consumer is not called", "is_consumer", "pipe.is_consumer")
wrong("is_consumer with an argument", "is_consumer", "pipe.is_consumer(1)")
wrong(
    "a pipeline starts in a loop",
    "start",
    "for q in range(2): PIPE.start()",
    "is in a loop: it would initialise mbarriers again",
    of=("ring",),
)
wrong(
    "a consume loop in a produce loop",
    "elected",
    "for q, s in pipe.consume(0, 1): pass",
    of=("ring loop",),
)
wrong(
    "a produce loop of another pipeline",
    "elected",
    "for q, s in SPARE.start().produce(0, 1): pass",
    "",
    of=("ring loop",),
)
wrong(
    "an election in a produce loop",
    "elected",
    "q = tma.elect_sync()",
    "elect_sync is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "syncthreads in a produce loop",
    "elected",
    "cuda.syncthreads()",
    "syncthreads is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "syncwarp in a produce loop",
    "elected",
    "cuda.syncwarp()",
    "syncwarp is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "a ballot in a produce loop",
    "elected",
    "q = cuda.ballot_sync(-1, True)",
    "ballot_sync is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "a shuffle in a produce loop",
    "elected",
    "q = cuda.shfl_sync(-1, 1, 0)",
    "shfl_sync is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "a vote in a produce loop",
    "elected",
    "q = cuda.all_sync(-1, True)",
    "all_sync is called in the body of a produce loop",
    of=("ring loop",),
)
wrong(
    "a named barrier in a produce loop",
    "elected",
    "ROLES.load.sync()",
    "sync is called in the body of a produce loop",
    of=("ring loop",),
)
