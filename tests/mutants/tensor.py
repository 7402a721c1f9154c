"""Mutants of the tcgen05 matmuls: edits of lines, the errors, and a part of the first's text."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kernels import scaled_matmul, tensor_matmul
from tests.mutants.table import broken


@dataclass(frozen=True)
class TensorMutant:
    """A broken matmul of `tensor_matmul` or `scaled_matmul`; the simulator raises an error."""

    program: Callable[..., Any]
    mistake: str
    edits: tuple[tuple[str, str], ...]
    errors: str
    text: str

    def __repr__(self) -> str:
        return f"{self.program.__name__}: {self.mistake}"

    def build(self) -> Callable[..., Any]:
        """Return the broken kernel, with source lines that call sites show."""
        name = f"{self!r}.py"
        text = broken(inspect.getsource(self.program), self.edits)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace = dict(vars(sys.modules[self.program.__module__]))
        exec(compile(text, name, "exec"), namespace)
        kernel: Callable[..., Any] = namespace[self.program.__name__]
        return kernel


WAIT_FULL = "bars[FULL + s].wait(i // STAGES & 1)"
RELEASE = "ptx.tcgen05_commit(bars[EMPTY + s], 1)"
WAIT_ACC_EMPTY = "bars[ACC_EMPTY].wait(tile & 1 ^ 1)"
WAIT_ACC_FULL = "bars[ACC_FULL].wait(tile & 1)"
DONE = "ptx.tcgen05_commit(bars[ACC_FULL], 1)"
MULTIPLY = 'ptx.tcgen05_mma(taddr, da, db, IDESC, enable, "f16", 1)'
STEP_A = "da = LAYOUT_A.descriptor(a.address + s * A.nbytes, step)"
LOAD = "values = ptx.tcgen05_ld_32x32b(taddr + (warp << 21), N)"
FREE = "ptx.tcgen05_dealloc(taddr, 32, 1)"
ALLOCATE = "ptx.tcgen05_alloc(held, 32, 1)"
AFTER, BEFORE = "ptx.tcgen05_fence_after_thread_sync()", "ptx.tcgen05_fence_before_thread_sync()"
ACC_IS_FREE = "bars[ACC_EMPTY].arrive()"
OWN = "if t == MULTIPLIER:"


def multiply(old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return the edit of the product's operands."""
    assert old in MULTIPLY
    return ((MULTIPLY, MULTIPLY.replace(old, new)),)


def of_one_block(mistake: str, edits: Any, errors: str, text: str) -> TensorMutant:
    return TensorMutant(tensor_matmul.matmul, mistake, tuple(edits), errors, text)


ONE_BLOCK = [
    of_one_block(
        "a product that does not wait for its stage", [(WAIT_FULL, "")],
        "EarlyRead UninitializedRead", "read by a tcgen05 product or copy before the load",
    ),
    of_one_block(
        "a product that waits for the other parity",
        [(WAIT_FULL, "bars[FULL + s].wait(i // STAGES & 1 ^ 1)")],
        "EarlyRead UninitializedRead Deadlock", "read by a tcgen05 product or copy before the load",
    ),
    of_one_block(
        "a stage that an arrival releases", [(RELEASE, "bars[EMPTY + s].arrive()")],
        "EarlyOverwrite", "may still be reading: no tcgen05_commit of thread",
    ),
    of_one_block(
        "a stage that is released before its products",
        [(WAIT_FULL, f"{WAIT_FULL}\n{RELEASE}"), (RELEASE, "")],
        "EarlyOverwrite", "may still be reading",
    ),
    of_one_block(
        "a stage that is not released", [(RELEASE, "")], "Deadlock", "mbarrier at",
    ),
    of_one_block(
        "a loader that does not wait for its stage",
        [("bars[EMPTY + s].wait(i // STAGES & 1 ^ 1)", "")],
        "EarlyOverwrite BarrierMisuse WrongByteCount", "",
    ),
    of_one_block(
        "an epilogue that does not wait", [(WAIT_ACC_FULL, "")],
        "EarlyRead UninitializedRead", "loaded before the tcgen05_mma",
    ),
    of_one_block(
        "an epilogue without a fence after its wait", [(f"{AFTER}  # of the epilogue", "")],
        "MissingFence", "must execute tcgen05_fence_after_thread_sync() after the wait",
    ),
    of_one_block(
        "an epilogue without a fence before its arrival", [(f"{BEFORE}  # of the epilogue", "")],
        "MissingFence", "must execute tcgen05_fence_before_thread_sync() between that and the arr",
    ),
    of_one_block(
        "a multiplier without a fence after its wait", [(f"{AFTER}  # of the multiplier", "")],
        "MissingFence", "must execute tcgen05_fence_after_thread_sync() after the wait",
    ),
    of_one_block(
        "a commit by another thread",
        [(DONE, "pass"),
         (OWN, f"if t == MULTIPLIER + 1:\n    for i in range(TILES):\n        {DONE}\n{OWN}")],
        "EarlyRead UninitializedRead Deadlock", "wait for the barrier on which that arrives first",
    ),
    of_one_block("a result that is not committed", [(DONE, "pass")], "Deadlock", "mbarrier at"),
    of_one_block(
        "an accumulator that is released before its loads are over",
        [("ptx.tcgen05_wait_ld()", ACC_IS_FREE), (ACC_IS_FREE, "ptx.tcgen05_wait_ld()")],
        "EarlyOverwrite", "must execute tcgen05_wait_ld()",
    ),
    of_one_block(
        "a register that is used before the wait", [("ptx.tcgen05_wait_ld()", "")],
        "EarlyRead EarlyOverwrite", "execute tcgen05_wait_ld() first",
    ),
    of_one_block(
        "a multiplier that does not wait for the epilogue",
        [(WAIT_ACC_EMPTY, ""), (ACC_IS_FREE, "")],
        "EarlyOverwrite EarlyRead",
        "overwritten by tcgen05_mma kind::f16 before the tcgen05_ld of warp",
    ),
    of_one_block(
        "a product that adds to nothing", multiply("enable", "True"),
        "UninitializedRead", "adds to an accumulator that was never written",
    ),
    of_one_block(
        "an accumulator past the allocation", multiply("taddr", "taddr - 8"),
        "TensorMemoryMisuse", "is not allocated",
    ),
    of_one_block(
        "an accumulator that begins in the middle of the lanes",
        multiply("taddr", "taddr + (16 << 16)"),
        "TensorMemoryMisuse", "the accumulator begins at lane 16",
    ),
    of_one_block(
        "a warp that loads another's lanes", [(LOAD, LOAD.replace(" + (warp << 21)", ""))],
        "TensorMemoryMisuse", "reaches lanes",
    ),
    of_one_block(
        "a descriptor for wgmma", [(STEP_A, STEP_A + " & ~(7 << 46)")],
        "BadOperand", "is a descriptor for wgmma",
    ),
    of_one_block(
        "a descriptor with another swizzle than the tile's",
        [(STEP_A, f"{STEP_A} & ~(7 << 61) | 4 << 61")],
        "BadOperand", "was loaded by a tensor map with swizzle B128",
    ),
    of_one_block(
        "an instruction descriptor for a pair", multiply("IDESC", "IDESC_PAIR"),
        "BadOperand", "says M 256; with cta_group 1",
    ),
    of_one_block(
        "a mask of three words", multiply(', 1)', ', 1, disable_output_lane=(0, 0, 0))'),
        "BadOperand", "the mask of lanes has 3 words",
    ),
    of_one_block(
        "two groups in a kernel", [(RELEASE, RELEASE.replace(", 1)", ", 2)"))],
        "TensorMemoryMisuse", "cta_group is 2, and was 1 before",
    ),
    of_one_block(
        "an ordinary write without a fence",
        [(WAIT_FULL, f"{WAIT_FULL}\nptx.st_shared_u32(b.address + s * B.nbytes, 0)")],
        "MissingFence", "fence_proxy_async()",
    ),
    of_one_block(
        "a stage whose bytes are not all expected",
        [("bars[FULL + s].arrive_expect_tx(NBYTES)", "bars[FULL + s].arrive_expect_tx(A.nbytes)")],
        "WrongByteCount EarlyRead", "expect the bytes of every tile",
    ),
    of_one_block(
        "columns that nobody frees", [(FREE, "pass")],
        "TensorMemoryMisuse", "ended without tcgen05_dealloc",
    ),
    of_one_block(
        "columns that are allocated twice", [(ALLOCATE, f"{ALLOCATE}\n{ALLOCATE}")],
        "TensorMemoryMisuse", "ended without tcgen05_dealloc of columns",
    ),
    of_one_block(
        "columns that are freed twice", [(FREE, f"{FREE}\n{FREE}")],
        "TensorMemoryMisuse", "which is no allocation; there is nothing",
    ),
    of_one_block(
        "columns that are freed while they are in use",
        [("cuda.syncwarp()", f"cuda.syncwarp()\nif warp == 5:\n    {FREE}"), (FREE, "pass")],
        "TensorMemoryMisuse", "deallocat",
    ),
    of_one_block(
        "an allocation after the permit was given back",
        [("ptx.tcgen05_relinquish_alloc_permit(1)",
          f"ptx.tcgen05_relinquish_alloc_permit(1)\n{ALLOCATE}")],
        "TensorMemoryMisuse", "allocate everything before",
    ),
    of_one_block(
        "an epilogue of too few tiles",
        [("for tile in range(TILES):", "for tile in range(TILES - 1):")],
        "TensorMemoryMisuse UnfinishedCopy UnfinishedProduct", "",
    ),
]  # fmt: skip


def of_a_pair(mistake: str, edits: Any, errors: str, text: str) -> TensorMutant:
    return TensorMutant(tensor_matmul.paired, mistake, tuple(edits), errors, text)


EXPECT = "bars[FULL + s].arrive_expect_tx"
RELEASE_BOTH = "ptx.tcgen05_commit(bars[EMPTY + s], 2, 3)"
LEADER = "leader = ptx.mapa(bars[FULL + s], 0)"
PAIR = [
    of_a_pair(
        "loads that signal the own barrier", [(LEADER, "leader = ptx.mapa(bars[FULL + s], rank)")],
        "WrongByteCount Deadlock", "",
    ),
    of_a_pair(
        "a leader that expects its own bytes alone",
        [(f"{EXPECT}(2 * NBYTES)", f"{EXPECT}(NBYTES)")],
        "WrongByteCount EarlyRead UninitializedRead", "expect the bytes of every tile",
    ),
    of_a_pair(
        "a commit to the leader alone",
        [(RELEASE_BOTH, RELEASE_BOTH.replace("3", "1"))],
        "Deadlock", "mbarrier at",
    ),
    of_a_pair(
        "a commit to blocks outside the cluster",
        [(RELEASE_BOTH, RELEASE_BOTH.replace("3", "12"))],
        "BadOperand", "the cluster, which has the blocks 0 to 1",
    ),
    of_a_pair(
        "a mask of lanes for one block",
        [(MULTIPLY.replace("IDESC", "IDESC_PAIR").replace(", 1)", ", 2)"),
          MULTIPLY.replace("IDESC", "IDESC_PAIR").replace(
              ", 1)", ", 2, disable_output_lane=(0,) * 4)"))],
        "BadOperand", "the mask of lanes has 4 words; with cta_group 2 it has 8",
    ),
    of_a_pair(
        "an arrival that releases the peer's stage",
        [("ptx.tcgen05_commit(bars[EMPTY + s], 2, 3)",
          "ptx.tcgen05_commit(bars[EMPTY + s], 2, 1)\n"
          "ptx.mbarrier_arrive_remote(ptx.mapa(bars[EMPTY + s], 1))")],
        "EarlyOverwrite", "may still be reading",
    ),
    of_a_pair(
        "a leader that does not wait for the peer's epilogue",
        [("bars[ACC_EMPTY].init(256)", "bars[ACC_EMPTY].init(128)"),
         ("ptx.mbarrier_arrive_remote(ptx.mapa(bars[ACC_EMPTY], 0))",
          "if rank == 0:\n    bars[ACC_EMPTY].arrive()")],
        "EarlyOverwrite", "before the tcgen05_ld of warp",
    ),
    of_a_pair(
        "a product of one block",
        [(MULTIPLY.replace("IDESC", "IDESC_PAIR").replace(", 1)", ", 2)"), MULTIPLY)],
        "TensorMemoryMisuse", "cta_group is 1, and was 2 before",
    ),
]  # fmt: skip


def of_scales(mistake: str, edits: Any, errors: str, text: str) -> TensorMutant:
    return TensorMutant(scaled_matmul.scaled, mistake, tuple(edits), errors, text)


WAIT_SCALED = "bars[FULL + s].wait(i // STAGES & 1)"
COPY_A = "ptx.tcgen05_cp(taddr + SFA, SCALES.descriptor(atoms), WARPX4, 1)"
COPY_B = "ptx.tcgen05_cp(taddr + SFB, SCALES.descriptor(atoms + SF.nbytes), WARPX4, 1)"
AT_ATOMS = "atoms = sf.address + 2 * s * SF.nbytes"
SCALED = [
    of_scales(
        "scale factors that are not copied", [(COPY_B, "")],
        "UninitializedRead", "reads scale factors of B there that were never copied",
    ),
    of_scales(
        "scale factors that are copied after the products",
        [(COPY_A, ""), (RELEASE, f"{COPY_A}\n{RELEASE}")],
        "UninitializedRead", "reads scale factors of A there that were never copied",
    ),
    of_scales(
        "a copy of another thread",
        [(COPY_A, ""),
         (OWN, f"if t == MULTIPLIER + 1:\n    s, i = 0, 0\n    {WAIT_SCALED}\n"
               f"    {AT_ATOMS}\n    {COPY_A}\n{OWN}")],
        "UninitializedRead EarlyRead EarlyOverwrite UnfinishedProduct", "",
    ),
    of_scales(
        "the atom of a stage that was not waited for",
        [(AT_ATOMS, AT_ATOMS.replace("* s *", "* ((s + 1) % STAGES) *"))],
        "EarlyRead UninitializedRead EarlyOverwrite", "read by a tcgen05 product or copy before",
    ),
    of_scales(
        "a copy that does not wait for its stage",
        [(WAIT_SCALED, f"{AT_ATOMS}\n{COPY_A}\n{WAIT_SCALED}"), (COPY_A, "")],
        "EarlyRead UninitializedRead", "read by a tcgen05 product or copy before the load",
    ),
    of_scales(
        "a copy behind the commit that releases its stage",
        [(RELEASE, f"{RELEASE}\n{COPY_A}")],
        "EarlyOverwrite EarlyRead", "a load into bytes that the tcgen05_cp 32x128b.warpx4",
    ),
    of_scales(
        "a stage that is released before its copies and products",
        [(WAIT_SCALED, f"{WAIT_SCALED}\n{RELEASE}"), (RELEASE, "")],
        "EarlyOverwrite", "may still be reading",
    ),
    of_scales(
        "atoms that are copied as 64 rows",
        [(COPY_A, COPY_A.replace("WARPX4", '"64x128b.warpx2::02_13"'))],
        "TensorMemoryMisuse", "differ between the four groups of 32 lanes",
    ),
    of_scales(
        "scale factors in columns of the accumulator",
        [(COPY_B, COPY_B.replace("SFB", "SFA - 2"))],
        "UninitializedRead EarlyOverwrite", "factors of B there that were never copied",
    ),
    of_scales(
        "scale factors beyond the allocation", [(COPY_B, COPY_B.replace("SFB", "COLUMNS"))],
        "TensorMemoryMisuse", "is not allocated",
    ),
    of_scales(
        "scale factors whose bytes are not expected",
        [("bars[FULL + s].arrive_expect_tx(NBYTES)",
          "bars[FULL + s].arrive_expect_tx(A.nbytes + B.nbytes)")],
        "WrongByteCount EarlyRead", "expect the bytes of every tile",
    ),
]  # fmt: skip
MUTANTS = [*ONE_BLOCK, *PAIR, *SCALED]
