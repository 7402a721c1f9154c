"""What a function requires of its kernel: how callees hand it on, and what excludes what."""

import pytest
from numba.cuda.core.errors import TypingError

from numba_tma.backend.numba_cuda.facts import Facts, known_facts
from numba_tma.host.tensor_tiles import ColumnClaim


@pytest.mark.parametrize(
    ("given", "per_call"),
    [
        ({}, False), ({"allocates": True}, True), ({"use_flags": ["flag"]}, True),
        ({"allocates": True, "use_flags": ["flag"]}, True), ({"block": 32}, False),
        ({"shared": [("name", 4, 4, "it")]}, False), ({"launch_bounds": (32, 1)}, False),
    ],
)  # fmt: skip
def test_a_function_with_memory_or_flags_of_its_own_is_copied_for_each_call(given, per_call):
    assert Facts(**given).is_per_call is per_call


CLAIMS = [ColumnClaim("TMEM", first, 32, f"tile {first}") for first in (0, 32, 48)]
OURS = {
    "shared": ["a"], "use_flags": ["f"], "clusters": ["c"], "block": 64, "columns": CLAIMS[:1],
    "launch_bounds": (64, 1), "allocates": True, "shared_limit": 100, "target": "sm_90a",
}  # fmt: skip
THEIRS = OURS | {"shared": ["b"], "use_flags": ["g"], "clusters": ["d"], "columns": CLAIMS[1:2]}


@pytest.mark.parametrize(
    ("before", "callee", "after"),
    [
        ({}, {}, {}), (OURS, {}, OURS), ({}, OURS, OURS),
        (OURS, THEIRS, OURS | {
            "shared": ["a", "b"], "use_flags": ["f", "g"], "clusters": ["c", "d"],
            "columns": CLAIMS[:2],
        }),
        ({"block": 64}, {"block": 128}, {"block": 64}),
        ({"target": "sm_90a"}, {"target": "sm_100a", "shared_limit": 5}, {"target": "sm_90a"}),
        ({"target": "a"}, {"target": "b", "allocates": True},
         {"target": "b", "allocates": True}),
    ],
)  # fmt: skip
def test_a_caller_takes_over_what_a_callee_requires(before, callee, after):
    def facts(given):
        return Facts(**{k: list(v) if isinstance(v, list) else v for k, v in given.items()})

    caller = facts(before)
    caller.take_over(facts(callee))
    assert caller == facts(after)


@pytest.mark.parametrize(
    ("before", "callee", "text"),
    [
        ({"launch_bounds": (64, 1)}, {"launch_bounds": (128, 1)}, "block of 64 threads .* of 128;"),
        ({"columns": CLAIMS[1:2]}, {"columns": CLAIMS[2:]}, "share columns 48 to 63 of TMEM"),
    ],
)
def test_requirements_that_exclude_each_other(before, callee, text):
    with pytest.raises(TypingError, match=text):
        Facts(**before).take_over(Facts(**callee))


def test_an_unknown_function_requires_nothing():
    assert known_facts("no such function") == Facts()
