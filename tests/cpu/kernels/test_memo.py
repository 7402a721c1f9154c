"""What a wrapper remembers of its calls: the newest, within limits of their number and bytes."""

from types import SimpleNamespace

import pytest

from numba_tma.kernels._host import launch
from numba_tma.kernels._host.memo import _Call, _Calls

MIB = 1 << 20


def remembered(*sizes, keys=None):
    """Return the keys that are left after calls whose workspaces have so many bytes."""
    calls = _Calls()
    for key, nbytes in zip(keys or range(len(sizes)), sizes):
        workspace = [SimpleNamespace(nbytes=nbytes // 2), SimpleNamespace(nbytes=nbytes // 2)]
        calls.add(key, _Call((), "", SimpleNamespace(workspace=workspace)))
    return list(calls.table)


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ([128 * MIB] * 2, [0, 1]), ([128 * MIB] * 3, [1, 2]), ([128 * MIB, 128 * MIB + 2], [1]),
        ([256 * MIB, 0], [0, 1]), ([256 * MIB, 2], [1]), ([64 * MIB] * 4 + [192 * MIB], [3, 4]),
        ([512 * MIB], [0]), ([512 * MIB, 0], [1]), ([0] * 1024, [*range(1024)]),
        ([0] * 1025, [*range(1, 1025)]),
    ],
)  # fmt: skip
def test_the_oldest_calls_are_forgotten_beyond_256_mib_and_1024_calls(sizes, left):
    assert remembered(*sizes) == left


def test_an_equal_call_takes_the_place_of_the_old_one():
    assert remembered(*[128 * MIB] * 4, keys="abab") == ["a", "b"]
    assert remembered(*[256 * MIB] * 4, keys="aaaa") == ["a"]


@pytest.mark.parametrize(("stream", "handle"), [(None, 0), (0, 0), (7, 7), (2**40, 2**40)])
def test_a_stream_is_known_by_its_handle(monkeypatch, stream, handle):
    assert launch.stream_key(stream) == handle
    monkeypatch.setattr(launch, "simulated", lambda: True)
    assert launch.stream_key(stream) == 0
