"""Variables that pass stages on: registers, at the cost of variables that pass tiles on."""

import functools

import numpy as np
import pytest
from numba import types

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.ptx_arithmetic import SHARED_WINDOW
from tests.ptx_machine import Machine
from tests.tiers import every

TILE = tma.Tile((1, 32), "f32")
PIPE = tma.TilePipeline(5, x=TILE)
SIGNATURE = tma.map_type(TILE), types.float32[:, ::1], types.int64

#: What a consumer does: a variable gets WAIT, or HERE in a loop over stages, and `@` is its tile.
FORMS = {
    "rotated": """
below, here = WAIT, WAIT
for t in range(n - 2):
    above = WAIT
    y[t, i] = below@[0, i] + here@[0, i] + above@[0, i]
    consumer.release()
    below = here
    here = above
consumer.release()
consumer.release()
""",
    "swapped in chunks": """
for chunk in range(n):
    below, here = WAIT, WAIT
    for t in range(n - 2):
        above = WAIT
        for j in range(4):
            y[t + j, i] = below@[0, i] + here@[0, i] + above@[0, i]
        consumer.release()
        below, here = here, above
    consumer.release()
    consumer.release()
""",
    "waited for at the end of a turn": """
here = WAIT
for t in range(n):
    here@[0, i] += 1
    y[t, i] = here@[0, 31 - i]
    consumer.release()
    if t + 1 < n:
        here = WAIT
consumer.release()
""",
    "a tuple": """
held = WAIT, WAIT
for t in range(n - 2):
    above = WAIT
    y[t, i] = held[0]@[0, i] + held[1]@[0, i] + above@[0, i]
    consumer.release()
    held = held[1], above
""",
    "one of two": """
here = WAIT
if n > 1:
    consumer.release()
    here = WAIT
y[0, i] = here@[0, i]
consumer.release()
""",
    "of a loop": """
below = WAIT
for t, stage in pipe.consume(1, n, in_flight=1):
    y[t, i] = below@[0, i] + stage.x[0, i]
    below = HERE
""",
}


@functools.cache
def compiled(form, of_tiles):
    tile, rest = (".x", "") if of_tiles else ("", ".x")
    body = FORMS[form].replace("WAIT", f"consumer.wait(){tile}").replace("HERE", f"stage{tile}")
    lines = "\n".join(f"        {line}" for line in body.replace("@", rest).strip().splitlines())
    names = {"PIPE": PIPE}
    exec(
        f"""
def kernel(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t, 0), stage.barrier)
    else:
        consumer, i = pipe.consumer(), pipe.consumer_thread()
{lines}
    pipe.close()
""",
        names,
    )
    return compile_ptx(names["kernel"], SIGNATURE)


@pytest.mark.parametrize("form", every(3, FORMS))
def test_variables_of_stages_are_registers(form):
    stages, tiles = compiled(form, of_tiles=False), compiled(form, of_tiles=True)
    assert ptxas(stages).stack_frame == ptxas(tiles).stack_frame == 0
    assert [line for line in instructions(stages) if ".local" in line] == []
    assert len(instructions(stages)) <= 1.03 * len(instructions(tiles))


@pytest.mark.parametrize("form", ["rotated", "a tuple"])
def test_a_turn_has_the_stages_of_those_before(form):
    y, n = np.zeros((12, 32), np.float32), 12
    machine = Machine(compiled(form, False), bytes(128), y, n, block=(64, 1, 1))
    for stage in range(PIPE.num_stages):
        place = SHARED_WINDOW + machine.shared[-1] + stage * TILE.nbytes
        machine.poke(place, np.float32(10**stage).tobytes())
    machine.run(0)
    sums = [sum(10 ** ((t + d) % PIPE.num_stages) for d in range(3)) for t in range(n - 2)]
    assert y[:, 0].tolist() == [*sums, 0, 0]
