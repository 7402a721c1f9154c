"""Rules of values, as errors say them."""

import numpy as np
import pytest

from numba_tma.host.values import checked, power_of_2, whole
from tests.frozen import by_identity, changing


@pytest.mark.parametrize(
    ("rule", "good", "wrong", "text"),
    [
        (whole(0, 7), [0, 7, np.int8(3)], [-1, 8], "a whole number from 0 to 7"),
        (whole(0, 8, 2), [0, 8], [1, 10], "a multiple of 2 from 0 to 8"),
        (whole(2, 8, 2), [2, 8], [0, 3], "a multiple of 2 up to 8"),
        (whole(16, 1 << 20, 16), [16], [8, 17], "a multiple of 16 up to 1,048,576"),
        (power_of_2(2, 8), [2, 4, 8], [1, 6, 16], "a power of 2, 2 to 8"),
    ],
)
def test_a_rule_says_what_it_takes(rule, good, wrong, text):
    assert rule.text == text
    assert [checked("plan", "n", n, rule) for n in good] == good
    for n in wrong:
        with pytest.raises(ValueError, match=rf"^plan\(n={n}\): n is {text}$"):
            checked("plan", "n", n, rule)
    for other in (None, "2", 2.5, True):
        with pytest.raises(TypeError, match=rf": n is {text}$"):
            checked("plan", "n", other, rule)


def test_what_describes_something_does_not_change():
    assert changing("host") == {"Encoding", "LoggedBarrier", "Meeting"}
    assert by_identity("host") == {"Array", "DType", "Encoding"}
