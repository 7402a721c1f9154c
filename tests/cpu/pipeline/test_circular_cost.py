"""The cost of a circular buffer beside a prologue, a body and an epilogue by hand."""

import functools
import heapq
import re

import pytest

from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels.circular_kernels import add_by_hand, circular_add
from tests.tiers import every

FORMS = every(3, [("sync", 0), ("mbarrier", 0), ("mbarrier", 1)])
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="no nvdisasm")


@functools.cache
def compiled(make, *args, cc=(9, 0, "a")):
    kernel, signature = make(*args)
    return compile_ptx(kernel, signature, cc=cc)


class Flow:
    """The control flow of a kernel's machine code, and the fewest instructions along it."""

    def __init__(self, ptx):
        self.code, labels = [], {}
        for line in sass(ptx).splitlines():
            if label := re.fullmatch(r"(\.L_x_\d+):", line.strip()):
                labels[label[1]] = len(self.code)
            elif found := re.match(r"\s*/\*[0-9a-f]{4}\*/\s+(\S.*?)\s*;", line):
                self.code.append(found[1])
        self.following = [list(self._after(i, labels)) for i in range(len(self.code))]

    def _after(self, i, labels):
        text = self.code[i]
        to = re.search(r"BRA.*`\((\.L_x_\d+)\)", text)
        always = not text.startswith("@") and "BRA.DIV" not in text
        if not (always and (to or text.startswith("EXIT"))) and i + 1 < len(self.code):
            yield i + 1
        if to:
            yield labels[to[1]]

    def fewest(self, start, end):
        """Return how many instructions are executed at least from `start` to the next `end`."""
        least, ahead = {}, [(1, i) for i in self.following[start]]
        while ahead:
            count, i = heapq.heappop(ahead)
            if i == end:
                return count
            if i not in least:
                least[i] = count
                for following in self.following[i]:
                    heapq.heappush(ahead, (count + 1, following))
        return None

    def iteration(self, loads):
        """Return the fewest instructions of an iteration: with its loads, or of other threads."""
        work = [i for i, text in enumerate(self.code) if text.startswith("LDS")]
        copies = [i for i, text in enumerate(self.code) if "UTMALDG" in text]
        for i in work:
            ways = [(self.fewest(i, copy), self.fewest(copy, i)) for copy in copies]
            ways = [sum(way) for way in ways if None not in way]
            if ways:  # an iteration of the body, not of the epilogue
                return max(ways) if loads else self.fewest(i, i)
        raise AssertionError("no loop loads and works")


def ptx_count(ptx):
    return sum(not line.endswith(":") for line in instructions(ptx))


@pytest.mark.parametrize(("war", "in_flight"), FORMS)
def test_it_has_less_code_and_no_more_registers_than_three_parts(war, in_flight):
    ours, hand = compiled(circular_add, war, in_flight), compiled(add_by_hand, war)
    assert ptx_count(ours) <= ptx_count(hand)
    registers = ptxas(ours).registers, ptxas(hand).registers
    assert registers[0] <= 1.02 * registers[1], registers


@needs_nvdisasm
@pytest.mark.parametrize("war", every(2, ["sync", "mbarrier"]))
@pytest.mark.parametrize("loads", [False, True], ids=["works", "loads"])
def test_an_iteration_is_within_2_percent_of_the_body_by_hand(war, loads):
    ours, hand = Flow(compiled(circular_add, war)), Flow(compiled(add_by_hand, war))
    counts = ours.iteration(loads), hand.iteration(loads)
    assert counts[0] <= 1.02 * counts[1], counts


@needs_nvdisasm
@pytest.mark.parametrize(("war", "in_flight"), FORMS)
def test_the_assembler_sees_that_one_thread_loads(war, in_flight):
    """Else it puts a loop over the threads of the warp round each copy."""
    assert "BRA.U.ANY" not in sass(compiled(circular_add, war, in_flight))


@pytest.mark.parametrize(("war", "in_flight"), FORMS)
@pytest.mark.parametrize(
    "cc", every(2, [((9, 0, "a"),), ((10, 0, "a"),)]), ids=["sm_90a", "sm_100a"]
)
def test_nothing_is_spilled(war, in_flight, cc):
    text = compiled(circular_add, war, in_flight, cc=cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [line for line in instructions(text) if ".local" in line] == []
