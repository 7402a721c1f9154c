"""The usage example of Mojo's tile_pipeline, line by line, with products of the tensor cores.

`usage` has the block of the seed in its own words; around it, the accumulators go from the MMA warp
to an epilogue. `block_scaled` is the same with the seed's other payload.
"""

from __future__ import annotations

import numba_tma as tma

ROLES = tma.Roles(epilogue=tma.Warpgroups(1), mma=tma.Warps(1), load=tma.Warps(1))
M, N, STAGES, k_group_size = 128, 16, 2, 2
SWIZZLE = tma.Swizzle.B128


def pipelines(payload, extra_columns=0):
    """Return the input pipeline of a payload, and the output pipeline of its products."""
    tiles = tma.TilePipeline(
        STAGES,
        payload,
        k_group=k_group_size,
        producer=ROLES.load,
        consumer=ROLES.mma,
        released_by="tcgen05",
    )
    output = tma.OutputTilePipeline(
        2,
        tma.Tile((M, N), "f32"),
        mma=ROLES.mma,
        epilogue=ROLES.epilogue,
        memory="tensor",
        extra_columns=extra_columns,
    )
    return tiles, output


K = 64  #: elements of a tile along K
A, B = tma.Tile((M, K), "bf16", SWIZZLE), tma.Tile((N, K), "bf16", SWIZZLE)
tile_pipeline_of, output_pipeline_of = pipelines(tma.StandardTilePayload(A, B))
expected_bytes = k_group_size * (A.nbytes + B.nbytes)


@tma.scopes
def usage(a, b, out, output_tiles, k_groups):
    """Out = A B', output tile by output tile of 128 rows; each is a sum over groups of tiles."""
    with tile_pipeline_of.start() as tile_pipeline, output_pipeline_of.start() as output_pipeline:
        if ROLES.load.is_member():
            # Producer (TMA Load warp):
            with tile_pipeline.producer() as producer:
                for k in range(output_tiles * k_groups):
                    with producer.acquire() as tiles:
                        tiles.expect_bytes(expected_bytes)
                        for j in range(k_group_size):
                            a_tile, b_tile = tiles.get_tile(j)
                            # TMA load into a_tile, b_tile
                            column = K * (k % k_groups * k_group_size + j)
                            a.load(a_tile, (k // k_groups * M, column), tiles.barrier)
                            b.load(b_tile, (0, column), tiles.barrier)
                    # Automatically signals completion on exit
        elif ROLES.mma.is_member():
            with output_pipeline.producer() as products:
                for _ in range(output_tiles):
                    with products.acquire() as sums:
                        # Consumer (MMA warp):
                        with tile_pipeline.consumer() as consumer:
                            for k in range(k_groups):
                                with consumer.acquire() as tiles:
                                    for j in range(k_group_size):
                                        a_tile, b_tile = tiles.get_tile(j)
                                        # MMA using a_tile, b_tile
                                        more = k > 0 or j > 0
                                        tma.tcgen05_mma(
                                            sums.accumulator, a_tile, b_tile, accumulate=more
                                        )
                                # Automatically signals completion on exit
        else:
            with output_pipeline.consumer() as epilogue:
                for tile in range(output_tiles):
                    with epilogue.acquire() as sums:
                        row = tile * M + sums.accumulator.row
                        for column in range(0, N, 2):
                            out[row, column], out[row, column + 1] = sums.load(column, 2)


SCALED_K = 128  #: elements of a tile of e4m3 along K
SCALED = tma.BlockScaledTilePayload.of(
    tma.Tile((M, SCALED_K), "e4m3", SWIZZLE), tma.Tile((N, SCALED_K), "e4m3", SWIZZLE), "mxfp8"
)
SCALE_COLUMNS = 4  #: of tensor memory, for an atom of 128 rows x 4 scales
scaled_pipeline_of, scaled_output_of = pipelines(SCALED, 2 * SCALE_COLUMNS)


@tma.scopes
def block_scaled(a, b, sfa, sfb, out, k_groups):
    """Out = A B' of MXFP8: a stage holds groups of A, B and their scales in atoms."""
    with scaled_pipeline_of.start() as tile_pipeline, scaled_output_of.start() as output_pipeline:
        tmem = output_pipeline.tensor_memory
        a_scale = tmem.scales(SCALED.sfa, 2 * N, 32)
        b_scale = tmem.scales(SCALED.sfb, 2 * N + SCALE_COLUMNS, 32)
        if ROLES.load.is_member():
            with tile_pipeline.producer() as producer:
                for k in range(k_groups):
                    with producer.acquire() as tiles:
                        for j in range(k_group_size):
                            a_tile, b_tile, sfa_tile, sfb_tile = tiles.get_tile(j)
                            group = k * k_group_size + j
                            a.load(a_tile, (0, group * SCALED_K), tiles.barrier)
                            b.load(b_tile, (0, group * SCALED_K), tiles.barrier)
                            sfa.load(sfa_tile, (0, group, 0, 0), tiles.barrier)
                            sfb.load(sfb_tile, (0, group, 0, 0), tiles.barrier)
        elif ROLES.mma.is_member():
            with output_pipeline.producer() as products, products.acquire() as sums:
                with tile_pipeline.consumer() as consumer:
                    for k in range(k_groups):
                        with consumer.acquire() as tiles:
                            for j in range(k_group_size):
                                a_tile, b_tile, sfa_tile, sfb_tile = tiles.get_tile(j)
                                tma.tcgen05_copy(a_scale, sfa_tile)
                                tma.tcgen05_copy(b_scale, sfb_tile)
                                tma.tcgen05_mma(
                                    sums.accumulator,
                                    a_tile,
                                    b_tile,
                                    accumulate=k > 0 or j > 0,
                                    a_scale=a_scale,
                                    b_scale=b_scale,
                                )
        else:
            with output_pipeline.consumer() as epilogue, epilogue.acquire() as sums:
                row = sums.accumulator.row
                for column in range(0, N, 2):
                    out[row, column], out[row, column + 1] = sums.load(column, 2)
