"""Tiles of which no two words are equal, and folds that order and repetition change.

Tile t holds the words t * size + 1, t * size + 2, ... A consumer thread folds what it reads.
"""

import numpy as np
from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 32), "u32")
ROWS, COLUMNS = TILE.shape
MULTIPLIER = 6364136223846793005


def words(tiles, tile=TILE):
    """Return a matrix of so many tiles, on the GPU."""
    values = np.arange(1, tiles * tile.size + 1, dtype=np.uint32)
    return cuda.to_device(values.reshape(tiles * tile.shape[0], tile.shape[1]))


def folded(tiles, consumers, tile=TILE):
    """Return what each consumer thread's fold of these tiles is."""
    folds = np.zeros(consumers, np.uint64)
    for t in tiles:
        folds = folds * np.uint64(MULTIPLIER) + np.uint64(t)
        content = np.arange(t * tile.size + 1, (t + 1) * tile.size + 1, dtype=np.uint64)
        for start in range(0, tile.size, consumers):
            part = content[start : start + consumers]
            folds[: part.size] = folds[: part.size] * np.uint64(MULTIPLIER) + part
    return folds


@cuda.jit(device=True)
def fold_tile(fold, t, tile, columns, size, consumers):
    """Fold the number and the words of a tile; a consumer takes every `consumers`-th word."""
    fold = fold * np.uint64(MULTIPLIER) + np.uint64(t)
    for i in range(cuda.threadIdx.x, size, consumers):
        fold = fold * np.uint64(MULTIPLIER) + np.uint64(tile[i // columns, i % columns])
    return fold
