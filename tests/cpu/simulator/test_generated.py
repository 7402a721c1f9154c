"""The compiler's verdict on generated kernels: the one that each states, as the simulator's is.

Compiler and simulator have a process each. They meet in what a case says of itself, so that a
disagreement of the two is a failure of one of the tests.
"""

import pytest

from tests.generated import halves
from tests.generated.cases import ASSEMBLED, blocks, case


@pytest.mark.parametrize("numbers", blocks())
def test_the_compiler_accepts_and_refuses(numbers):
    wrong = []
    for number in numbers:
        error = halves.compiled(case(number), assembled=number % ASSEMBLED == 0)
        wrong += filter(None, [case(number).verdict("compiler", error)])
    assert not wrong, "\n".join(wrong)
