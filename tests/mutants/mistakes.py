"""The entries of the gallery: what goes wrong, what one sees, why, and what to do."""

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
    "The kernel does not end, at the first tile.",
    "A stage is full when the bytes of all its tiles have come, and those of one never do.",
    "Load every tile of the stage exactly once, with `stage.barrier`.",
)
FORGOTTEN_RELEASE = Mistake(
    "A stage is never handed back",
    HANGS,
    "The kernel does not compile; without that check it would stop after as many tiles as there "
    "are stages.",
    "The producer waits for the stage to be empty before it fills it again.",
    "Call `release()` after the last use of each stage, or iterate over `pipe.consume(...)`.",
)
SOMETIMES_RELEASED = Mistake(
    "A stage is handed back under a condition",
    HANGS,
    "The kernel does not compile; without that check it would stop after a few tiles, and small "
    "inputs would work.",
    "Where the condition is false the stage stays held, and the producer waits for it.",
    "Hand back every stage that was waited for, whatever was done with it.",
)
ONE_CONSUMER_KEEPS = Mistake(
    "One consumer does not hand back",
    HANGS,
    "The kernel stops after as many tiles as there are stages.",
    "A stage is empty when every warp of every consumer has released it.",
    "Let each consumer wait for and release every stage, also those that it does nothing with.",
)
TOO_FEW_TILES = Mistake(
    "The producer fills fewer stages than the consumers wait for",
    HANGS,
    "All tiles but the last are right, and the kernel does not end.",
    "The two loops count differently.",
    "Give both sides the same range, computed once.",
)
NOT_COMMITTED = Mistake(
    "The last stage is not committed",
    HANGS,
    "All tiles but the last are right, and the kernel does not end.",
    "Threads that fill a stage say so themselves. `acquire` commits the stage before; after the "
    "last one nobody does.",
    "Call `commit()` after each stage, or `close()` at the end.",
)
WRONG_COUNT = Mistake(
    "A barrier counts more arrivals than come",
    HANGS,
    "The kernel does not end.",
    "A phase completes after as many arrivals as `init` said, and some of those threads never "
    "arrive.",
    "Count the threads (or warps) that arrive in each phase, or use a pipeline, which does.",
)
TURN_KEPT = Mistake(
    "A turn is never ended",
    HANGS,
    "The kernel stops at the second turn.",
    "The next role waits until the one before it has ended its turn.",
    "Call `arrive()` when the stage's work is done, or take the turn as a scope.",
)
PHASE_TO_COME = Mistake(
    "A wait names the phase to come",
    HANGS,
    "The kernel does not end, at the first tile.",
    "A producer's first wait is for a phase that nobody completes: on a fresh barrier a wait for "
    "parity 1 passes, one for parity 0 does not.",
    "Start the producer's phase at 1 and the consumer's at 0, as `PipelineState` is for.",
)
REGISTERS = Mistake(
    "More registers are asked for than a block has",
    HANGS,
    "Nothing runs: `Roles` is refused when it is made. By hand, the warpgroups that ask wait for "
    "ever, and no bounded wait helps.",
    "A launch shares 65,536 registers out evenly; `setmaxnreg.inc` waits until others have given "
    "back what it asks for.",
    "Ask for less, let another role keep fewer, or leave `registers` out: then they are computed.",
)
NOTHING_GIVEN_BACK = Mistake(
    "Registers are asked for that nobody gives back",
    HANGS,
    "The kernel does not compile; otherwise it would not end, and no bounded wait helps.",
    "`setmaxnreg.inc` waits until other warpgroups of the block have given back what it asks for.",
    "Let the warpgroups that need few registers execute `setmaxnreg_dec`, or use `Roles`.",
)
MISSING_WARP = Mistake(
    "Fewer threads are launched than the roles have",
    HANGS,
    "The launch is refused; otherwise the kernel would wait for warps that are not there.",
    "Barriers count the arrivals of all warps of the roles.",
    "Launch blocks of `ROLES.threads`.",
)
LEFT_ALONE = Mistake(
    "Some warps leave the loop before the others",
    HANGS,
    "The kernel does not end.",
    "All warps of the group hand each stage back, by an arrival or by synchronising.",
    "Let a `break` be taken by all threads, or by none.",
)
COLUMNS_KEPT = Mistake(
    "Tensor memory is not freed",
    HANGS,
    "Later blocks on the same SM wait for columns, for ever.",
    "Columns stay allocated until they are freed, also when the block has ended.",
    "Call `pipe.close()` in all threads of both roles.",
)
LOADED_TWICE = Mistake(
    "A tile is loaded twice",
    HANGS,
    "The kernel does not end, or its values are wrong: that depends on when the bytes come.",
    "The stage expects each of its tiles once; more bytes than expected leave its barrier with a "
    "count that never comes to zero, or complete the next phase early.",
    "Load every tile of the stage exactly once, with `stage.barrier`.",
)

# ---------------------------------------------------------------------------- wrong values

NO_WAIT = Mistake(
    "A stage is used before it is full",
    VALUES,
    "Values are those of an earlier tile, or of what lay in shared memory; often all is right.",
    "Nothing orders the reads after the copies that fill the stage.",
    "Wait for the stage: `wait()`, `acquire()`, or `wait_if_needed` with what `try_wait` returned.",
)
NO_WAIT_FOR_EMPTY = Mistake(
    "A stage is filled before it is empty",
    VALUES,
    "Values are those of a later tile, for some elements; small inputs are right.",
    "Nothing orders the copies into the stage after the reads of the tile before.",
    "Acquire the stage: `acquire()`, or `acquire_if_needed` with what `try_acquire` returned.",
)
NO_WAIT_FOR_READ = Mistake(
    "A stage is written while a store reads it",
    VALUES,
    "Some tiles of the output hold what was written for a later one.",
    "A store reads shared memory long after it was issued, and only the thread that issued it can "
    "wait for that.",
    "`StorePipeline` waits by itself. By hand: `cp_async_bulk_wait_group_read`, in the thread that "
    "stored, then a barrier.",
)
NO_FENCE = Mistake(
    "The copy engine is not told of a write",
    VALUES,
    "Values are old for some elements, rarely, and differently on the next run.",
    "Threads write through one path to shared memory and the copy engine uses another; a barrier "
    "alone does not order the two.",
    "Leave `written=False` out, and write through the tile: the library then fences. By hand: "
    "`fence_proxy_async()` in each thread that wrote, before it arrives or synchronises.",
)
UNSEEN_WRITE = Mistake(
    "A tile is written behind the library's back",
    VALUES,
    "Values are old for some elements, rarely, and differently on the next run.",
    "Reads and writes through the tile are noted, and fenced when the stage is committed or "
    "released. Those through an address are not.",
    "Read and write through the tile, or call `fence_proxy_async()` after the last access.",
)
PHASE_BEFORE = Mistake(
    "A wait names the phase before",
    VALUES,
    "Values are those of an earlier tile, or of what lay in shared memory; often all is right.",
    "The wait passes at once: the phase of that parity is over, or counts as over on a fresh "
    "barrier.",
    "Flip the parity each time round the ring, and only then. A pipeline does; `skip` is for "
    "`alternate=True` and for stages that others work on.",
)
EARLY_RELEASE = Mistake(
    "A stage is used after it was handed back",
    VALUES,
    "Values are those of a later tile, for some elements, and rarely.",
    "The producer fills the stage while it is still read.",
    "Release after the last use; `in_flight` and `release_pending` are for work that reads later.",
)
NO_READ_SYNC = Mistake(
    "A stage is loaded while others still read it",
    VALUES,
    "Values are those of a later tile, for some elements, and rarely.",
    "One thread loads for all, so it has to know that all have read the stage.",
    "The loop over `tiles` synchronises by itself; by hand: `syncthreads()` before the next load.",
)
NO_TENSOR_FENCE = Mistake(
    "Tensor memory is used across a barrier without its fences",
    VALUES,
    "Values are those of an earlier tile, now and then.",
    "Accesses to tensor memory are ordered by a barrier only with a fence before and one after it.",
    "The pipeline fences by itself; by hand: `tcgen05_fence_before_thread_sync()`, the barrier, "
    "`tcgen05_fence_after_thread_sync()`.",
)
EARLY_COMMIT = Mistake(
    "A stage is written after it was committed",
    VALUES,
    "Values are old, for some elements.",
    "The consumers were told that the stage is filled before it was.",
    "Commit after the last write.",
)
EARLY_TURN = Mistake(
    "A turn is ended before its work",
    VALUES,
    "What the roles share is mixed up, now and then.",
    "The next role works at the stage at the same time.",
    "Call `arrive()` when the stage's work is done.",
)
PARTLY_FILLED = Mistake(
    "A stage is filled in part",
    VALUES,
    "Some elements are those of an earlier tile, always the same ones.",
    "Nobody counts the bytes that threads copy or write: the stage counts as full when all threads "
    "have committed.",
    "Let the threads cover the whole tile: a loop from `thread()` in steps of `members`.",
)
OTHER_BYTES = Mistake(
    "Other bytes are expected than the tiles have",
    VALUES,
    "The kernel does not compile; by hand it would hang, or read too early.",
    "The bytes of a stage follow from its tiles.",
    "Leave `expect_bytes` out, or correct the number.",
)
SHORT_EXPECTATION = Mistake(
    "Fewer bytes are expected than are copied",
    VALUES,
    "The barrier completes before all bytes have come, or a phase too late; then it hangs.",
    "`arrive_expect_tx` was told another number than the copies bring.",
    "Expect the sum of the tiles' `nbytes`, or use a pipeline, which derives it.",
)
OTHER_TILE = Mistake(
    "A map copies another tile than it is given",
    VALUES,
    "The kernel does not compile; otherwise bytes would land in the next tile.",
    "A tensor map copies one size of tile, the one that it was made for.",
    "Give the pipeline and the map the same `Tile`.",
)
NO_INIT_SYNC = Mistake(
    "Barriers are used before they are initialised",
    VALUES,
    "It works nearly always; now and then it hangs or reads too early.",
    "Other threads wait and arrive while one still initialises.",
    "`start()` synchronises; `sync=False` is for all but the last of several. By hand: "
    "`fence_mbarrier_init()`, then `syncthreads()`, in a cluster `cluster_sync()`.",
)
LOADS_OUTSTANDING = Mistake(
    "The block ends while copies into it are under way",
    VALUES,
    "Nothing here; another block, which gets the shared memory next, has wrong values.",
    "Tiles were loaded that nobody waits for.",
    "Wait for every load before the end, or do not issue it: the same range on both sides.",
)
STORES_OUTSTANDING = Mistake(
    "The block ends while stores read from it",
    VALUES,
    "The last tiles of the output are wrong, now and then.",
    "The shared memory goes to another block before the store has read it.",
    "Call `tail()`, or `close()`; by hand `cp_async_bulk_wait_group_read(0)`.",
)
NO_TURN = Mistake(
    "A role works without its turn",
    VALUES,
    "What the roles share is mixed up, now and then.",
    "Both roles are at the stage at the same time.",
    "Call `wait()` before the stage's work, or take the turn as a scope.",
)

# -------------------------------------------------------------------- context, slow kernels

PEERS_OUTSTANDING = Mistake(
    "A block of a cluster ends before its peers",
    CONTEXT,
    "The launch fails with an error of the driver, or nothing happens: that depends on which block "
    "ends first. On an H200 a thousand launches of this kernel ended with right values, which "
    "promises nothing.",
    "Blocks arrive on each other's barriers, and those of a block that has ended are gone.",
    "Call `pipe.close()` in all threads at the end of the kernel.",
)
OFF_16_BYTES = Mistake(
    "A coordinate is off 16 bytes",
    CONTEXT,
    "The launch fails with an illegal instruction, and every launch after it in the process.",
    "TMA moves whole 16-byte units along the innermost axis.",
    "Let the innermost coordinate be a multiple of 16 bytes; pad the tensor where that cannot be.",
)
NO_BOUNDS = Mistake(
    "Registers are moved without launch bounds",
    SLOW,
    "The kernel does not compile; otherwise it would run with the registers of its launch, and "
    "spill.",
    "The assembler drops `setmaxnreg` where it cannot know how many registers a launch gives.",
    "Give `@cuda.jit(launch_bounds=ROLES.launch_bounds)`; `Role.set_registers` in the kernel "
    "itself does so.",
)
