"""Mutants of the attention kernel of Blackwell's tensor cores: edits of lines, and what they cause.

A mutant edits the page `kernels/attention/tcgen05_kernel.py`. The simulator reports it by one of
`errors`, or, of "wrong values", the result differs from NumPy's.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba_tma.kernels.attention import tcgen05_kernel
from tests.mutants.table import broken

VALUES = "AssertionError"  #: of the comparison with NumPy


@dataclass(frozen=True)
class AttentionMutant:
    """A broken kernel; `errors` are names of exceptions, `text` a part of the first one's."""

    mistake: str
    edits: tuple[tuple[str, str], ...]
    errors: str
    text: str = ""

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


def mutant(mistake: str, edits: Any, errors: str, text: str = "") -> AttentionMutant:
    return AttentionMutant(mistake, tuple(edits), errors, text)


WAIT_S = "bars[S_FULL + i].wait(turn & 1)"
WAIT_P = "bars[P_FULL + i].wait(turn & 1)"
WAIT_O_FREE = "bars[O_FREE + i].wait(turn & 1 ^ 1)"
WAIT_O = "bars[O_FULL + i].wait(done & 1)"
WAIT_FACTOR = "bars[FACTOR_FULL + i].wait(turn & 1)"
WAIT_FACTOR_FREE = "bars[FACTOR_FREE + i].wait(turn & 1 ^ 1)"
AFTER, BEFORE = "tcgen05_fence_after_thread_sync()", "tcgen05_fence_before_thread_sync()"
STORE_P = "weights_in(form, scores).store(0, p)  # waits, and fences for the arrival"
P_IS_FULL = "arrive(bars[P_FULL + i])"
MULTIPLY_S = "tcgen05_mma(scores, q_tile, k, accumulate=False)"
MULTIPLY_P = 'tcgen05_mma(o, weights, v.matrix_descriptor("MN"), accumulate=accumulate)'
COMMIT_S = "tcgen05_commit(bars[S_FULL + i], 1)"
COMMIT_O0 = "tcgen05_commit(bars[O_FULL + 0], 1)"
COMMIT_O1 = "tcgen05_commit(bars[O_FULL + 1], 1)  # the thread's last commit, which is waited for"
LAST_P0 = "start_values(form, bars, 0, tmem, kv_full.get_v_tile(), turn, kv_tiles > 1)"
S_COLUMNS = 'scores = tmem.tile(LANES, form.block_k, "f32", i * form.block_k)'
O_COLUMNS = 'o = tmem.tile(LANES, form.head_dim, "f32", form.first_o + i * form.head_dim)'
Q_TILE = "q_tile = SharedTile(form.q_tile, u32(q + i * form.q_nbytes), TileAccesses())"
STEP_V, RELEASE_V = "v_stage = kv_full.step()", "kv_full.release_at(v_stage)"
RESCALE = "rescale(form, o, factor)  # waits, and fences for the arrival"
STORE_O = "store_row(o, stage.o, lane, factor)"
ROW = "row = tile.query_block * FORM.block_q + i * LANES"
GIVE = "hand_over(bars, factors, i, lane, top.factor, u32(turn - 1))"

MUTANTS = [
    mutant("softmax does not wait for S", [(WAIT_S, "pass")], "X"),
    mutant("softmax waits for the other parity", [(WAIT_S, WAIT_S.replace("& 1", "& 1 ^ 1"))], "X"),
    mutant("softmax has no fence after its wait", [(f"{AFTER}  # of S", "pass")], "X"),
    mutant("softmax arrives before P is stored", [(STORE_P, P_IS_FULL), (P_IS_FULL, STORE_P)], "X"),
    mutant("softmax overwrites factors that are not read", [(WAIT_FACTOR_FREE, "pass")], "X"),
    mutant("P V does not wait for P", [(WAIT_P, "pass")], "X"),
    mutant("P V does not wait for O", [(WAIT_O_FREE, "pass")], "X"),
    mutant("P V has no fence after its waits", [(f"{AFTER}  # of P and O", "pass")], "X"),
    mutant("S is not committed", [(COMMIT_S, "pass")], "X"),
    mutant(
        "S is committed before its product", [(MULTIPLY_S, COMMIT_S), (COMMIT_S, MULTIPLY_S)], "X"
    ),
    mutant("O is committed before its product", [(LAST_P0, COMMIT_O0), (COMMIT_O0, LAST_P0)], "X"),
    mutant(
        "V is released after the last commit that is waited for",
        [("kv_full.release_v()", COMMIT_O1), (COMMIT_O1, "kv_full.release_v()")],
        "X",
    ),
    mutant(
        "V is released before its products",
        [(STEP_V, f"{STEP_V}\n{RELEASE_V}"), (RELEASE_V, "pass")],
        "X",
    ),
    mutant(
        "Q is released after its first product",
        [("q0_full.release()", "pass"), ("q1_full.wait()", "q1_full.wait()\nq0_full.release()")],
        "X",
    ),
    mutant("Q is not released", [("q1_full.release()", "pass")], "X"),
    mutant(
        "O of a first K/V tile is added to",
        [(MULTIPLY_P, MULTIPLY_P.replace("=acc", "=True or acc"))],
        "X",
    ),
    mutant(
        "S of a tile has the other's columns",
        [(S_COLUMNS, S_COLUMNS.replace("i *", "(1 - i) *"))],
        "X",
    ),
    mutant(
        "O of a tile has the other's columns",
        [(O_COLUMNS, O_COLUMNS.replace("+ i *", "+ (1 - i) *"))],
        "X",
    ),
    mutant(
        "softmax stores P into other columns than P V reads",
        [(STORE_P, "scores.operand(form.block_k, form.p_dtype, 0).store(0, p)")],
        "X",
    ),
    mutant(
        "both tiles multiply the first queries",
        [(Q_TILE, Q_TILE.replace("q + i * form.q_nbytes", "q"))],
        "X",
    ),
    mutant("correction does not wait for factors", [(WAIT_FACTOR, "pass")], "X"),
    mutant("correction does not wait for the last P V", [(WAIT_O, "pass")], "X"),
    mutant(
        "correction has no fence after its wait for the last P V",
        [(f"{AFTER}  # of O", "pass")],
        "X",
    ),
    mutant(
        "correction has no fence before O is rescaled",
        [(f"{AFTER}  # of O, up to the last P V", "pass")],
        "X",
    ),
    mutant("correction has no fence before O is free", [(f"{BEFORE}  # O is loaded", "pass")], "X"),
    mutant("O is free before it is loaded", [(STORE_O, "pass"), (ROW, f"{STORE_O}\n{ROW}")], "X"),
    mutant("O is not rescaled", [(RESCALE, "pass")], "X"),
    mutant(
        "factors are those of the K/V tile before", [(GIVE, GIVE.replace("top.factor", "ONE"))], "X"
    ),
]
