"""Mutants of the attention kernel of Blackwell's tensor cores: edits of lines, and what they cause.

A mutant edits the page `kernels/attention/tcgen05_kernel.py`. The simulator reports it by one of
`errors`; an `AssertionError` is that of the comparison with NumPy.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba_tma.kernels.attention import tcgen05_kernel
from tests.mutants.table import broken


@dataclass(frozen=True)
class AttentionMutant:
    """A broken kernel; `errors` are names of exceptions, `text` a part of the first one's."""

    mistake: str
    edits: tuple[tuple[str, str], ...]
    errors: str
    text: str = ""
    stages: int = 4  #: of the K/V ring

    def __repr__(self) -> str:
        return self.mistake

    def build(self) -> Callable[..., Any]:
        """Return the broken `tcgen05_attention_kernel`."""
        name = f"{self.mistake}.py"
        text = broken(inspect.getsource(tcgen05_kernel), self.edits)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile(text, name, "exec"), namespace)
        kernel: Callable[..., Any] = namespace["tcgen05_attention_kernel"]
        return kernel


def mutant(mistake: str, edits: Any, *rest: Any) -> AttentionMutant:
    return AttentionMutant(mistake, tuple(edits), *rest)


WAIT_S = "memory.bars[S_FULL + i].wait(turn & 1)"
WAIT_P = "memory.bars[P_FULL + i].wait(turn & 1)"
WAIT_O_FREE = "memory.bars[O_FREE + i].wait(turn & 1 ^ 1)"
WAIT_O = "memory.bars[O_FULL + i].wait(done & 1)"
WAIT_FACTOR = "memory.bars[FACTOR_FULL + i].wait(turn & 1)"
WAIT_FACTOR_FREE = "memory.bars[FACTOR_FREE + i].wait(turn & 1 ^ 1)"
AFTER, BEFORE = "tcgen05_fence_after_thread_sync()", "tcgen05_fence_before_thread_sync()"
STORE_P = "weights_in(form, scores).store(0, p)  # waits, and fences for the arrival"
P_IS_FULL = "arrive(memory.bars[P_FULL + i])"
MULTIPLY_S = "tcgen05_mma(scores_of(form, memory.tmem, i), q, k, accumulate=False)"
MULTIPLY_P = (
    'tcgen05_mma(output_of(form, memory.tmem, i), p, v.matrix_descriptor("MN"), accumulate=later)'
)
COMMIT_S = "tcgen05_commit(memory.bars[S_FULL + i], 1)"
COMMIT_O0 = "tcgen05_commit(memory.bars[O_FULL + 0], 1)"
COMMIT_O1 = (
    "tcgen05_commit(memory.bars[O_FULL + 1], 1)  # the thread's last commit, which is waited for"
)
LAST_P0 = "start_values(form, memory, 0, kv_full.get_v_tile(), turn, kv_tiles > 1)"
P_OF_TILE = "p = weights_in(form, scores_of(form, memory.tmem, i))"
Q_TILE = "q = SharedTile(form.q_tile, u32(memory.q + i * form.q_nbytes), TileAccesses())"
STEP_V, RELEASE_V = "v_stage = kv_full.step()", "kv_full.release_at(v_stage)"
RESCALE = "rescale(form, output_of(form, memory.tmem, i), factor)  # waits, and fences"
STORE_O = "store_row(output_of(FORM, memory.tmem, i), stage.o, lane, factor)"
ROW = "row = tile.query_block * FORM.block_q + i * LANES"
GIVE = "hand_over(memory, i, lane, top.factor, u32(turn - 1))"

MUTANTS = [
    mutant(
        "softmax does not wait for S",
        [(WAIT_S, "pass")],
        "UninitializedRead EarlyRead",
        "loaded before all of it was written",
    ),
    mutant(
        "softmax waits for the other parity",
        [(WAIT_S, WAIT_S.replace("& 1", "& 1 ^ 1"))],
        "UninitializedRead EarlyRead Deadlock",
        "loaded before all of it was written",
    ),
    mutant(
        "softmax has no fence after its wait",
        [(f"{AFTER}  # of S", "pass")],
        "MissingFence",
        "must execute tcgen05_fence_after_thread_sync()",
    ),
    mutant(
        "softmax arrives before P is stored",
        [(STORE_P, P_IS_FULL), (P_IS_FULL, STORE_P)],
        "EarlyRead",
        "read by tcgen05_mma kind::f16 before the tcgen05_st",
    ),
    mutant(
        "softmax overwrites factors that are not read",
        [(WAIT_FACTOR_FREE, "pass")],
        "DataRace Deadlock UninitializedRead AssertionError",
        "nothing orders the two",
    ),
    mutant(
        "P V does not wait for P",
        [(WAIT_P, "pass")],
        "EarlyRead EarlyOverwrite Deadlock",
        "loaded before the tcgen05_mma",
    ),
    mutant(
        "P V does not wait for O",
        [(WAIT_O_FREE, "pass")],
        "EarlyRead EarlyOverwrite",
        "before the tcgen05_st of warp",
    ),
    mutant(
        "P V has no fence after its waits",
        [(f"{AFTER}  # of P and O", "pass")],
        "MissingFence",
        "must execute tcgen05_fence_after_thread_sync()",
    ),
    mutant("S is not committed", [(COMMIT_S, "pass")], "Deadlock", "mbarrier at"),
    mutant(
        "S is committed before its product",
        [(MULTIPLY_S, COMMIT_S), (COMMIT_S, MULTIPLY_S)],
        "EarlyRead UninitializedRead",
        "loaded before the tcgen05_mma",
    ),
    mutant(
        "O is committed before its product",
        [(LAST_P0, COMMIT_O0), (COMMIT_O0, LAST_P0)],
        "EarlyRead EarlyOverwrite",
        "",
    ),
    mutant(
        "V is released after the last commit that is waited for",
        [("kv_full.release_v()", COMMIT_O1), (COMMIT_O1, "kv_full.release_v()")],
        "UnfinishedCopy",
        "no thread has waited for the arrival of the last tcgen05_commit",
    ),
    mutant(
        "V is released before its products",
        [(STEP_V, f"{STEP_V}\n{RELEASE_V}"), (RELEASE_V, "pass")],
        "EarlyOverwrite EarlyRead",
        "",
        2,
    ),
    mutant(
        "Q is released after its first product",
        [("q0_full.release()", "pass"), ("q1_full.wait()", "q1_full.wait()\nq0_full.release()")],
        "EarlyRead EarlyOverwrite",
        "read by a tcgen05 product or copy before the load",
    ),
    mutant("Q is not released", [("q1_full.release()", "pass")], "Deadlock", "mbarrier at"),
    mutant(
        "O of a first K/V tile is added to",
        [(MULTIPLY_P, MULTIPLY_P.replace("=later", "=True"))],
        "UninitializedRead",
        "adds to an accumulator that was never written",
    ),
    mutant(
        "S of a tile has the other's columns",
        [(MULTIPLY_S, MULTIPLY_S.replace("tmem, i", "tmem, 1 - i"))],
        "EarlyRead UninitializedRead",
        "loaded before the tcgen05_mma",
    ),
    mutant(
        "O of a tile has the other's columns",
        [(MULTIPLY_P, MULTIPLY_P.replace("tmem, i", "tmem, 1 - i"))],
        "EarlyRead UninitializedRead EarlyOverwrite",
        "loaded before the tcgen05_mma",
    ),
    mutant(
        "P V reads the other tile's P",
        [(P_OF_TILE, P_OF_TILE.replace("tmem, i", "tmem, 1 - i"))],
        "EarlyRead UninitializedRead EarlyOverwrite AssertionError",
    ),
    mutant(
        "softmax stores P into other columns than P V reads",
        [(STORE_P, "scores.operand(form.block_k, form.p_dtype, 0).store(0, p)")],
        "AssertionError",
    ),
    mutant(
        "both tiles multiply the first queries",
        [(Q_TILE, Q_TILE.replace(" + i * form.q_nbytes", ""))],
        "AssertionError",
        "Not equal to tolerance",
    ),
    mutant(
        "correction does not wait for factors",
        [(WAIT_FACTOR, "pass")],
        "UninitializedRead EarlyRead",
        "read before all of it was written",
    ),
    mutant(
        "correction does not wait for the last P V",
        [(WAIT_O, "pass")],
        "EarlyOverwrite EarlyRead",
        "before the tcgen05_ld of warp",
    ),
    mutant(
        "correction has no fence after its wait for the last P V",
        [(f"{AFTER}  # of O", "pass")],
        "MissingFence",
        "must execute tcgen05_fence_after_thread_sync()",
    ),
    mutant(
        "correction has no fence before O is rescaled",
        [(f"{AFTER}  # of O, up to the last P V", "pass")],
        "MissingFence",
        "must execute tcgen05_fence_after_thread_sync()",
    ),
    mutant(
        "correction has no fence before O is free",
        [(f"{BEFORE}  # O is loaded", "pass")],
        "MissingFence",
        "must execute tcgen05_fence_before_thread_sync()",
    ),
    mutant(
        "O is free before it is loaded",
        [(STORE_O, "pass"), (ROW, f"{STORE_O}\n{ROW}")],
        "EarlyOverwrite EarlyRead",
        "before the tcgen05_ld of warp",
    ),
    mutant("O is not rescaled", [(RESCALE, "pass")], "AssertionError"),
    mutant(
        "correction gets no factors",
        [(GIVE, GIVE.replace("top.factor", "ONE"))],
        "AssertionError",
    ),
]
