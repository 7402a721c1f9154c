"""What a function requires of its kernel: how callees hand it on, and what excludes what."""

from types import ModuleType

import pytest
from numba.cuda.core.errors import TypingError

import numba_tma as tma
from numba_tma.backend.numba_cuda import functions
from numba_tma.backend.numba_cuda.cache import captured
from numba_tma.backend.numba_cuda.facts import Facts, known_facts
from numba_tma.host.tensor_tiles import ColumnClaim

PIPE = tma.TilePipeline(2, x=tma.Tile((8, 32), "f32"))


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


@pytest.mark.parametrize(
    ("toolkit", "newest"),
    [((12, 8), (9, 0)), ((12, 9), (9, 0)), ((13, 0), (9, 0)), ((13, 1), (9, 1)), ((13, 4), (9, 4))],
)
def test_an_instruction_needs_the_toolkit_that_assembles_it(monkeypatch, toolkit, newest):
    """Before PTX ISA 9.0 other rules refuse it."""
    monkeypatch.setattr(functions, "toolkit", lambda: toolkit)
    for isa in [(8, 6), *((9, minor) for minor in range(6))]:
        if isa <= newest:
            functions.require_isa("x", isa)
            continue
        major, minor = isa
        needs = rf"^x needs PTX ISA {major}.{minor}, which CUDA {major + 4}.{minor} and newer .*; "
        with pytest.raises(TypingError, match=rf"{needs}.* with CUDA {toolkit[0]}.{toolkit[1]}:"):
            functions.require_isa("x", isa)


def test_modules_that_know_each_other_are_captured_once():
    one, other = ModuleType("one"), ModuleType("other")
    one.other, one.width, other.one, other.depth = other, 3, one, PIPE
    scope = {"one": one, "again": one, "PIPE": PIPE}
    exec("def kernel():\n    one.other.depth, one.width, other, again, PIPE", scope)
    found = list(captured(scope["kernel"]))
    assert [text.partition("=")[0] for text in found] == ["PIPE", "again.other.depth"]
