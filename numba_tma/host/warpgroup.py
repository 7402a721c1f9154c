"""Sizes of what a warpgroup multiplies by one instruction of wgmma, alone: plans need no more."""

ROWS = 64  #: of a fragment, of the part of A that one instruction reads, and of its result
THREADS = 128  #: of a warpgroup
ALL_LANES = 0xFFFFFFFF  #: the mask of a whole warp
MAX_COLUMNS = 256
STEP_BYTES = 32  #: bytes of each row, along K, that one dense instruction reads
