"""docs/guide/recipes.md: its blocks compute what they check themselves."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs/guide/recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMPILED = [block for block in BLOCKS if "tma.testing." in block]
SIMULATED = [block for block in BLOCKS[1:] if block not in COMPILED]


@pytest.fixture(scope="module")
def names():
    found = {"__name__": "page"}
    exec(compile(BLOCKS[0], "recipes.md", "exec"), found)
    return found


def test_there_are_blocks_to_run():
    assert len(COMPILED) == 2 and len(SIMULATED) == len(BLOCKS) - 3 >= 6


@pytest.mark.parametrize("block", SIMULATED, ids=[re.search(r"def (\w+)", b)[1] for b in SIMULATED])
def test_a_block_computes_what_it_checks(block, names):
    assert "np.testing.assert" in block or "\nassert " in block
    exec(compile(block, "recipes.md", "exec"), names)
