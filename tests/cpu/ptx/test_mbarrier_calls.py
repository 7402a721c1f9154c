"""mbarrier and cp.async in kernels: the PTX of `Barrier`, and the compile-time errors."""

import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma import ptx
from numba_tma.tools.testing import compile_ptx

BYTES = types.uint8[::1]
TILE = tma.Tile(64, "u32")


def emitted(kernel, *parameters):
    """Return the inline asm of a kernel with every register alike."""
    text = compile_ptx(cuda.jit(kernel), parameters, cc=(9, 0, "a"))
    blocks = re.findall(r"// begin inline asm\n\s*(.*?)\n\s*// end inline asm", text, re.S)
    return [re.sub(r"%\w+", "%", block) for block in blocks]


def test_methods_of_a_barrier_are_one_instruction_each():
    def kernel(count, out):
        barrier = tma.shared_barrier()
        barrier.arrive()
        barrier.arrive(count)
        barrier.arrive(count=2)
        barrier.arrive_drop()
        state = barrier.arrive_drop(count)
        barrier.expect_tx(16)
        barrier.complete_tx(16)
        out[0] = barrier.pending_count(state)

    assert emitted(kernel, types.uint32, types.int64[::1]) == [
        "mbarrier.arrive.shared::cta.b64 %, [%];",
        "mbarrier.arrive.shared::cta.b64 %, [%], %;",
        "mbarrier.arrive.shared::cta.b64 %, [%], %;",
        "mbarrier.arrive_drop.shared::cta.b64 %, [%];",
        "mbarrier.arrive_drop.shared::cta.b64 %, [%], %;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%], %;",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%], %;",
        "mbarrier.pending_count.b64 %, %;",
    ]


def test_a_choice_may_be_left_out():
    def kernel():
        address = tma.shared_barrier().address
        ptx.mbarrier_expect_tx_remote(address, 16)
        ptx.mbarrier_complete_tx_remote(address, 16)
        ptx.mbarrier_complete_tx_remote(address, 16, "relaxed.cta")

    assert emitted(kernel) == [
        "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%], %;",  # seen by its owner
        "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%], %;",
        "mbarrier.complete_tx.relaxed.cta.shared::cluster.b64 [%], %;",
    ]


def test_a_shared_array_may_be_the_destination():
    def kernel(source, left):
        space = cuda.shared.array(64, types.uint8, 16)
        ptx.cp_async_ca(space[16:], source, 8, left)

    assert emitted(kernel, BYTES, types.int64) == ["cp.async.ca.shared.global [%], [%], 8, %;"]


def acquire_in_an_arrival(source):
    ptx.mbarrier_arrive(tma.shared_barrier(), semantics="acquire.cta")


def semantics_of_a_variable(source):
    barrier = tma.shared_barrier()
    for semantics in ("release.cta", "release.cluster"):
        ptx.mbarrier_arrive(barrier, semantics=semantics)


def scope_of_the_gpu(source):
    ptx.mbarrier_try_wait_parity(tma.shared_barrier(), 0, semantics="acquire.gpu")


def remote_barrier_object(source):
    ptx.mbarrier_arrive_remote(tma.shared_barrier())


def twelve_bytes(source):
    ptx.cp_async_ca(tma.shared_tile(TILE), source, 12)


def wait_for_a_variable(source):
    ptx.cp_async_wait_group(source.size)


def prefetch_of_512(source):
    ptx.cp_async_cg(tma.shared_tile(TILE), source, prefetch_size=512)


def barrier_as_destination(source):
    ptx.cp_async_cg(tma.shared_barrier(), source)


MISTAKES = {
    acquire_in_an_arrival: "one of 'release.cta', 'release.cluster', 'relaxed.cta', "
    "'relaxed.cluster', not 'acquire.cta'",
    semantics_of_a_variable: "mbarrier_arrive(semantics=...) is part of the instruction",
    scope_of_the_gpu: "'relaxed.cluster', not 'acquire.gpu'",
    remote_barrier_object: "mbarrier_arrive_remote(barrier=...) takes an integer (uint32), not",
    twelve_bytes: "cp_async_ca(nbytes=...) is part of the instruction: one of 4, 8, 16, not 12",
    wait_for_a_variable: "must be a literal",
    prefetch_of_512: "one of 64, 128, 256, not 512",
    barrier_as_destination: "cp_async_cg(destination=...) takes a tile in shared memory, not",
}


@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.__name__)
def test_what_ptx_has_not_is_refused(kernel):
    with pytest.raises(TypingError) as caught:
        compile_ptx(cuda.jit(kernel), (BYTES,), cc=(9, 0, "a"))
    assert MISTAKES[kernel] in str(caught.value)
