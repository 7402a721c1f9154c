"""The entries of the gallery: mistakes, with their symptom, cause and repair."""

from tests.mutants.table import Mistake

HANGS = "It hangs"
VALUES = "Values are wrong, now and then or always"
CONTEXT = "The context is lost"
SLOW = "It is slow"
SYMPTOMS = (HANGS, VALUES, CONTEXT, SLOW)

# ---------------------------------------------------------------------------------- hangs

MISSING_LOAD = Mistake(
    "A load is left out",
    HANGS,
    "The kernel hangs at the first tile.",
    "A stage is full when the bytes of all its tiles have landed. The bytes of one tile never do.",
    "Load every tile of the stage exactly once, with `stage.barrier`.",
)
FORGOTTEN_RELEASE = Mistake(
    "A stage is never released",
    HANGS,
    "The kernel does not compile. Without this check it would hang after as many tiles as there "
    "are stages.",
    "The producer waits for the stage to be empty before it fills it again.",
    "Call `release()` after the last use of each stage, or iterate over `pipe.consume(...)`.",
)
SOMETIMES_RELEASED = Mistake(
    "A stage is released under a condition",
    HANGS,
    "The kernel does not compile. Without this check it would hang after a few tiles, and small "
    "inputs would work.",
    "If the condition is false, the stage stays held, and the producer waits for it.",
    "Release every stage that was acquired, whether it was used or not.",
)
ONE_CONSUMER_KEEPS = Mistake(
    "One consumer does not release",
    HANGS,
    "The kernel hangs after as many tiles as there are stages.",
    "A stage is empty when every warp of every consumer has released it.",
    "Let each consumer acquire and release every stage, including the stages that it does not use.",
)
TOO_FEW_TILES = Mistake(
    "The producer fills fewer stages than the consumers wait for",
    HANGS,
    "All tiles but the last are right, and the kernel hangs.",
    "The two loops have different ranges.",
    "Give both sides the same range, computed once.",
)
NOT_COMMITTED = Mistake(
    "The last stage is not committed",
    HANGS,
    "All tiles but the last are right, and the kernel hangs.",
    "Threads that fill a stage must commit it. `acquire` commits the previous stage, and no "
    "`acquire` follows the last one.",
    "Call `commit()` after each stage, or `close()` at the end.",
)
WRONG_COUNT = Mistake(
    "A barrier expects more arrivals than are made",
    HANGS,
    "The kernel hangs.",
    "A phase completes after the number of arrivals given to `init`, and fewer threads arrive.",
    "Count the threads (or warps) that arrive in each phase, or use a pipeline, which counts them.",
)
LEFT_TILES = Mistake(
    "A role leaves the loop over launch control's tiles",
    HANGS,
    "The kernel does not compile. Without this check it would hang, or tiles would be missing.",
    "All threads read an answer before its slot is used again, and no other block computes the "
    "tile of a block that was taken.",
    "Walk `work.tiles(schedule)` to its end in every role; `continue` skips the work of a tile.",
)
TURN_KEPT = Mistake(
    "A turn is never ended",
    HANGS,
    "The kernel hangs at the second turn.",
    "The next role waits until the previous role has ended its turn.",
    "Call `arrive()` when the stage's work is done, or take the turn as a scope.",
)
PHASE_TO_COME = Mistake(
    "A wait names the next phase",
    HANGS,
    "The kernel hangs at the first tile.",
    "The producer's first wait names a phase that no thread completes. On a fresh barrier, a wait "
    "for parity 1 passes, and a wait for parity 0 does not.",
    "Start the producer's phase at 1 and the consumer's at 0, as `PipelineState` does.",
)
REGISTERS = Mistake(
    "More registers are requested than a block has",
    HANGS,
    "`Roles` raises an error when it is made. By hand, the requesting warpgroups wait for ever, "
    "and bounded waits do not report them.",
    "A launch divides 65,536 registers evenly. `setmaxnreg.inc` waits until other warpgroups have "
    "released enough registers.",
    "Request fewer, let another role keep fewer, or leave `registers` out: then they are computed.",
)
NOTHING_GIVEN_BACK = Mistake(
    "Registers are requested that no warpgroup releases",
    HANGS,
    "The kernel does not compile. Without this check it would hang, and bounded waits would not "
    "report it.",
    "`setmaxnreg.inc` waits until other warpgroups of the block have released enough registers.",
    "Let the warpgroups that need few registers execute `setmaxnreg_dec`, or use `Roles`.",
)
MISSING_WARP = Mistake(
    "Fewer threads are launched than the roles have",
    HANGS,
    "The launch is an error. Without this check the kernel would wait for warps that do not exist.",
    "Barriers count the arrivals of all warps of the roles.",
    "Launch blocks of `ROLES.threads`.",
)
LEFT_ALONE = Mistake(
    "Some warps leave the loop before the others",
    HANGS,
    "The kernel hangs.",
    "All warps of the group release each stage, by an arrival or by synchronising.",
    "Let all threads take a `break`, or none.",
)
COLUMNS_KEPT = Mistake(
    "Tensor memory is not freed",
    HANGS,
    "Later blocks on the same SM wait for columns for ever.",
    "Columns stay allocated until they are freed, even after the block's end.",
    "Call `pipe.close()` in all threads of both roles.",
)
LOADED_TWICE = Mistake(
    "A tile is loaded twice",
    HANGS,
    "The kernel hangs or its values are wrong, depending on when the bytes land.",
    "The stage expects each of its tiles once. Surplus bytes leave its barrier with a tx-count "
    "that never reaches zero, or complete the next phase early.",
    "Load every tile of the stage exactly once, with `stage.barrier`.",
)

# ---------------------------------------------------------------------------- wrong values

NO_WAIT = Mistake(
    "A stage is used before it is full",
    VALUES,
    "Values are those of an earlier tile, or stale shared memory. Often all are right.",
    "Nothing orders the reads after the copies that fill the stage.",
    "Wait for the stage: `wait()`, `acquire()`, or `wait_if_needed` with the result of `try_wait`.",
)
NO_WAIT_FOR_EMPTY = Mistake(
    "A stage is filled before it is empty",
    VALUES,
    "Some elements have values of a later tile. Small inputs are right.",
    "Nothing orders the copies into the stage after the reads of the previous tile.",
    "Acquire the stage: `acquire()`, or `acquire_if_needed` with the result of `try_acquire`.",
)
NO_WAIT_FOR_READ = Mistake(
    "A stage is written while a store reads it",
    VALUES,
    "Some tiles of the output have the values of a later tile.",
    "A store reads shared memory long after its issue, and only the issuing thread can wait for "
    "the read.",
    "`StorePipeline` waits by itself. By hand: `cp_async_bulk_wait_group_read` in the issuing "
    "thread, then a barrier.",
)
NO_FENCE = Mistake(
    "A write is not fenced for the copy engine",
    VALUES,
    "Some elements are stale, rarely, and other elements on the next run.",
    "Threads write shared memory through the generic proxy, and the copy engine reads through the "
    "async proxy. A barrier alone does not order the two.",
    "Leave `written=False` out, and write through the tile: the library then fences. By hand: "
    "`fence_proxy_async()` in each thread that wrote, before it arrives or synchronises.",
)
UNSEEN_WRITE = Mistake(
    "A tile is written by address",
    VALUES,
    "Some elements are stale, rarely, and other elements on the next run.",
    "Reads and writes through the tile are recorded, and fenced when the stage is committed or "
    "released. Reads and writes by address are not.",
    "Read and write through the tile, or call `fence_proxy_async()` after the last access.",
)
PHASE_BEFORE = Mistake(
    "A wait names the previous phase",
    VALUES,
    "Values are those of an earlier tile, or stale shared memory. Often all are right.",
    "The wait passes at once: the phase of that parity has completed, or counts as completed on a "
    "fresh barrier.",
    "Flip the parity once per pass over the ring. A pipeline does; `skip` is for "
    "`alternate=True` and for stages of other consumers.",
)
EARLY_RELEASE = Mistake(
    "A stage is used after its release",
    VALUES,
    "Some elements have values of a later tile, rarely.",
    "The producer fills the stage while it is still read.",
    "Release after the last use. For asynchronous reads, use `in_flight` and `release_pending`.",
)
NO_READ_SYNC = Mistake(
    "A stage is loaded while others still read it",
    VALUES,
    "Some elements have values of a later tile, rarely.",
    "One thread loads for all, and nothing orders the reads of the other threads before its load.",
    "The loop over `tiles` synchronises by itself. By hand: `syncthreads()` before the next load.",
)
NO_TENSOR_FENCE = Mistake(
    "Tensor memory is used across a barrier without its fences",
    VALUES,
    "Values are those of an earlier tile, occasionally.",
    "A barrier orders accesses to tensor memory only with a fence before it and one after it.",
    "The pipeline fences by itself. By hand: `tcgen05_fence_before_thread_sync()`, the barrier, "
    "`tcgen05_fence_after_thread_sync()`.",
)
EARLY_COMMIT = Mistake(
    "A stage is written after it was committed",
    VALUES,
    "Some elements are stale.",
    "The commit completes the stage's full barrier before the last write.",
    "Commit after the last write.",
)
EARLY_TURN = Mistake(
    "A turn is ended before its work",
    VALUES,
    "Data shared by the roles is corrupted, occasionally.",
    "The next role works at the stage at the same time.",
    "Call `arrive()` when the stage's work is done.",
)
PARTLY_FILLED = Mistake(
    "A stage is filled in part",
    VALUES,
    "Some elements are those of an earlier tile, always the same elements.",
    "Bytes that threads copy or write are not counted: the stage is full when all threads have "
    "committed.",
    "Let the threads cover the whole tile: a loop from `thread()` in steps of `members`.",
)
OTHER_BYTES = Mistake(
    "The expected bytes are not the tiles' bytes",
    VALUES,
    "The kernel does not compile. By hand it would hang, or read too early.",
    "The bytes of a stage follow from its tiles.",
    "Leave `expect_bytes` out, or correct the number.",
)
SHORT_EXPECTATION = Mistake(
    "Fewer bytes are expected than are copied",
    VALUES,
    "The barrier completes before all bytes have landed, or a phase too late; then it hangs.",
    "`arrive_expect_tx` was given fewer bytes than are copied.",
    "Expect the sum of the tiles' `nbytes`, or use a pipeline, which derives it.",
)
OTHER_TILE = Mistake(
    "A map's tile is not the destination's",
    VALUES,
    "The kernel does not compile. Without this check, bytes would land in the next tile.",
    "A tensor map copies tiles of one size, which is fixed when the map is made.",
    "Give the pipeline and the map the same `Tile`.",
)
NO_INIT_SYNC = Mistake(
    "Barriers are used before they are initialised",
    VALUES,
    "The kernel nearly always works. Occasionally it hangs or reads too early.",
    "Other threads wait and arrive while one thread still initialises.",
    "`start()` synchronises; `sync=False` is for all but the last of several starts. By hand: "
    "`fence_mbarrier_init()`, then `syncthreads()`, in a cluster `cluster_sync()`.",
)
LOADS_OUTSTANDING = Mistake(
    "The block ends while copies into it are in flight",
    VALUES,
    "This block is right. The next block in the same shared memory has wrong values.",
    "No thread waits for the last loads.",
    "Wait for every load before the end, or do not issue it: the same range on both sides.",
)
STORES_OUTSTANDING = Mistake(
    "The block ends while stores read from it",
    VALUES,
    "The last tiles of the output are wrong, occasionally.",
    "The shared memory is given to another block before the store has read it.",
    "Call `tail()`, or `close()`. By hand: `cp_async_bulk_wait_group_read(0)`.",
)
NO_TURN = Mistake(
    "A role works without its turn",
    VALUES,
    "Data shared by the roles is corrupted, occasionally.",
    "Both roles are at the stage at the same time.",
    "Call `wait()` before the stage's work, or take the turn as a scope.",
)

# -------------------------------------------------------------------- context, slow kernels

PEERS_OUTSTANDING = Mistake(
    "A block of a cluster ends before its peers",
    CONTEXT,
    "The launch fails with an error of the driver, or works, depending on which block ends first. "
    "A thousand launches of this kernel on an H200 gave right values, which is no guarantee.",
    "Blocks arrive on each other's barriers, and the barriers of an exited block no longer exist.",
    "Call `pipe.close()` in all threads at the end of the kernel.",
)
OFF_16_BYTES = Mistake(
    "A coordinate is not a multiple of 16 bytes",
    CONTEXT,
    "The launch fails with an illegal instruction, and every launch after it in the process.",
    "TMA moves whole 16-byte units along the innermost axis.",
    "Make the innermost coordinate a multiple of 16 bytes, if necessary by padding the tensor.",
)
NO_BOUNDS = Mistake(
    "Registers are moved without launch bounds",
    SLOW,
    "The kernel does not compile. Without this check it would run with the registers of its "
    "launch, and spill.",
    "The assembler drops `setmaxnreg` if it does not know the registers per thread of a launch.",
    "Give `@cuda.jit(launch_bounds=ROLES.launch_bounds)`. `Role.set_registers` in the kernel "
    "itself sets the bounds.",
)
