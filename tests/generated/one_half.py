"""Mistakes that the compiler alone, or the simulator alone, can know, with the reason."""

from __future__ import annotations

from tests.generated.mistakes import WITH_A_TILE, WRITABLE, only

# what only a run knows

VALUES = "the compiler knows types, and a run the values"
ORDER = "it depends on what other threads do"
only("simulator", "an odd innermost coordinate", "coords", "(0, cuda.threadIdx.x * 0 + 1)", VALUES)
only("simulator", "too few bytes", "bytes", "TILE.nbytes - 16", VALUES, of=WRITABLE)
only("simulator", "too many bytes", "bytes", "TILE.nbytes + 16", VALUES, of=WRITABLE)
only("simulator", "too many arrivals", "count", "2", ORDER)
only("simulator", "a block that gets no tile", "mask", "1", ORDER)
only("simulator", "a block that does not exist", "mask", "1 << 5", VALUES)
only(
    "simulator",
    "a warp that does not meet",
    "first_meets",
    "NAMED.sync()\n        NAMED.sync()",
    ORDER,
)
only(
    "simulator",
    "an index past the end",
    "use",
    "q = {tile}[99, 0]; y[0, 0] = q",
    VALUES,
    of=WRITABLE,
)
only("simulator", "an address of no barrier", "barrier", "8", VALUES)
only(
    "simulator",
    "a tile that is written too early",
    "elected",
    "stage.x[0, 0] = 1",
    ORDER,
    of=("ring explicit", "ring loop"),
)

# what only types know: NUMBA_TMA_SIM_COMPILES shows them

TYPES = "the simulator knows values, and the compiler the types of variables"
only(
    "compiler", "a tuple of a variable index", "start", "q = (1, 2.5)[cuda.threadIdx.x % 2]", TYPES
)
only("compiler", "int of a string", "start", "q = int('3')", TYPES)
only("compiler", "isinstance", "start", "q = isinstance(1, np.generic)", TYPES)
only("compiler", "tiles are compared", "use", "q = {tile} == {tile}", TYPES, of=WITH_A_TILE)
only("compiler", "a local variable in_flight", "in_flight", "cuda.laneid * 0", TYPES)
only(
    "compiler",
    "a vector at a variable index",
    "use",
    "v = {tile}.read_vector((0, 0)); i = cuda.threadIdx.x % 2; q = v[i]",
    TYPES,
    of=("bulk",),
)
