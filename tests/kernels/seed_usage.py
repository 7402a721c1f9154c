"""The usage example of Mojo's tile_pipeline, line by line, with a consumer that multiplies."""

from __future__ import annotations

import numba_tma as tma

A, B = tma.Tile((16, 16), "f16"), tma.Tile((8, 16), "f16")
ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))
k_group_size = 2
tile_pipeline_of = tma.TilePipeline(
    2,
    tma.StandardTilePayload(A, B),
    k_group=k_group_size,
    producer=ROLES.load,
    consumer=ROLES.mma,
    released_by="tcgen05",
)
expected_bytes = k_group_size * (A.nbytes + B.nbytes)


@tma.scopes
def usage(a, b, seen, k_groups):
    """Load groups of tiles, and note where the MMA warp reads each."""
    with tile_pipeline_of.start() as tile_pipeline:
        if ROLES.load.is_member():
            # Producer (TMA Load warp):
            with tile_pipeline.producer() as producer:
                for k in range(k_groups):
                    with producer.acquire() as tiles:
                        tiles.expect_bytes(expected_bytes)
                        for j in range(k_group_size):
                            a_tile, b_tile = tiles.get_tile(j)
                            # TMA load into a_tile, b_tile
                            column = 16 * (k * k_group_size + j)
                            a.load(a_tile, (0, column), tiles.barrier)
                            b.load(b_tile, (0, column), tiles.barrier)
                    # Automatically signals completion on exit
        else:
            # Consumer (MMA warp):
            with tile_pipeline.consumer() as consumer:
                for k in range(k_groups):
                    with consumer.acquire() as tiles:
                        for j in range(k_group_size):
                            a_tile, b_tile = tiles.get_tile(j)
                            # MMA using a_tile, b_tile
                            seen[k, j, 0] = a_tile.address
                            seen[k, j, 1] = b_tile.address
                    # Automatically signals completion on exit
