"""What can be wrong in a program: one thing in each, and what compiler and simulator say of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.generated.program import Program


@dataclass(frozen=True)
class Mistake:
    """One hole filled wrongly. The sentences are words of the errors."""

    name: str
    hole: str
    text: str
    compiler: str
    simulator: str
    families: tuple[str, ...]

    def fits(self, program: Program) -> bool:
        """Return whether a program has the hole."""
        names = [n for n in program.holes if "{" + n + "}" in self.text]
        wants = [n for n in NAMES if "{" + n + "}" in self.text]
        known = not self.families or program.family.startswith(self.families)
        return known and program.has(self.hole) and set(wants) <= set(names)

    def replaced(self, program: Program) -> dict[str, str]:
        """Return how the hole is filled."""
        return {self.hole: self.text.format_map(program.holes)}


NAMES = ("map", "tile", "coords", "barrier", "first", "stop", "step")

MISTAKES: list[Mistake] = []


def wrong(
    name: str, hole: str, text: str, compiler: str = "?", simulator: str = "", *families: str
) -> None:
    """Enter a mistake. Without words of its own the simulator says the compiler's."""
    MISTAKES.append(Mistake(name, hole, text, compiler, simulator or compiler, families))


# coordinates

wrong("a float coordinate", "coords", "(0.0, 0)")
wrong("a computed float coordinate", "coords", "(cuda.threadIdx.x / 2, 0)")
wrong("a list of coordinates", "coords", "[0, 0]")
wrong("a scalar coordinate", "coords", "0")
wrong("one coordinate", "coords", "(0,)")
wrong("three coordinates", "coords", "(0, 0, 0)")
wrong("a boolean coordinate", "coords", "(True, 0)")
wrong("no coordinates", "coords", "None")
wrong("a string for coordinates", "coords", "'00'")
wrong("an array for coordinates", "coords", "y")
wrong("a complex coordinate", "coords", "(1j, 0)")
wrong("a nested tuple", "coords", "((0, 0),)")

# operands of a load

wrong("None for a barrier", "barrier", "None")
wrong("a tile for a barrier", "barrier", "{tile}")
wrong("a float for a barrier", "barrier", "1.5")
wrong("an array for a barrier", "barrier", "y")
wrong("a tuple for a barrier", "barrier", "(0,)")
wrong("an array for a map", "map", "y")
wrong("an integer for a map", "map", "3")
wrong("None for a tile", "tile", "None")
wrong("a float for a tile", "tile", "0.5")
wrong("a barrier for a tile", "tile", "{barrier}")
wrong("an array for a tile", "tile", "y")
wrong("a Tile for a tile", "tile", "TILE")
wrong("another tile", "tile", "tma.shared_tile(tma_other)")
wrong("a keyword that is none", "barrier", "{barrier}, colour=1")
wrong("too many arguments", "barrier", "{barrier}, None, None, 1, 2")
wrong("a barrier twice", "barrier", "{barrier}, barrier={barrier}")
wrong("a bad cache hint", "barrier", "{barrier}, cache_hint='first'")
wrong("a float cache hint", "barrier", "{barrier}, cache_hint=1.5")
wrong("a float mask", "mask", "1.5")
wrong("a string mask", "mask", "'all'")
wrong("a cta_group of 3", "barrier", "{barrier}, cta_group=3")

# objects of the host

wrong("a Tile in a kernel", "start", "T = tma.Tile((4, 32), 'f32')")
wrong("a TilePipeline in a kernel", "start", "P = tma.TilePipeline(2, x=TILE)")
wrong("a StorePipeline in a kernel", "start", "P = tma.StorePipeline(2, x=TILE)")
wrong("a CircularBuffer in a kernel", "start", "P = tma.CircularBuffer(2, 1, x=TILE)")
wrong("a map in a kernel", "start", "m = tma.tensor_map(y, TILE)")
wrong("a NamedBarrier in a kernel", "start", "b = tma.NamedBarrier(8, 64)")
wrong("Warps in a kernel", "start", "w = tma.Warps(1)")
wrong("Warpgroups in a kernel", "start", "w = tma.Warpgroups(1)")
wrong("Threads in a kernel", "start", "w = tma.Threads(32)")
wrong("Roles in a kernel", "start", "w = tma.Roles(a=tma.Warps(1))")
wrong("a scheduler in a kernel", "start", "w = tma.GridStridedScheduler()")
wrong("a launcher in a kernel", "start", "w = tma.launcher(kernel, 1, 1)")
wrong("a swizzle in a kernel", "start", "w = tma.Swizzle('B32')")
wrong("a DType in a kernel", "start", "w = tma.DType('f32')")
wrong("a pack in a kernel", "start", "w = tma.pack(y)")
wrong("a PersistentGrid in a kernel", "start", "w = tma.PersistentGrid()")
wrong("a KVPipeline in a kernel", "start", "w = tma.KVPipeline(2, 16, 64, 'f16', 1)")
wrong("a cluster in a kernel", "start", "w = tma.cluster((2, 1))")
wrong("a reference in a kernel", "start", "w = tma.reference_tile(y, TILE, (0, 0))")

# attributes

wrong("the shape of a map", "start", "r = {map}.shape[0]")
wrong("the array of a map", "start", "r = {map}.array")
wrong("the tile of a map", "start", "r = {map}.tile")
wrong("the box of a map", "start", "r = {map}.box")
wrong("the dtype of a map", "start", "r = {map}.dtype")
wrong("a map explains", "start", "r = {map}.explain()")
wrong("an unknown attribute of a map", "start", "r = {map}.colour")
wrong("an unknown method of a map", "start", "{map}.load_all()")
wrong("an attribute of a map is set", "start", "{map}.colour = 1")
wrong("the offset of a tile", "use", "y[0, 0] = TILE.offset(1, 2)")
wrong("the reference of a tile", "use", "r = TILE.explain()")
wrong("an unknown attribute of a Tile", "use", "r = TILE.colour")
wrong("an unknown attribute of a shared tile", "use", "r = {tile}.colour", "?", "", "store", "bulk")
wrong("the shape of a shared tile", "use", "r = {tile}.shape", "?", "", "store", "reduce", "bulk")
wrong("the dtype of a shared tile", "use", "r = {tile}.dtype", "?", "", "store", "reduce", "bulk")
wrong("a float index", "use", "y[0, 0] = {tile}[0.0, 0]", "?", "", "store", "reduce", "bulk")
wrong("one index", "use", "y[0, 0] = {tile}[0]", "?", "", "store", "reduce", "bulk")
wrong("three indices", "use", "y[0, 0] = {tile}[0, 0, 0]", "?", "", "store", "reduce", "bulk")
wrong("a slice of a tile", "use", "r = {tile}[0:1, 0]", "?", "", "store", "reduce", "bulk")
wrong("an ellipsis", "use", "r = {tile}[...]", "?", "", "store", "reduce", "bulk")
wrong("None as an index", "use", "r = {tile}[None]", "?", "", "store", "reduce", "bulk")
wrong("a boolean index", "use", "y[0, 0] = {tile}[True, 0]", "?", "", "store", "reduce", "bulk")
wrong("a string is written", "use", "{tile}[0, 0] = 'a'", "?", "", "store", "reduce")
wrong("None is written", "use", "{tile}[0, 0] = None", "?", "", "store", "reduce")
wrong("a tuple is written", "use", "{tile}[0, 0] = (1, 2)", "?", "", "store", "reduce")
wrong("an array is written", "use", "{tile}[0, 0] = y", "?", "", "store", "reduce")
wrong("a tile is iterated", "use", "for v in {tile}: y[0, 0] = v", "?", "", "store", "reduce", "bulk")
wrong("the length of a tile", "use", "y[0, 0] = len({tile})", "?", "", "store", "reduce", "bulk")
wrong("a tile is added to", "use", "r = {tile} + 1", "?", "", "store", "reduce", "bulk")
wrong("tiles are compared", "use", "r = {tile} == {tile}", "?", "", "store", "reduce", "bulk")
wrong("a tile is a condition", "use", "if {tile}: pass", "?", "", "store", "reduce", "bulk")
wrong("an atomic on a tile", "use", "cuda.atomic.add({tile}, (0, 0), 1)", "?", "", "store", "reduce", "bulk")
wrong("an element is deleted", "use", "del {tile}[0, 0]", "?", "", "store", "reduce", "bulk")
wrong("in a tile", "use", "r = 1 in {tile}", "?", "", "store", "reduce", "bulk")
wrong("a vector off 16 bytes", "use", "v = {tile}.read_vector((0, 1))", "?", "", "store", "reduce", "bulk")
wrong("a vector of a float index", "use", "v = {tile}.read_vector((0.0, 0))", "?", "", "store", "reduce", "bulk")
wrong("a vector at one index", "use", "v = {tile}.read_vector(0)", "?", "", "store", "reduce", "bulk")
wrong("a vector at a variable index", "use", "v = {tile}.read_vector((0, 0)); i = cuda.threadIdx.x % 2; y[0, 0] = v[i]", "?", "", "store", "reduce", "bulk")
wrong("a scalar written as a vector", "use", "{tile}.write_vector((0, 0), 1.0)", "?", "", "store", "reduce", "bulk")
wrong("a tuple written as a vector", "use", "{tile}.write_vector((0, 0), (1, 2, 3, 4))", "?", "", "store", "reduce", "bulk")
wrong("the address of no index", "use", "r = {tile}.address_of()", "?", "", "store", "reduce", "bulk")
wrong("a view of another size", "use", "r = {tile}.view(TILE2)", "?", "", "store", "reduce", "bulk")
wrong("a view of no tile", "use", "r = {tile}.view(3)", "?", "", "store", "reduce", "bulk")

# pipelines' loops

wrong("a step of zero", "step", "0")
wrong("a float step", "step", "1.0")
wrong("a float stop", "stop", "n / 2")
wrong("a float first", "first", "0.0")
wrong("a string stop", "stop", "'n'")
wrong("None as stop", "stop", "None")
wrong("an array as stop", "stop", "y")
wrong("a boolean first", "first", "True")
wrong("in_flight of all stages", "in_flight", "3")
wrong("in_flight is negative", "in_flight", "-1")
wrong("in_flight is a variable", "in_flight", "n - n")
wrong("in_flight is a float", "in_flight", "0.0")
wrong("a forgotten release", "release", "pass")
wrong("scopes are missing", "scopes", "# no scopes")
wrong("an unknown tile of a stage", "use", "r = stage.z", "?", "", "ring")
wrong("an unknown method of a handle", "start", "PIPE.begin()", "?", "", "ring", "circular", "stores", "outputs")
wrong("an attribute of a pipeline", "start", "r = PIPE.roles", "?", "", "ring")
wrong("a method of the host", "start", "r = PIPE.shared_parts('x')", "?", "", "ring")
wrong("a handle is iterated", "use", "for q in pipe: pass", "?", "", "ring")
wrong("a stage is unpacked", "use", "q, r = stage", "?", "", "ring loop")
wrong("a stage is indexed", "use", "q = stage[0]", "?", "", "ring")
wrong("a stage is called", "use", "q = stage()", "?", "", "ring")
wrong("a stage is written to", "use", "stage.x = 1", "?", "", "ring")
wrong("is_consumer is not called", "is_consumer", "pipe.is_consumer")
wrong("is_consumer with an argument", "is_consumer", "pipe.is_consumer(1)")
wrong("a pipeline starts in a loop", "start", "for q in range(2): PIPE.start()", "?", "", "ring")
wrong("a consume loop in a produce loop", "elected", "for q, s in pipe.consume(0, 1): pass", "?", "", "ring loop", "ring scopes")
wrong("a produce loop of another pipeline", "elected", "for q, s in SPARE.start().produce(0, 1): pass", "?", "", "ring loop")
wrong("an election in a produce loop", "elected", "q = tma.elect_sync()", "?", "", "ring loop")
wrong("syncthreads in a produce loop", "elected", "cuda.syncthreads()", "?", "", "ring loop")
wrong("syncwarp in a produce loop", "elected", "cuda.syncwarp()", "?", "", "ring loop")
wrong("a ballot in a produce loop", "elected", "q = cuda.ballot_sync(-1, True)", "?", "", "ring loop")
wrong("a shuffle in a produce loop", "elected", "q = cuda.shfl_sync(-1, 1, 0)", "?", "", "ring loop")
wrong("a vote in a produce loop", "elected", "q = cuda.all_sync(-1, True)", "?", "", "ring loop")
wrong("a named barrier in a produce loop", "elected", "ROLES.load.sync()", "?", "", "ring loop")

# barriers

wrong("a float count", "count", "1.0")
wrong("no count", "count", "")
wrong("a tuple as count", "count", "(1,)")
wrong("float bytes", "bytes", "128.0")
wrong("a string of bytes", "bytes", "'128'")
wrong("a float parity", "parity", "0.0")
wrong("no parity", "parity", "")
wrong("a group that is a variable", "groups", "cuda.threadIdx.x")
wrong("a group that is a float", "groups", "0.0")
wrong("an unknown operation", "op", "mul")
wrong("a barrier is indexed", "start", "tma.shared_barrier()[0].init(1)")
wrong("no barriers", "start", "b = tma.shared_barriers()")
wrong("barriers of a variable number", "start", "b = tma.shared_barriers(cuda.threadIdx.x)")
wrong("barriers of a float number", "start", "b = tma.shared_barriers(2.0)")
wrong("a shared tile of no tile", "start", "b = tma.shared_tile()")
wrong("a shared tile of a tuple", "start", "b = tma.shared_tile((4, 32))")
wrong("a shared tile of a map", "start", "b = tma.shared_tile({map})")
wrong("elect_sync with a float", "start", "b = tma.elect_sync(1.0)")
wrong("an unknown fence", "start", "tma.fence_proxy_async('shared')")
wrong("a variable fence", "start", "tma.fence_proxy_async(cuda.threadIdx.x)")
wrong("an unknown name of tma", "start", "tma.shared_tiles(TILE)")
wrong("an unknown name of ptx", "start", "ptx.wgmma_fences()")

# orders

wrong("float rows", "rows", "2.0")
wrong("no rows", "rows", "None")
wrong("an unknown coordinate", "use", "r = tile.depth", "?", "", "walk")
wrong("a coordinate is set", "use", "tile.row = 3", "?", "", "walk")
wrong("a cluster of zero", "cluster", "0")
wrong("a major that is none", "major", "'N'")
wrong("a fragment is indexed by a variable", "use", "r = acc[cuda.threadIdx.x]", "?", "", "products")
wrong("a fragment is iterated", "use", "for q in acc: pass", "?", "", "products")
wrong("a fragment of a float", "start", "q = tma.fragment(8.0)", "?", "", "products")
wrong("a fragment of 12 columns", "start", "q = tma.fragment(12)", "?", "", "products")
wrong("a fragment with an array", "use", "q = acc + y", "?", "", "products")
wrong("a fragment as f8", "use", "q = acc.to('f8')", "?", "", "products")
wrong("wgmma without a b", "use", "q = tma.wgmma(acc, here.matrix_descriptor())", "?", "", "products")
wrong("wgmma of tiles", "use", "q = tma.wgmma(acc, here, there)", "?", "", "products")

# Python that no kernel has

wrong("a set", "start", "q = {{1, 2}}")
wrong("a dictionary", "start", "q = {{1: 2}}")
wrong("an f-string", "start", "q = f'{{cuda.threadIdx.x}}'")
wrong("a try", "start", "try: q = 1\n    except ValueError: q = 2")
wrong("a raise", "start", "if cuda.threadIdx.x > 2000: raise ValueError('a' + str(1))")
wrong("a yield", "start", "yield 1")
wrong("a list comprehension", "start", "q = [i * i for i in range(4)]")
wrong("a dict comprehension", "start", "q = {{i: i for i in range(4)}}")
wrong("a generator", "start", "q = sum(i for i in range(4))")
wrong("a list", "start", "q = [1, 2, 3]")
wrong("an empty list that grows", "start", "q = []; q.append(1)")
wrong("a class", "start", "class A: pass")
wrong("a lambda", "start", "q = lambda: 1; q()")
wrong("an inner function", "start", "def q(): return 1\n    q()")
wrong("a with", "start", "with open('x') as q: pass")
wrong("an import", "start", "import math; q = math.sin(1.0)")
wrong("a global statement", "start", "global Q; Q = 1")
wrong("del of a variable", "start", "q = 1; del q")
wrong("an assert", "start", "assert cuda.threadIdx.x < 2000")
wrong("a print of a format", "start", "print('%d' % 1)")
wrong("a call with stars", "start", "q = (1, 2); r = max(*q)")
wrong("a call with double stars", "start", "q = dict(a=1); r = max(**q)")
wrong("a starred assignment", "start", "q, *r = (1, 2, 3)")
wrong("a string method", "start", "q = 'a'.upper()")
wrong("a type that changes", "start", "q = 1\n    if cuda.threadIdx.x > 1: q = (1, 2)")
wrong("None that changes", "start", "q = None\n    if cuda.threadIdx.x > 1: q = 1\n    r = q + 1")
wrong("a bytes object", "start", "q = bytes(3)")
wrong("isinstance of a map", "start", "q = isinstance({map}, int)")
wrong("getattr", "start", "q = getattr(cuda, 'threadIdx')")
wrong("open", "start", "q = open('/dev/null')")
wrong("a NumPy array", "start", "q = np.zeros(4)")
wrong("a NumPy sum", "start", "q = np.sum(y)")
wrong("a matrix product", "start", "q = y @ y")
wrong("an array attribute", "start", "q = y.base")
wrong("a method of an array", "start", "q = y.tolist()")
wrong("an unknown name", "start", "q = unknown_name")
wrong("an unknown name of cuda", "start", "q = cuda.thread_index()")
wrong("cuda.to_device in a kernel", "start", "q = cuda.to_device(y)")
wrong("a plain function", "start", "q = plain(1)")
wrong("a plain function with a tile", "start", "q = plain(TILE)")
wrong("a global list that is written", "start", "WORDS[0] = 1")
wrong("a global list of mixed types", "start", "q = MIXED[0]")
wrong("a global dictionary", "start", "q = TABLE['a']")
wrong("a global set", "start", "q = 1 in SET")
wrong("a global object", "start", "q = OBJECT.value")
wrong("a global array that is written", "start", "GLOBAL[0] = 1")
wrong("time", "start", "q = time.time()")
wrong("a random number", "start", "q = np.random.random()")
wrong("int of a string", "start", "q = int('3')")
wrong("a tuple of a variable index", "start", "q = (1, 2.5)[cuda.threadIdx.x % 2]")
wrong("a shared array of a variable size", "start", "q = cuda.shared.array(cuda.threadIdx.x + 1, types.float32)")
wrong("a shared array without a type", "start", "q = cuda.shared.array(4)")
wrong("a local array of a variable size", "start", "q = cuda.local.array(cuda.threadIdx.x + 1, types.float32)")
wrong("a store to a float index of an array", "start", "y[0.0, 0] = 1")
wrong("three indices of an array", "start", "y[0, 0, 0] = 1")
wrong("a string into an array", "start", "y[0, 0] = 'a'")
wrong("a complex into an array", "start", "y[0, 0] = 1j")
wrong("sorted", "start", "q = sorted((2, 1))")
wrong("a while else", "start", "while cuda.threadIdx.x > 2000: pass\n    else: q = 1")
wrong("a for else", "start", "for q in range(2): pass\n    else: r = 1")
wrong("a match", "start", "match cuda.threadIdx.x:\n        case 0: q = 1\n        case _: q = 2")
wrong("a walrus", "start", "(q := 1)")
wrong("async", "start", "async def q(): pass")
wrong("an ellipsis statement", "start", "...")
wrong("a doc", "start", "'text'")
wrong("recursion", "start", "kernel(y, y, 1)")
wrong("a kernel in a kernel", "start", "kernel[1, 32](y, y, 1)")
wrong("return of a value", "start", "if cuda.threadIdx.x > 2000: return 1")
