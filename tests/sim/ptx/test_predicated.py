"""Loads and stores with a condition: a false one leaves memory alone, and a load has zeros."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx, simulator

CONDITIONAL = [
    name
    for name, row in ptx.TABLE.items()
    if "condition" in row.operands and name.startswith(("ld_", "st_"))
]
WORDS = (1, 2, 3, 4)


def executed(name, number, **options):
    """Return the result of an access at byte `number` of 16 words of 9, and the words after it."""
    memory, found = np.full(16, 9, np.uint32), []
    count = int(name[name.index("_v") + 2]) if "_v" in name else 1
    values = [WORDS[:count] if count > 1 else WORDS[0]] * name.startswith("st_")

    def kernel():
        start = memory.ctypes.data
        if "shared" in name:
            start = simulator.allocate_shared("space", 64, 16)
            simulator.shared_write(start, memory)
        found.append(getattr(ptx, name)(start + number, *values, **options))
        if "shared" in name:
            for i in range(0, 16, 4):
                memory[i : i + 4] = ptx.ld_shared_v4_u32(start + 4 * i)

    cuda.jit(kernel)[1, 1]()
    return found[0], memory


@pytest.mark.parametrize("name", CONDITIONAL)
def test_an_access_whose_condition_is_false_is_none(name):
    for number, options in ((1, {}), (0, {"offset": 1 << 20})):  # no word has such an address
        result, memory = executed(name, number, **options, condition=False)
        assert (memory == 9).all()
        assert result is None if name.startswith("st_") else not np.any(result)


@pytest.mark.parametrize("name", CONDITIONAL)
@pytest.mark.parametrize("options", [{"condition": True}, {}], ids=["true", "without"])
def test_an_access_whose_condition_is_true_is_at_the_offset(name, options):
    result, memory = executed(name, 0, offset=16, **options)
    if name.startswith("st_"):
        assert memory[4] != 9 and (np.delete(memory, range(4, 8)) == 9).all()
    else:
        assert np.all(np.equal(result, 9)) and (memory == 9).all()
