"""The methods that acquire and release stages, which `releases` looks for in kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Handle:
    """The acquiring and releasing methods of a class; any other method may release every stage."""

    opens: tuple[str, ...] = ()  #: acquire one stage
    closes: tuple[str, ...] = ()  #: release one stage
    keeps: tuple[str, ...] = ()  #: do neither
    at_most_one: bool = False  #: a stage that is acquired again is the same, or releases the first
    hangs: str = "a producer that needs the stage again waits for ever"
    loop: str = "`for tile, stage in pipe.consume(...)`"  #: a loop that releases; empty: none


#: Methods of a consumer of K and V that neither wait nor release.
_LOOKS = (
    *("enters", "close", "step", "get", "get_k", "get_v", "get_tile", "get_k_tile", "get_v_tile"),
)
_OF_K, _OF_V, _OF_EITHER = ("wait_k", "release_k"), ("wait_v", "release_v"), ("wait", "release")


def _of_keys_or_values(own: tuple[str, str], *others: tuple[str, str]) -> Handle:
    """Return the waits and releases of K, of V, or of what the ring holds alone.

    A wait for the same tile may be repeated. `release_at` may release any tile.
    """
    opens, closes = own
    keeps = *_LOOKS, *(name for other in others for name in other if name != "release")
    return Handle((opens,), (closes, "release"), keeps, at_most_one=True, loop="")


def _of_products(opens: str, closes: str, *keeps: str) -> Handle:
    """Return an acquire and a commit of accumulators. The next acquire commits, too."""
    hangs, loop = (
        "the epilogue waits for the stage for ever",
        "`for tile, stage in out.produce(...)`",
    )
    return Handle((opens,), (closes,), keeps, at_most_one=True, hangs=hangs, loop=loop)


#: Handles by their class's name (the classes stand to the right of this layer): for each kind of
#: stage, the methods that acquire one. Also the classes through which stages may be released: a
#: handle's stages, and the objects from which a handle is obtained.
HANDLES: dict[str, tuple[Handle, ...]] = {
    "TileConsumer": (
        Handle(
            ("wait", "acquire", "wait_if_needed"),
            ("release",),
            ("store", "enters", "try_wait", "skip", "sync"),
        ),
    ),
    "ConsumerStage": (Handle(keeps=("enters", "tile", "get_tile")),),
    "TilePipelineHandle": (
        Handle(
            keeps=(
                *("enters", "is_producer", "is_consumer", "num_consumers", "producer", "consumer"),
                *("produce", "produce_from", "produce_windows", "store", "sync_consumers"),
                *("consumer_thread", "multicast_group", "indices", "vectors"),
            )
        ),
    ),
    "TMAConsumerPipeline": (
        _of_keys_or_values(_OF_K, _OF_V, _OF_EITHER),
        _of_keys_or_values(_OF_V, _OF_K, _OF_EITHER),
        Handle(("wait",), ("release", "release_k", "release_v"), _LOOKS, True, loop=""),
    ),
    "KVPipelineHandle": (Handle(keeps=("enters", "producer", "consumer")),),
    "StagedPipeline": (Handle(),),
    "OutputConsumer": (Handle(("acquire",), ("release",), ("store", "enters", "sync")),),
    "OutputProducer": (_of_products("acquire", "commit", "enters"),),
    "OutputStage": (Handle(keeps=("enters", "load", "store")),),
    "OutputTilePipelineHandle": (
        Handle(
            ("acquire_for_epilogue",),
            ("release_from_epilogue",),
            ("enters", "producer", "consumer", "acquire_for_mma", "release_from_mma", "produce"),
        ),
        _of_products(
            *("acquire_for_mma", "release_from_mma", "enters", "producer", "consumer", "consume"),
            *("acquire_for_epilogue", "release_from_epilogue"),
        ),
    ),
}
_OTHER = (Handle(),)


def handles_of(cls: type) -> tuple[Handle, ...]:
    """Return the kinds of stages that the methods of a class acquire or release."""
    ours = cls.__module__.partition(".")[0] == "numba_tma"
    return HANDLES.get(cls.__qualname__, _OTHER) if ours else _OTHER
