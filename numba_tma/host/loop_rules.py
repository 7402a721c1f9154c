"""Rules of loops over stages that compiler and simulator check alike: their sentences."""

from __future__ import annotations

#: Methods that begin a loop over stages, which whole warps enter, and their side of the pipeline.
LOOPS = {
    "produce": "produce",
    "produce_from": "produce",
    "produce_windows": "produce",
    "consume": "consume",
    "consume_from": "consume",
    "windows": "consume",
}

#: Methods of roles, named barriers and pipelines at which whole warps meet.
MEETINGS = ("sync", "sync_consumers")


#: The error of a kernel in which the same threads produce and consume.
BOTH_SIDES = (
    "the same threads execute produce and consume of one pipeline: put produce under "
    "`if pipe.is_producer():` and consume under `elif pipe.is_consumer():`"
)


#: The error of a kernel with scopes that nothing rewrites.
WITHOUT_SCOPES = (
    "a `with` scope of a pipeline needs @tma.scopes: put it on the kernel or device function, "
    "below @cuda.jit"
)


def nested_refusal(called: str, loop: str) -> str:
    """Return the error of a call that needs a whole warp, where one elected thread executes it."""
    return (
        f"{called} is called in the body of a {loop} loop, which one elected thread executes, but "
        f"{called} needs all lanes of the warp: call it outside of the loop; load the tiles of two "
        "pipelines in the body of one loop, or acquire the other's stage by "
        "pipe.producer().acquire()"
    )


#: The error of a loop over a window.
NOT_A_SEQUENCE = (
    "a window cannot be iterated over: iterate over its distances, as in `for d in range(-1, 2): "
    "window[d].x`"
)


def starts_again(pipeline: object) -> bool:
    """Return whether a loop may start a pipeline again, because its `close` ends its barriers."""
    return bool(getattr(pipeline, "ends_barriers", False))


def restart_refusal(pipeline: object) -> str:
    """Return the error of a pipeline that a loop starts again."""
    return (
        f"start() of {pipeline} is in a loop: it would initialise mbarriers again that copies and "
        "waits still use; call it once, before the loop (the handle's state goes on from one loop "
        "over tiles to the next)"
    )


def role_refusal(called: str, pipeline: object, role: str) -> str:
    """Return the error of a thread that executes a loop of a role that it does not have."""
    return (
        f"{called} of {pipeline} is executed by a thread that is no {role}: put it under "
        f"`if pipe.is_{role}():` (a plain `else` takes in the threads of every other role)"
    )
