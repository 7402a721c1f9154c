"""Payloads, which name the tiles that a stage of a matmul's `TilePipeline` holds."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import constant_class
from numba_tma.host.annotations import DTypeLike
from numba_tma.host.layout import Tile
from numba_tma.host.scale_factors import scale_tile


@constant_class
@dataclass(frozen=True)
class StandardTilePayload:
    """The tiles of a matmul: a stage holds one of `a` and one of `b`."""

    a: Tile
    b: Tile


@constant_class
@dataclass(frozen=True)
class BlockScaledTilePayload:
    """The tiles of a matmul with block scales: `sfa` and `sfb` are the scales of `a` and `b`."""

    a: Tile
    b: Tile
    sfa: Tile
    sfb: Tile

    @classmethod
    def of(
        cls,
        a: Tile,
        b: Tile,
        format: str | None = None,
        *,
        dtype: DTypeLike = "ue8m0",
        block: int = 32,
    ) -> BlockScaledTilePayload:
        """Return the payload of K-major tiles a and b, whose scales are in atoms (`scale_tile`).

        Parameters
        ----------
        a, b
            Tiles of shape (M, K) and (N, K).
        format, dtype, block
            The scales, as `scale_tile` takes them: ``"mxfp8"``, or their type and the elements of
            each.

        Examples
        --------
        >>> tile = Tile((128, 128), "e4m3")
        >>> BlockScaledTilePayload.of(tile, tile, "mxfp8").sfa
        Tile((1, 1, 2, 256), ue8m0, NONE)
        """
        for name, tile in (("a", a), ("b", b)):
            if not isinstance(tile, Tile) or tile.ndim != 2:
                raise TypeError(
                    f"BlockScaledTilePayload.of({name}={tile!r}): a tile of two axes, rows and K, "
                    "whose scales are made; give those of another tile as sfa and sfb"
                )
        sfa, sfb = (
            scale_tile(tile.shape[0], tile.shape[1], format, dtype=dtype, block=block)
            for tile in (a, b)
        )
        return cls(a, b, sfa, sfb)
