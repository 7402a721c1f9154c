"""The cost of each kind of ring beside the same protocol by hand, in instructions."""

import re

import pytest

from numba_tma.tools.testing import find_tool, instructions, ptxas, sass
from tests.kernels.ring_twins import TWINS, compiled
from tests.tiers import every

SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")


def ptx_count(text):
    return sum(not line.endswith(":") for line in instructions(text))


def machine_count(text):
    """Count machine instructions, less the padding at the end."""
    code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(text), re.M)
    return sum(not instruction.startswith("NOP") for instruction in code)


def registers(text):
    return ptxas(text).registers


@pytest.mark.parametrize("name", every(6, TWINS))
def test_a_ring_is_within_2_percent_of_its_twin_by_hand(name):
    ours, hand = compiled(name, SM_90A), compiled(name, SM_90A, by_hand=True)
    counts = {"PTX instructions": ptx_count, "registers": registers}
    if find_tool("nvdisasm") is not None:
        counts["machine instructions"] = machine_count
    for what, count in counts.items():
        mine, twin = count(ours), count(hand)
        assert mine <= 1.02 * twin, f"{mine} {what} with TilePipeline, {twin} by hand"


@pytest.mark.parametrize("cc", every(2, [(SM_90A,), (SM_100A,)]), ids=["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", every(6, TWINS))
def test_nothing_of_a_ring_is_spilled(name, cc):
    text = compiled(name, cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [
        line for line in instructions(text) if ".local" in line or line.startswith("call")
    ] == []


def traffic(text):
    """Return the instructions that talk to barriers and to the copy engine, in order of name."""
    protocol = r"(mbarrier|cp\.async|mapa|elect|setmaxnreg|fence|barrier\.cluster)[\w.:]*"
    said = sorted(found[0] for line in instructions(text) if (found := re.match(protocol, line)))
    waits = [name for name in said if "try_wait" in name]
    return [name for name in said if name not in waits], waits


@pytest.mark.parametrize("name", every(6, TWINS))
def test_a_ring_and_its_twin_say_the_same_to_the_barriers(name):
    (ours, waits), (hand, waits_by_hand) = (
        traffic(compiled(name, SM_90A, by_hand=by_hand)) for by_hand in (False, True)
    )
    assert ours == hand
    # In a cluster the producer's last waits, one for each stage, stay the loop that they are.
    assert set(waits) == set(waits_by_hand)
    assert waits == waits_by_hand or (
        name.startswith("cluster") and len(waits) < len(waits_by_hand)
    )
