"""Wrong operands of barriers, instructions, schedulers and products."""

from __future__ import annotations

from tests.generated.mistakes import OPERAND, wrong

# barriers

wrong("a float count", "count", "1.0", OPERAND)
wrong("no count", "count", "")
wrong("a tuple as count", "count", "(1,)", OPERAND)
wrong("float bytes", "bytes", "128.0", OPERAND)
wrong("a string of bytes", "bytes", "'128'", OPERAND)
wrong("a float parity", "parity", "0.0")
wrong(
    "a group that is a variable",
    "groups",
    "cuda.threadIdx.x",
    "is part of the instruction and must be a literal, not",
)
wrong("a group that is a float", "groups", "0.0")
wrong("an unknown operation", "op", "mul")
wrong("a barrier is indexed", "start", "tma.shared_barrier()[0].init(1)")
wrong("no barriers", "start", "b = tma.shared_barriers()")
wrong("barriers of a variable number", "start", "b = tma.shared_barriers(cuda.threadIdx.x)")
wrong("barriers of a float number", "start", "b = tma.shared_barriers(2.0)")
wrong("a shared tile of no tile", "start", "b = tma.shared_tile()")
wrong("a shared tile of a tuple", "start", "b = tma.shared_tile((4, 32))")
wrong("a shared tile of a map", "start", "b = tma.shared_tile({map})")
wrong("elect_sync with a float", "start", "b = tma.elect_sync(1.0)", OPERAND)
wrong("an unknown fence", "start", "tma.fence_proxy_async('shared')", "is part of the instruction")
wrong(
    "a variable fence",
    "start",
    "tma.fence_proxy_async(cuda.threadIdx.x)",
    "is part of the instruction",
)
wrong("an unknown name of tma", "start", "tma.shared_tiles(TILE)", "attribute 'shared_tiles'")
wrong("an unknown name of ptx", "start", "ptx.wgmma_fences()", "attribute 'wgmma_fences'")

# orders

wrong("float rows", "rows", "2.0", "is no integer; divide with // to get one")
wrong("no rows", "rows", "None", "is no integer; divide with // to get one")
wrong("an unknown coordinate", "use", "r = tile.depth", "attribute 'depth'", of=("walk",))
wrong("a coordinate is set", "use", "tile.row = 3", "", of=("walk",))
wrong("a cluster of zero", "cluster", "0", "there is at least 1 block along each axis")
wrong("a major that is none", "major", "'N'", 'use "K" for a tile with K innermost')
wrong(
    "a fragment is indexed by a variable", "use", "r = acc[cuda.threadIdx.x]", "", of=("products",)
)
wrong("a fragment is iterated", "use", "for q in acc: pass", "", of=("products",))
wrong("a fragment of a float", "start", "q = tma.fragment(8.0)", "", of=("products",))
wrong(
    "a fragment of 12 columns",
    "start",
    "q = tma.fragment(12)",
    "a fragment of f32 has 8 to 256 columns",
    of=("products",),
)
wrong("a fragment with an array", "use", "q = acc + y", "", of=("products",))
wrong(
    "a fragment as f8",
    "use",
    "q = acc.to('f8')",
    "fragments are converted to f32",
    of=("products",),
)
wrong(
    "wgmma without a b", "use", "q = tma.wgmma(acc, here.matrix_descriptor())", "", of=("products",)
)
wrong("wgmma of tiles", "use", "q = tma.wgmma(acc, here, there)", "", of=("products",))

# other maps

wrong("a float offset", "offsets", "(0.0, 0)", "takes a tuple of 1 to 3 integers")
wrong("one offset", "offsets", "(0,)")
wrong("an offset past 16 bits", "offsets", "(70000, 0)")
wrong("a float number of a map", "which", "0.0", "is indexed with an integer, not")
