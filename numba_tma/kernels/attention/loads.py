"""The producer of the attention kernel: the loads of a tile of queries and of its K/V tiles.

`acquire` waits until a stage is empty. The stage's bytes are then announced on its full barrier:
for Q by `acquire` itself, for K and V by `get_k` and `get_tile`. The bytes of the copies complete
the full barrier, so nobody commits a stage. `commit_step` only advances to the next stage of K or
V. Q's `acquire` advances.
"""

from __future__ import annotations

import functools
from typing import Any

from numba_tma.backend.interface import device_function, i32, u32
from numba_tma.host.annotations import DeviceFunction, Integer
from numba_tma.kernels.attention.plan import AttentionForm
from numba_tma.kernels.attention.tiles import tile_functions
from numba_tma.pipeline.producer import TileProducer


@device_function
def load_q(
    form: AttentionForm,
    producer: TileProducer,
    q: Any,
    tile: Any,
    sequence: Any,
) -> None:
    """Load the queries of a tile, 64 rows for each consumer warpgroup, when Q's stage is empty."""
    stage = producer.acquire()
    for i in range(form.warpgroups):
        row = sequence.query + tile.query_block * form.tile_queries + i * form.warpgroup_queries
        head = tile.head * form.packed_heads
        q.load(stage.tile(i).q, (sequence.batch, row, head, 0), stage.barrier)


@device_function
def load_k(producer: Any, k: Any, sequence: Any, key: Integer, head: Integer) -> None:
    """Load a K tile when its stage is empty."""
    producer.acquire_k()
    barrier, tile = producer.get_k()  # announces the bytes
    k.load(tile, (sequence.batch, sequence.key + key, head, 0), barrier)
    producer.commit_step()


@device_function
def load_v_16bit(
    form: Any, producer: Any, v: Any, sequence: Any, key: Integer, head: Integer
) -> Any:
    """Load a V tile when its stage is empty. Return the first key of the next V tile.

    `sequence.key` is 0, since packed sequences have `load_v_packed`.
    """
    producer.acquire()
    barrier, tile = producer.get_tile()
    v.load(tile, (sequence.batch, key, head, 0), barrier)
    producer.commit_step()
    return i32(key + form.block_k)


@device_function
def load_v_fp8(form: Any, producer: Any, v: Any, sequence: Any, key: Integer, head: Integer) -> Any:
    """Do what `load_v_16bit` does with V', (head dim, keys), of e4m3 inputs (`transpose_v`)."""
    producer.acquire()
    barrier, tile = producer.get_tile()
    v.load(tile, (sequence.batch, 0, head, key), barrier)
    producer.commit_step()
    return i32(key + form.block_k)


@device_function
def load_v_packed(
    form: Any, producer: Any, v: Any, sequence: Any, key: Integer, head: Integer
) -> Any:
    """Load a V tile of a packed sequence through a ragged map, which has zeros after its end.

    Otherwise a NaN of the next sequence would be multiplied with P = 0. K needs no ragged map: its
    scores after the end are masked. Return what `load_v_16bit` returns.
    """
    producer.acquire()
    barrier, tile = producer.get_tile()
    sequence_v = v.sequence(sequence.key, sequence.keys)  # the ragged map of this sequence
    for i in range(form.spans):
        to = u32(tile.address + i * (form.block_k * form.span_nbytes))
        sequence_v.load(to, (key, head, i * form.span), barrier)
    producer.commit_step()
    return i32(key + form.block_k)


@functools.cache
def tile_load(form: AttentionForm) -> DeviceFunction:
    """Return the load of a tile of queries, and of the K/V tiles that it sees, by one thread."""
    PACKED, (locate, kv_range, _) = form.problem.packed, tile_functions(form)
    load_v = load_v_packed if form.problem.packed else load_v_16bit
    if form.problem.is_fp8:
        load_v = load_v_fp8

    @device_function
    def load(  # type: ignore[no-untyped-def]
        tiles, tile, maps, producers, queries, keys, group, options
    ):
        q, k, v = maps
        q_producer, k_producer, v_producer = producers
        kv_head, sequence = tile.head // group, locate(tile, queries, keys, options)
        kv = kv_range(tile, sequence, options)
        v_key = kv.first_key  # of the next V tile; the next K tile is one ahead
        load_k(k_producer, k, sequence, v_key, kv_head)
        # After K0: Q's stage is empty only when an earlier tile has been computed.
        load_q(form, q_producer, q, tile, sequence)
        for _ in range(1, kv.tiles):
            load_k(k_producer, k, sequence, v_key + form.block_k, kv_head)
            v_key = load_v(form, v_producer, v, sequence, v_key, kv_head)
        if PACKED:
            tiles.request()
        load_v(form, v_producer, v, sequence, v_key, kv_head)

    return load
