"""Accesses to a tile in shared memory: which of them the next release fences."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 8), "f32")


def write(tile):
    tile[1, 2] = np.float32(3)


def write_vector(tile):
    tile.write_vector((1, 4), tile.read_vector((0, 0)))


ACCESSES = {
    "read": lambda tile: tile[0, 0],
    "write": write,
    "read of a vector": lambda tile: tile.read_vector((0, 4)),
    "write of a vector": write_vector,
}
OTHERS = {
    "address": lambda tile: tile.address_of((0, 4)),
    "indices": lambda tile: [*tile.indices(0, 32)],
    "indices of vectors": lambda tile: [*tile.vectors(0, 32)],
}


def is_unfenced_after(access):
    found = []

    def kernel():
        tile = tma.shared_tile(TILE)
        for index in tile.indices(0, 1):
            tile[index] = np.float32(0)
        tile.accesses.unfenced = False
        access(tile)
        found.append(tile.accesses.unfenced)

    cuda.jit(kernel)[1, 1]()
    return found[0]


@pytest.mark.parametrize("name", [*ACCESSES, *OTHERS])
def test_reads_and_writes_are_fenced_before_the_copy_engine_writes(name):
    assert is_unfenced_after((ACCESSES | OTHERS)[name]) is (name in ACCESSES)


def test_indices_are_of_single_elements_and_vectors_of_16_bytes():
    found = []

    def kernel():
        tile = tma.shared_tile(TILE)
        thread = cuda.threadIdx.x
        found.append((thread, [*tile.indices(thread, 3)], [*tile.vectors(thread, 3)]))

    cuda.jit(kernel)[1, 3]()
    elements = [*np.ndindex(4, 8)]
    for thread, indices, vectors in found:
        assert indices == elements[thread::3] and vectors == elements[::4][thread::3]
