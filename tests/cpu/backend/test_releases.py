"""Forgotten releases: the compile-time errors, and correct kernels without one."""

from __future__ import annotations

import linecache
import re
import textwrap

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

from numba_tma import Tile, TilePipeline, pipeline
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.backend.numba_cuda import handles, releases
from numba_tma.tools.testing import compile_ptx
from tests.gpu.pipeline import test_pipeline as gpu_pipeline

TILE = Tile((16, 64), "f32")
PIPE, OTHER = TilePipeline(3, x=TILE), TilePipeline(2, y=TILE)
SIGNATURE = (types.int64, types.boolean, types.int64[::1])
CONSUMER = "pipe.consumer()"  # how a kernel gets at the handle

HEAD = "def kernel(n, flag, out):\n    pipe = PIPE.start()"


@cuda.jit(device=True, forceinline=True)
def hand_back(consumer):
    consumer.release()


@cuda.jit(device=True, forceinline=True)
def take(consumer):
    return consumer.wait().index


@cuda.jit(device=True, forceinline=True)
def close_it(pipe):
    pipe.close()


@cuda.jit(device=True, forceinline=True)
def look_at(stage):
    return stage.index


def kernel(body):
    """Return a kernel of the statements `body`, in which C is the consumer; it begins at line 3."""
    head = HEAD + ("; other = OTHER.start()\n" if "D." in body else "\n")
    source = head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    source = re.sub(r"\bD\b", CONSUMER.replace("pipe", "other"), re.sub(r"\bC\b", CONSUMER, source))
    linecache.cache["<kernel>"] = (len(source), None, source.splitlines(True), "<kernel>")
    namespace = dict(globals())
    exec(compile(source, "<kernel>", "exec"), namespace)
    return namespace["kernel"]


def message(function, signature=SIGNATURE):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(function, signature)
    return re.sub(r"\s+", " ", str(caught.value))


# ---------------------------------------------------------------------------- reported

NEVER = r"that no pipe.consumer\(\).release\(\) follows"

WRONG = {
    "no release": (
        "C.wait()\nout[0] = n",
        rf"line 3: pipe.consumer\(\).wait\(\) acquires a stage {NEVER}",
    ),
    "no release in a loop": ("for k in range(n):\n    stage = C.wait()", f"line 4: .* {NEVER}"),
    "on one side": ("if flag:\n    C.wait()", f"line 4: .* {NEVER}"),
    "released before": ("C.wait()\nC.release()\nC.wait()", f"line 5: .* {NEVER}"),
    "one of two": (
        "C.wait()\nC.wait()\nC.release()",
        r"line 4: .* acquires one stage more than pipe.consumer\(\).release\(\) releases after it",
    ),
    "another's release": (
        "C.wait()\nD.wait()\nD.release()",
        f"line 3: .* {NEVER}",
    ),
    "continue": (
        """
        for k in range(n):
            C.wait()
            if k == 3:
                continue
            C.release()
        """,
        "line 4: .* is not released when the `if` at line 5 is taken "
        r"\(the `continue` at line 6\)",
    ),
    "break": (
        """
        for k in range(n):
            C.wait()
            if out[k] > 3 and flag:
                out[k] = 1
                break
            C.release()
        """,
        "line 4: .* is not released when the `if` at line 5 is taken",
    ),
    "return": (
        """
        for k in range(n):
            C.wait()
            if flag:
                return
            C.release()
        """,
        r"when the `if` at line 5 is taken \(the `return` at line 6\)",
    ),
    "not taken": (
        """
        while out[0] < n:
            C.wait()
            out[0] += 1
            if flag:
                C.release()
        """,
        "line 4: .* when the `if` at line 6 is not taken",
    ),
    "else": (
        """
        for k in range(n):
            C.wait()
            if not flag:
                C.release()
            else:
                out[k] = 0
        """,
        "line 4: .* when the `if` at line 5 is not taken",
    ),
    "elif": (
        """
        C.wait()
        if n > 5:
            C.release()
        elif n > 3:
            out[0] = 1
        else:
            C.release()
        """,
        "line 3: .* when the `elif` at line 6 is taken",
    ),
    "a loop that may not run is no excuse for its break": (
        """
        for k in range(n):
            C.wait()
            for j in range(3):
                if out[j] == k:
                    return
            C.release()
        """,
        r"when the `if` at line 6 is taken \(the `return` at line 7\)",
    ),
    "after a loop that releases by itself": (
        """
        for k, stage in pipe.consume(0, n):
            out[k] = stage.index
        C.wait()
        """,
        f"line 5: .* {NEVER}",
    ),
    "within a role": (
        """
        if pipe.is_producer():
            out[0] = 1
        else:
            pipe.sync_consumers()
            stage = C.wait()
            out[1] = stage.index
        """,
        f"line 7: .* {NEVER}",
    ),
}


@pytest.mark.parametrize(("body", "expected"), WRONG.values(), ids=WRONG)
def test_a_stage_that_is_never_handed_back(body, expected):
    text = message(kernel(body))
    assert re.search(expected, text), text
    assert re.search(
        r"; a producer that needs the stage again waits for ever. "
        r"Call pipe.consumer\(\).release\(\) "
        r"(after its use|on that way too|once for each), or let "
        r"`for tile, stage in pipe.consume\(...\)` do it",
        text,
    )
    assert re.search(r'File "<kernel>", line \d+', text)


def test_a_handle_by_a_name_of_its_own():
    def named(n, flag, out):
        consumer = PIPE.start().consumer()
        consumer.wait()

    assert "consumer.wait() acquires a stage that no consumer.release() follows" in message(named)


def test_within_a_device_function():
    @cuda.jit(device=True)
    def whole(n):
        pipe = PIPE.start()
        for _ in range(n):
            pipe.consumer().wait()

    def calls(n, flag, out):
        whole(n)

    assert re.search(f"acquires a stage {NEVER}", message(calls))


# ------------------------------------------------------------------------------- silent

RIGHT = {
    "a pair": "C.wait()\nC.release()",
    "in a loop": """
        for k in range(n):
            stage = C.wait()
            out[k] = stage.index
            C.release()
        """,
    "a turn late": """
        for k in range(n):
            C.wait()
            if k > 0:
                C.release()
        C.release()
        """,
    "a turn late, and only then at the end": """
        for k in range(n):
            C.wait()
            if k > 0:
                C.release()
        if n > 0:
            C.release()
        """,
    "a turn late, released first": """
        for k in range(n):
            if k >= 1:
                C.release()
            C.wait()
        if n >= 1:
            C.release()
        """,
    "two late": """
        for k in range(n):
            C.wait()
            if k > 1:
                C.release()
        for k in range(min(n, 2)):
            C.release()
        """,
    "the first before the loop": """
        C.wait()
        for k in range(1, n):
            C.wait()
            C.release()
        C.release()
        """,
    "under the same condition": """
        if flag:
            C.wait()
        out[0] = 1
        if flag:
            C.release()
        """,
    "under conditions that exclude each other": """
        C.wait()
        if n > 3:
            C.release()
        if n <= 3:
            C.release()
        """,
    "on both sides": """
        for k in range(n):
            C.wait()
            if flag:
                C.release()
                continue
            out[k] = 1
            C.release()
        """,
    "before each way out": """
        for k in range(n):
            C.wait()
            if flag:
                C.release()
                break
            if out[k] > 3:
                C.release()
                return
            C.release()
        """,
    "after the break": """
        k = 0
        while True:
            C.wait()
            k += 1
            if k == n:
                break
            C.release()
        C.release()
        """,
    "the rest when the pipeline closes": """
        for k in range(n):
            C.wait()
            if k > 0:
                C.release()
        pipe.close()
        """,
    "release_pending": "C.wait()\nC.wait()\npipe.release_pending()",
    "a loop of the pipeline": "C.wait()\nfor k, s in pipe.consume(0, n):\n    out[k] = s.index",
    "the loop of a pipeline, left": """
        for k, stage in pipe.consume(0, n):
            if flag:
                break
        """,
    "in the step of a loop": """
        for k, stage in pipe.consume(0, n, 1, in_flight=1):
            C.wait()
        """,
    "of two pipelines": """
        for k in range(n):
            C.wait()
            D.wait()
            D.release()
            C.release()
        """,
    "by a device function": "C.wait()\nhand_back(C)",
    "waited for by a device function": "out[0] = take(C)\nC.release()",
    "by a device function that is given the pipeline": "C.wait()\nclose_it(pipe)",
    "by name": "consumer = C\nconsumer.wait()\nalias = consumer\nalias.release()",
    "by either of two handles": """
        same = pipe
        C.wait()
        handle = pipe.consumer() if flag else same.consumer()
        handle.release()
        """,
    "through a tuple": "both = (C, 1)\nboth[0].wait()\nboth[0].release()",
    "the stage is passed on": "stage = C.wait()\nout[0] = look_at(stage)\nC.release()",
    "a loop without an end": """
        while True:
            C.wait()
            out[0] += 1
        """,
    "an error": """
        C.wait()
        if flag:
            raise ValueError
        C.release()
        """,
    "a side that is not compiled": """
        C.wait()
        if PIPE is None:
            return
        C.release()
        """,
    "the producer's acquire": """
        if pipe.is_producer():
            stage = pipe.producer().acquire()
            out[0] = stage.index
        """,
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_is_handed_back_or_may_be_is_left_alone(body):
    compile_ptx(kernel(body.replace("pipe.consumer()", "C")), SIGNATURE)


def test_a_handle_that_is_an_argument_is_its_callers_affair():
    """`take` waits and does not release."""
    compile_ptx(kernel("out[0] = take(C)\nout[1] = take(C)\nC.release()"), SIGNATURE)


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_kernels_of_the_other_tests_are_silent(stages):
    tile_map = TensorMapType(2, gpu_pipeline.TILE)
    explicit, broken = gpu_pipeline.explicit_kernel(stages), gpu_pipeline.fold_after_break
    folds = types.uint64[::1]
    compile_ptx(explicit, (tile_map, types.int64, folds, types.int32[::1]))
    compile_ptx(broken, (tile_map, types.int64, types.int64, folds))


# ----------------------------------------------------------------------------- the table


def test_the_table_names_what_exists():
    for name, kinds in handles.HANDLES.items():
        cls = getattr(pipeline, name)
        assert cls.__qualname__ == name
        for method in (m for h in kinds for m in (*h.opens, *h.closes, *h.keeps)):
            assert hasattr(cls, method), (name, method)


def test_kernels_without_handles_are_not_looked_at(monkeypatch):
    looked_at, flow = [], releases._Flow

    def noted(state, watched, handle):
        looked_at.append(state.func_id.func)
        return flow(state, watched, handle)

    monkeypatch.setattr(releases, "_Flow", noted)

    def plain(n, flag, out):
        pipe = PIPE.start()
        for k, stage in pipe.consume(0, n):
            out[k] = np.int64(stage.index)

    compile_ptx(plain, SIGNATURE)
    assert plain not in looked_at  # bodies are, if no test before has compiled them
