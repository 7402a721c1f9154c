"""Clusters: their barrier, their special registers, and shared memory across their blocks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    ClusterAddress,
    SharedAddress,
    address,
    f32,
    f32x4,
    i32,
    instruction,
    u32,
    u32x2,
    u32x4,
    u64,
    u64x2,
)

__all__ = [
    "barrier_cluster_arrive", "barrier_cluster_wait", "cluster_ctaid_x", "cluster_ctaid_y",
    "cluster_ctaid_z", "cluster_nctaid_x", "cluster_nctaid_y", "cluster_nctaid_z", "clusterid_x",
    "clusterid_y", "clusterid_z", "nclusterid_x", "nclusterid_y", "nclusterid_z", "cluster_ctarank",
    "cluster_nctarank", "is_explicit_cluster", "mapa", "getctarank", "ld_shared_cluster_u32",
    "st_shared_cluster_u32", "ld_shared_cluster_u64", "st_shared_cluster_u64",
    "ld_shared_cluster_f32", "st_shared_cluster_f32", "ld_shared_cluster_v4_u32",
    "st_shared_cluster_v4_u32", "st_async_b32", "st_async_b64", "st_async_f32", "st_async_v2_b32",
    "st_async_v4_b32", "st_async_v4_f32", "st_async_v2_b64", "red_async_u32", "red_async_s32",
    "red_async_b32", "red_async_u64",
]  # fmt: skip

# ----------------------------------------------------------------------------- barrier

ArriveQualifiers: TypeAlias = Literal[
    "release", "relaxed", "aligned", "release.aligned", "relaxed.aligned"
]
WaitQualifiers: TypeAlias = Literal["acquire", "aligned", "acquire.aligned"]


@instruction(
    "barrier.cluster.arrive<qualifiers:.{qualifiers}>;",
    isa=(7, 8),
    sm=90,
    since={
        "release": ((8, 0), 90),
        "relaxed": ((8, 0), 90),
        "release.aligned": ((8, 0), 90),
        "relaxed.aligned": ((8, 0), 90),
    },
    convergent=True,
)
def barrier_cluster_arrive(qualifiers: ArriveQualifiers | None = None) -> None:
    """Arrive at the cluster's barrier without waiting; `barrier_cluster_wait` must follow.

    Executed by every thread of the cluster, once per wait. Release semantics at cluster scope, by
    default and with "release"; "relaxed" orders nothing. With "aligned" all threads of the warp
    execute the instruction together.
    """
    simulator.barrier_cluster_arrive(qualifiers or "")


@instruction(
    "barrier.cluster.wait<qualifiers:.{qualifiers}>;",
    isa=(7, 8),
    sm=90,
    since={"acquire": ((8, 0), 90), "acquire.aligned": ((8, 0), 90)},
    convergent=True,
)
def barrier_cluster_wait(qualifiers: WaitQualifiers | None = None) -> None:
    """Wait until all threads of the cluster that have not exited have arrived.

    Executed by every thread that arrived. Acquire semantics at cluster scope, by default and with
    "acquire". With "aligned" all threads of the warp execute the instruction together.
    """
    simulator.barrier_cluster_wait(qualifiers or "")


# ------------------------------------------------------------------- special registers


@instruction("mov.u32 {result}, %cluster_ctaid.x;", isa=(7, 8), sm=90, pure=True)
def cluster_ctaid_x() -> u32:
    """Return the block's index in its cluster along x."""
    return simulator.cluster_block_index()[0]


@instruction("mov.u32 {result}, %cluster_ctaid.y;", isa=(7, 8), sm=90, pure=True)
def cluster_ctaid_y() -> u32:
    """Return the block's index in its cluster along y."""
    return simulator.cluster_block_index()[1]


@instruction("mov.u32 {result}, %cluster_ctaid.z;", isa=(7, 8), sm=90, pure=True)
def cluster_ctaid_z() -> u32:
    """Return the block's index in its cluster along z."""
    return simulator.cluster_block_index()[2]


@instruction("mov.u32 {result}, %cluster_nctaid.x;", isa=(7, 8), sm=90, pure=True)
def cluster_nctaid_x() -> u32:
    """Return the number of blocks of the cluster along x."""
    return simulator.cluster_dim()[0]


@instruction("mov.u32 {result}, %cluster_nctaid.y;", isa=(7, 8), sm=90, pure=True)
def cluster_nctaid_y() -> u32:
    """Return the number of blocks of the cluster along y."""
    return simulator.cluster_dim()[1]


@instruction("mov.u32 {result}, %cluster_nctaid.z;", isa=(7, 8), sm=90, pure=True)
def cluster_nctaid_z() -> u32:
    """Return the number of blocks of the cluster along z."""
    return simulator.cluster_dim()[2]


@instruction("mov.u32 {result}, %clusterid.x;", isa=(7, 8), sm=90, pure=True)
def clusterid_x() -> u32:
    """Return the cluster's index in the grid along x."""
    return simulator.cluster_index()[0]


@instruction("mov.u32 {result}, %clusterid.y;", isa=(7, 8), sm=90, pure=True)
def clusterid_y() -> u32:
    """Return the cluster's index in the grid along y."""
    return simulator.cluster_index()[1]


@instruction("mov.u32 {result}, %clusterid.z;", isa=(7, 8), sm=90, pure=True)
def clusterid_z() -> u32:
    """Return the cluster's index in the grid along z."""
    return simulator.cluster_index()[2]


@instruction("mov.u32 {result}, %nclusterid.x;", isa=(7, 8), sm=90, pure=True)
def nclusterid_x() -> u32:
    """Return the number of clusters of the grid along x."""
    return simulator.cluster_grid_dim()[0]


@instruction("mov.u32 {result}, %nclusterid.y;", isa=(7, 8), sm=90, pure=True)
def nclusterid_y() -> u32:
    """Return the number of clusters of the grid along y."""
    return simulator.cluster_grid_dim()[1]


@instruction("mov.u32 {result}, %nclusterid.z;", isa=(7, 8), sm=90, pure=True)
def nclusterid_z() -> u32:
    """Return the number of clusters of the grid along z."""
    return simulator.cluster_grid_dim()[2]


@instruction("mov.u32 {result}, %cluster_ctarank;", isa=(7, 8), sm=90, pure=True)
def cluster_ctarank() -> u32:
    """Return the block's rank in its cluster, the `rank` of `mapa`; x varies fastest."""
    return simulator.cluster_rank()


@instruction("mov.u32 {result}, %cluster_nctarank;", isa=(7, 8), sm=90, pure=True)
def cluster_nctarank() -> u32:
    """Return the number of blocks of the cluster: 1 without a cluster."""
    return simulator.cluster_size()


@instruction("mov.pred {predicate}, %is_explicit_cluster;", isa=(7, 8), sm=90, pure=True)
def is_explicit_cluster() -> bool:
    """Return whether the kernel was given a cluster size; else each block is a cluster."""
    return simulator.is_explicit_cluster()


# --------------------------------------------------------------------------- addresses


@instruction("mapa.shared::cluster.u32 {result}, {location}, {rank};", isa=(7, 8), sm=90, pure=True)
def mapa(location: SharedAddress, rank: u32) -> u32:
    """Return the cluster address of `location` in the block of rank `rank`.

    `location` is an address of this block's shared memory. The result is the address of the same
    offset in the other block, for instructions that take a cluster address. `rank` is less than
    `cluster_nctarank`. Accesses no memory, and needs no synchronisation.
    """
    return simulator.mapa(address(location), rank)


@instruction("getctarank.shared::cluster.u32 {result}, {location};", isa=(7, 8), sm=90, pure=True)
def getctarank(location: ClusterAddress) -> u32:
    """Return the rank of the block whose shared memory contains a cluster address.

    An address of this block's own shared memory is a cluster address too.
    """
    return simulator.getctarank(location)


# --------------------------------------------------------------------- loads and stores


@instruction("ld.shared::cluster.u32 {result}, [{location}];", isa=(7, 8), sm=90)
def ld_shared_cluster_u32(location: ClusterAddress) -> u32:
    """Return the 32-bit word at a cluster address, a multiple of 4 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the write and this
    load, and between this load and the exit of the block that is read.
    """
    return int(simulator.shared_cluster_read(location, np.dtype(np.uint32)))


@instruction("st.shared::cluster.u32 [{location}], {value};", isa=(7, 8), sm=90)
def st_shared_cluster_u32(location: ClusterAddress, value: u32) -> None:
    """Write a 32-bit word at a cluster address, a multiple of 4 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the start of the
    block that is written and this store, and between this store and the read.
    """
    simulator.shared_cluster_write(location, np.uint32(value))


@instruction("ld.shared::cluster.u64 {result}, [{location}];", isa=(7, 8), sm=90)
def ld_shared_cluster_u64(location: ClusterAddress) -> u64:
    """Return the 64-bit word at a cluster address, a multiple of 8 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the write and this
    load, and between this load and the exit of the block that is read.
    """
    return int(simulator.shared_cluster_read(location, np.dtype(np.uint64)))


@instruction("st.shared::cluster.u64 [{location}], {value};", isa=(7, 8), sm=90)
def st_shared_cluster_u64(location: ClusterAddress, value: u64) -> None:
    """Write a 64-bit word at a cluster address, a multiple of 8 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the start of the
    block that is written and this store, and between this store and the read.
    """
    simulator.shared_cluster_write(location, np.uint64(value))


@instruction("ld.shared::cluster.f32 {result}, [{location}];", isa=(7, 8), sm=90)
def ld_shared_cluster_f32(location: ClusterAddress) -> f32:
    """Return the float32 at a cluster address, a multiple of 4 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the write and this
    load, and between this load and the exit of the block that is read.
    """
    return float(simulator.shared_cluster_read(location, np.dtype(np.float32)))


@instruction("st.shared::cluster.f32 [{location}], {value};", isa=(7, 8), sm=90)
def st_shared_cluster_f32(location: ClusterAddress, value: f32) -> None:
    """Write a float32 at a cluster address, a multiple of 4 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the start of the
    block that is written and this store, and between this store and the read.
    """
    simulator.shared_cluster_write(location, np.float32(value))


@instruction("ld.shared::cluster.v4.u32 {result}, [{location}];", isa=(7, 8), sm=90)
def ld_shared_cluster_v4_u32(location: ClusterAddress) -> u32x4:
    """Return the four 32-bit words at a cluster address, a multiple of 16 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the write and this
    load, and between this load and the exit of the block that is read.
    """
    x, y, z, w = simulator.shared_cluster_read(location, np.dtype(np.uint32), 4)
    return int(x), int(y), int(z), int(w)


@instruction("st.shared::cluster.v4.u32 [{location}], {values};", isa=(7, 8), sm=90)
def st_shared_cluster_v4_u32(location: ClusterAddress, values: u32x4) -> None:
    """Write four 32-bit words at a cluster address, a multiple of 16 B.

    Executed by any thread. Orders nothing: a `cluster_sync` must stand between the start of the
    block that is written and this store, and between this store and the read.
    """
    simulator.shared_cluster_write(location, np.array(values, np.uint32))


# -------------------------------------------------- asynchronous stores and reductions


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_b32(destination: ClusterAddress, value: u32, barrier: ClusterAddress) -> None:
    """Start to write a 32-bit word to a block of the cluster; completes 4 bytes on `barrier`.

    `destination` and `barrier` are cluster addresses (`mapa`) in the same block. `destination` is a
    multiple of 4 B. The cluster has more than one block. Executed by any thread, after the
    barrier's initialisation is visible to it (`cluster_sync`). Orders only the written bytes: they
    are visible to threads that have waited for the phase with acquire semantics at cluster scope.
    No proxy fence is needed.
    """
    simulator.st_async(destination, np.uint32(value), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_b64(destination: ClusterAddress, value: u64, barrier: ClusterAddress) -> None:
    """Start to write a 64-bit word to a block of the cluster; completes 8 bytes on `barrier`.

    `destination` is a multiple of 8 B. All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.uint64(value), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_f32(destination: ClusterAddress, value: f32, barrier: ClusterAddress) -> None:
    """Start to write a float32 to a block of the cluster; completes 4 bytes on `barrier`.

    All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.float32(value), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32"
    " [{destination}], {values}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_v2_b32(destination: ClusterAddress, values: u32x2, barrier: ClusterAddress) -> None:
    """Start to write two 32-bit words to a block of the cluster; completes 8 bytes on `barrier`.

    `destination` is a multiple of 8 B. All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.array(values, np.uint32), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"
    " [{destination}], {values}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_v4_b32(destination: ClusterAddress, values: u32x4, barrier: ClusterAddress) -> None:
    """Start to write four 32-bit words to a block of the cluster; completes 16 bytes on `barrier`.

    `destination` is a multiple of 16 B. All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.array(values, np.uint32), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
    " [{destination}], {values}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_v4_f32(destination: ClusterAddress, values: f32x4, barrier: ClusterAddress) -> None:
    """Start to write four float32 to a block of the cluster; completes 16 bytes on `barrier`.

    `destination` is a multiple of 16 B. All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.array(values, np.float32), barrier)


@instruction(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64"
    " [{destination}], {values}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def st_async_v2_b64(destination: ClusterAddress, values: u64x2, barrier: ClusterAddress) -> None:
    """Start to write two 64-bit words to a block of the cluster; completes 16 bytes on `barrier`.

    `destination` is a multiple of 16 B. All else is as for `st_async_b32`.
    """
    simulator.st_async(destination, np.array(values, np.uint64), barrier)


U32Operation: TypeAlias = Literal["inc", "dec", "min", "max", "add"]
S32Operation: TypeAlias = Literal["min", "max", "add"]
B32Operation: TypeAlias = Literal["and", "or", "xor"]
U64Operation: TypeAlias = Literal["add"]


@instruction(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.u32"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def red_async_u32(
    destination: ClusterAddress, value: u32, barrier: ClusterAddress, operation: U32Operation
) -> None:
    """Start to combine `value` with an unsigned 32-bit word of a block of the cluster.

    Completes 4 bytes on `barrier`. `destination` and `barrier` are cluster addresses (`mapa`) in
    the same block. The cluster has more than one block. Atomic, relaxed at cluster scope: any
    number of threads may update one word.

    "inc" adds 1, and wraps to 0 if the word is `value` or more. "dec" subtracts 1, and wraps to
    `value` if the word is 0 or more than `value`.

    Executed by any thread, after the word's first value and the barrier's initialisation are
    visible to it. The wait for the result is that of `st_async_b32`.
    """
    simulator.red_async(destination, np.uint32(value), barrier, operation)


@instruction(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.s32"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def red_async_s32(
    destination: ClusterAddress, value: i32, barrier: ClusterAddress, operation: S32Operation
) -> None:
    """Start to combine `value` with a signed 32-bit word of a block of the cluster.

    Completes 4 bytes on `barrier`. All else is as for `red_async_u32`.
    """
    simulator.red_async(destination, np.int32(value), barrier, operation)


@instruction(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.b32"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def red_async_b32(
    destination: ClusterAddress, value: u32, barrier: ClusterAddress, operation: B32Operation
) -> None:
    """Start to combine `value` bitwise with a 32-bit word of a block of the cluster.

    Completes 4 bytes on `barrier`. All else is as for `red_async_u32`.
    """
    simulator.red_async(destination, np.uint32(value), barrier, operation)


@instruction(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.u64"
    " [{destination}], {value}, [{barrier}];",
    isa=(8, 1),
    sm=90,
)
def red_async_u64(
    destination: ClusterAddress, value: u64, barrier: ClusterAddress, operation: U64Operation
) -> None:
    """Start to combine `value` with a 64-bit word of a block of the cluster.

    Completes 8 bytes on `barrier`. All else is as for `red_async_u32`. A signed sum has the same
    bits.
    """
    simulator.red_async(destination, np.uint64(value), barrier, operation)
