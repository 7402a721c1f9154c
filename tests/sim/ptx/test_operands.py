"""What the simulator says of an operand that an instruction cannot take, for every row."""

import itertools

import numpy as np
import pytest

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

SHARED = {
    "BarrierAddress": "takes a Barrier (or its shared-memory address)",
    "TileAddress": "takes a tile in shared memory",
}
INTEGERS = ("u16", "u32", "i32", "u64", "ClusterAddress", "TensorMemoryAddress")
INTEGERS += ("Immediate", "RegisterCount", "ScaleExponent")


def expected(row, name):
    """Return what the row takes for an operand, and what it does not; None: of any class."""
    kind = row.operands[name]
    if name in row.choices:
        one_of = ", ".join(map(repr, row.choices[name]))
        return f"is part of the instruction: one of {one_of}", row.choices[name], ["what", -1]
    if kind in INTEGERS:
        return f"takes an integer ({kind})", (0, np.uint32(7), True), [1.5, "1", (1,)]
    if kind == "CacheHint":
        policies = (1 << 60, tma.CachePolicy.EVICT_FIRST)
        return "takes a CachePolicy or a createpolicy result", policies, ["evict_first", 0.5]
    if kind in SHARED:
        return SHARED[kind], (0, np.uint64(64)), [0.5, "tile", object()]
    return None


CHECKED = [
    (row, name) for row in ptx.TABLE.values() for name in row.operands if expected(row, name)
]


def refusal(row, name, given):
    """Return the error of a call with this operand alone, mostly that the others are missing."""
    try:
        return str(getattr(ptx, row.name)(**{name: given}))
    except (sim.SimulatorError, RuntimeError, TypeError) as error:
        return str(error)


def test_every_row_refuses_operands_of_another_kind():
    assert len(CHECKED) > 600
    for row, name in CHECKED:
        text, accepted, wrong = expected(row, name)
        begins = f"{row.name}({name}=...) {text}, not "
        nothing = [] if row.is_optional(name) else [None]
        for given in (*wrong, *nothing):
            assert refusal(row, name, given) == f"{begins}{given!r}"
        for given in (*accepted, *([None] if row.is_optional(name) else ())):
            assert begins not in refusal(row, name, given)


def test_operands_are_checked_by_position():
    for row, name in CHECKED:
        before = itertools.takewhile(name.__ne__, row.operands)
        given = [value[1][0] if (value := expected(row, n)) else object() for n in before]
        with pytest.raises(sim.BadOperand) as caught:
            getattr(ptx, row.name)(*given, "wrong")
        assert str(caught.value).startswith(f"{row.name}({name}=...) ")


class Other:
    """What has the place of something else in shared memory."""

    def __init__(self, shared_kind):
        self.shared_kind = shared_kind


def test_a_barrier_is_no_tile_and_a_tile_no_barrier():
    kinds = {"BarrierAddress": "barrier", "TileAddress": "tile"}
    for row, name in CHECKED:
        if kind := kinds.get(row.operands[name]):
            other = next(iter({*kinds.values()} - {kind}))
            assert SHARED[row.operands[name]] in refusal(row, name, Other(other))
            assert SHARED[row.operands[name]] not in refusal(row, name, Other(kind))
            array = refusal(row, name, np.zeros(4))
            assert (SHARED[row.operands[name]] in array) == (kind == "barrier")


APART = [(row, pair) for row in ptx.TABLE.values() for pair in row.apart]


@pytest.mark.parametrize(
    ("row", "pair"), APART, ids=[f"{row.name}-{'-'.join(pair)}" for row, pair in APART]
)
def test_what_ptx_does_not_take_together_is_refused(row, pair):
    given = {}
    for tag in pair:
        choice = [name for name, values in row.choices.items() if tag in values]
        operand = choice[0] if choice else tag
        given[operand] = tag if choice else row.choices.get(tag, [1])[0]
    with pytest.raises(sim.BadOperand) as caught:
        getattr(ptx, row.name)(**given)
    assert str(caught.value) == (
        f"{row.name}: PTX does not take {pair[0]} together with {pair[1]}: leave one out"
    )
    for name in given:  # one of them alone is legal, and so is None for the other
        with pytest.raises(TypeError, match="missing"):
            getattr(ptx, row.name)(**given | {name: None} if row.is_optional(name) else {})


def test_some_rows_have_operands_apart():
    assert len(APART) >= 10
