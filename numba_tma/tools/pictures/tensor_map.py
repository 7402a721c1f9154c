"""A tensor map: the tiles that cover its array, and what reaches outside."""

from __future__ import annotations

import math

from numba_tma.host.tensor_map import TensorMap
from numba_tma.tools.pictures.svg import HUES, Picture, size_of

_WIDTH, _HEIGHT, _TILES = 420, 220, 24


def draw(tensor_map: TensorMap) -> str:
    """Draw the last two axes of the array, with one tile filled and the margin dashed."""
    shape, box, tile = tensor_map.shape, tensor_map.box, tensor_map.tile
    made = Picture(f"TensorMap of {tensor_map.dtype}, shape {shape}, tile {tile}")
    outside = f"and reads {tensor_map.oob_fill} outside"
    made.text(0, 8, f"a load brings {size_of(tile.nbytes)}, {outside}")
    if len(box) != len(shape):
        made.text(0, 26, f"mode {tensor_map.mode}: explain() says what a copy takes")
        return made.html()
    counts = [math.ceil(extent / step) for extent, step in zip(shape, box)]
    covers = " x ".join(map(str, counts))
    made.text(0, 26, f"{covers} tiles of {' x '.join(map(str, box))} elements cover the array")
    rows, columns = (1, *shape)[-2:]
    high, wide = (1, *box)[-2:]
    down, across = (1, *counts)[-2:]
    scale = min(_WIDTH / (across * wide), _HEIGHT / (down * high))
    x_scale = max(scale, 8 / wide if across <= _TILES else 0, 40 / (across * wide))
    y_scale = max(scale, 8 / high if down <= _TILES else 0, 20 / (down * high))
    left, top = 4, 42
    if down * across <= _TILES * _TILES and down <= _TILES and across <= _TILES:
        for i in range(down):
            for j in range(across):
                place = (left + j * wide * x_scale, top + i * high * y_scale)
                end = ", ".join(f"{n * step}" for n, step in zip((i, j), (high, wide)))
                hue = HUES[0] if i == j == 0 else "none"
                reaches = (i + 1) * high > rows or (j + 1) * wide > columns
                tip = f"tile at ({end})" + ", a part of it outside" * reaches
                made.area(*place, wide * x_scale, high * y_scale, hue, tip, dashed=reaches)
    else:
        made.area(left, top, wide * x_scale, high * y_scale, HUES[0], "the first tile")
    made.area(left, top, columns * x_scale, rows * y_scale, tip=f"{rows} x {columns} elements")
    margin = down * high - rows, across * wide - columns
    if any(margin):
        under = top + down * high * y_scale + 14
        made.text(0, under, f"outside: {margin[0]} rows and {margin[1]} columns of the last tiles")
    return made.html()
