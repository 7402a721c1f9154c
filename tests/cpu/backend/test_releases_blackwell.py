"""Forgotten commits and releases of Blackwell's pipelines: errors when a kernel is compiled."""

import linecache
import re
import textwrap

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx
from tests.tiers import quick

W = tma.Warps
ROLES = tma.Roles(epilogue=W(4), mma=W(1), load=W(1))
TILE = tma.Tile((16, 64), "bf16")
RING = {"producer": ROLES.load, "consumer": ROLES.mma, "released_by": "tcgen05"}
NAMES = {
    "PIPE": tma.TilePipeline(2, a=TILE, **RING),
    "KV": tma.KVPipeline(3, 32, 128, "bf16", 2, **RING),
    "OUT": tma.OutputTilePipeline(
        2, tma.Tile((128, 32), "f32"), mma=ROLES.mma, epilogue=ROLES.epilogue, memory="tensor"
    ),
}
HEAD = """\
def kernel(n, flag, out):
    pipe, kv, acc = PIPE.start(), KV.start(), OUT.start()
    consumer, works, products, epilogue = (
        pipe.consumer(), kv.consumer(), acc.producer(), acc.consumer()
    )
"""


def compiled(body):
    """Compile a kernel of the statements `body`, which begins at line 6."""
    source = HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    linecache.cache["<kernel>"] = (len(source), None, source.splitlines(True), "<kernel>")
    namespace = dict(NAMES)
    exec(compile(source, "<kernel>", "exec"), namespace)
    signature = (types.int64, types.boolean, types.uint64[::1])
    return compile_ptx(namespace["kernel"], signature, cc=(10, 0, "a"))


PRODUCER_WAITS = "a producer that needs the stage again waits for ever. "
EPILOGUE_WAITS = "the epilogue waits for the stage for ever. "
WRONG = {
    "a ring that commits release": (
        "for k in range(n):\n    stage = consumer.wait()\n    out[k] = stage.index",
        "line 7: consumer.wait() acquires a stage that no consumer.release() follows; "
        + PRODUCER_WAITS
        + "Call consumer.release() after its use, or let `for tile, stage in pipe.consume(...)`",
    ),
    "K": (
        "for k in range(n):\n    works.wait_k()\n    out[k] = works.get_k().value",
        "line 7: works.wait_k() acquires a stage that no works.release_k() follows; "
        + PRODUCER_WAITS
        + "Call works.release_k() after its use",
    ),
    "V beside a released K": (
        """
        for k in range(n):
            works.wait_k()
            out[k] = works.get_k().value
            works.release_k()
            works.wait_v()
            works.step()
        """,
        "line 10: works.wait_v() acquires a stage that no works.release_v() follows; "
        + PRODUCER_WAITS
        + "Call works.release_v() after its use",
    ),
    "K where a branch returns": (
        """
        for k in range(n):
            works.wait_k()
            if flag:
                return
            works.release_k()
        """,
        "line 7: works.wait_k() acquires a stage that is not released when the `if` at line 8 is "
        "taken (the `return` at line 9); "
        + PRODUCER_WAITS
        + "Call works.release_k() on that way too",
    ),
    "either, waited for by `wait`": (
        "works.wait(1)\nout[0] = works.get().value",
        "line 6: works.wait() acquires a stage that no works.release() follows",
    ),
    "an accumulator": (
        "for k in range(n):\n    out[k] = products.acquire().address",
        "line 7: products.acquire() acquires a stage that no products.commit() follows; "
        + EPILOGUE_WAITS
        + "Call products.commit() after its use, or let `for tile, stage in out.produce(...)` do",
    ),
    "an accumulator, explicitly": (
        "out[0] = acc.acquire_for_mma().address",
        "line 6: acc.acquire_for_mma() acquires a stage that no acc.release_from_mma() follows; "
        + EPILOGUE_WAITS,
    ),
    "an accumulator of the epilogue": (
        "out[0] = epilogue.acquire().address",
        "line 6: epilogue.acquire() acquires a stage that no epilogue.release() follows",
    ),
}


@pytest.mark.parametrize(
    "name", quick(["a ring that commits release", "V beside a released K", "an accumulator"], WRONG)
)
def test_a_forgotten_release_or_commit(name):
    body, expected = WRONG[name]
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compiled(body)
    assert expected in re.sub(r"\s+", " ", str(caught.value))


RIGHT = {
    "waited for again, since no release has stepped": """
        for k in range(n):
            works.wait_k()
            if flag:
                continue
            works.release_k()
        """,
    "released later": """
        for k in range(n):
            works.wait_k()
            left = works.step()
            works.wait_v()
            works.release_v()
            works.release_at(left)
        """,
    "waited for by two products": """
        works.wait_k()
        out[0] = works.get_k().value
        works.wait_k()
        works.release_k()
        """,
    "in sub-stages": """
        for part in range(2):
            works.wait_k(part)
        for part in range(2):
            works.release_k(part)
        """,
    "in sub-stages, in a row": """
        works.wait_k(0)
        works.wait_k(1)
        works.release_k(0)
        works.release_k(1)
        """,
    "of either kind": "works.wait(1)\nworks.release(1)\nworks.wait_v()\nworks.release_v()",
    "by the pipeline": """
        works.wait_k()
        works.pipeline.consumer_release()
        """,
    "by the next acquire and close": """
        for k in range(n):
            out[k] = products.acquire().address
        products.close()
        """,
    "by the pipeline's close": "out[0] = acc.acquire_for_mma().address\nacc.close()",
    "with an election": """
        stage = acc.acquire_for_mma()
        acc.release_from_mma(stage, flag)
        """,
    "a commit of the ring": "stage = consumer.wait()\nconsumer.release()",
}


@pytest.mark.parametrize("name", quick(["released later", "waited for by two products"], RIGHT))
def test_what_is_released_is_left_alone(name):
    compiled(RIGHT[name])
