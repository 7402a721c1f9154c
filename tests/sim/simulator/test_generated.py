"""The simulator's verdict on generated kernels, and their results against NumPy's."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.generated import halves
from tests.generated.cases import FEW, MANY, blocks, case
from tests.generated.draws import FAMILIES
from tests.generated.mistakes import MISTAKES

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "simulator.md"


@pytest.mark.parametrize("numbers", blocks())
def test_the_simulator_accepts_and_refuses(numbers):
    wrong = []
    for number in numbers:
        wrong += filter(None, [case(number).verdict("simulator", halves.simulated(case(number)))])
    assert not wrong, "\n".join(wrong)


def test_the_cases_cover_every_mistake_and_family():
    cases = [case(number) for number in range(FEW)]
    assert {c.mistake.name for c in cases if c.mistake} == {m.name for m in MISTAKES}
    assert len({c.program.family.split()[0] for c in cases}) >= len(FAMILIES)
    assert Counter(m.name for m in MISTAKES).most_common(1)[0][1] == 1


@pytest.mark.slow
def test_five_thousand_cases_differ():
    kernels = Counter(re.sub(r"\s+", " ", case(number).source) for number in range(MANY))
    assert len(kernels) >= 5000


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.reason], ids=lambda m: m.name)
def test_the_page_lists_what_one_half_alone_can_know(mistake):
    assert f"| {mistake.name} |" in PAGE.read_text()
