"""What a thread's log says of its accesses: the contents of the bytes, part by part."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from numba_tma.simulator.memory import BASE
from numba_tma.simulator.protocol import ByteSpan, Run, Touch, recorded_protocol


def started(threads=2):
    """Return a run of a block, and the logs of its threads."""
    run = Run()
    cta = SimpleNamespace(rank=0, threads=[])
    for row in range(threads):
        cta.threads.append(SimpleNamespace(cta=cta, block=(0, 0, 0), warp=0, lane=row, row=row))
    run.begin([cta])
    return cta, run, run.logs


@pytest.mark.parametrize("seed", range(4))
def test_an_access_is_cut_where_contents_change(seed):
    cta, run, (log, other) = started()
    random = np.random.default_rng(seed)
    for _ in range(12):
        first, nbytes = BASE + int(random.integers(48)), int(random.integers(1, 17))
        if random.integers(2):
            log.landed(0, first, nbytes, log.new_fill())
        else:
            other.wrote(cta, first, nbytes)
    window = slice(BASE, BASE + 64)
    contents = dict(enumerate(zip(run.fills[0][window], run.writers[0][window], strict=True), BASE))
    for nbytes in (1, 4, 5, 16, 64):
        log.touches[-1].clear()
        log.read(cta, BASE, nbytes)
        places = range(BASE, BASE + nbytes)
        if nbytes <= 4:  # a word is moved as one
            parts = [(contents[BASE], [*places])]
        else:
            parts = [(c, [*p]) for c, p in itertools.groupby(places, contents.__getitem__)]
        assert log.touches[-1] == {
            Touch(ByteSpan(0, part[0], part[-1] + 1), False, *content) for content, part in parts
        }


def test_each_content_has_a_number_of_its_own():
    cta, run, logs = started()
    seen = []
    for log in logs:
        for _ in range(3):
            seen.append(log.new_fill())
            log.wrote(cta, BASE, 4)
            seen.append(int(run.writers[0][BASE]))
            assert log.touches[-1] == {Touch(ByteSpan(0, BASE, BASE + 4), True, 0, seen[-1])}
            log.note(object())
    assert len({*seen}) == len(seen) == 12
    assert [(content >> 32) - 1 for content in seen] == 6 * [0] + 6 * [1], "rows of threads"
    assert run.order == {content: 1 + place for place, content in enumerate(seen)}
    assert not run.writers[0][BASE + 4 :].any() and not run.writers[0][:BASE].any()


def test_accesses_are_between_operations():
    cta, _, (log, other) = started()
    log.read(cta, BASE, 4)
    log.note("first")
    log.note("second")
    log.read(cta, BASE + 4, 4)
    assert [len(touches) for touches in log.touches] == [1, 0, 1]
    assert log.operations == ["first", "second"] and other.touches == [set()]


def test_every_access_to_an_element_of_an_array_is_logged():
    @cuda.jit
    def kernel():
        array = cuda.shared.array((3, 4), np.uint32)
        array[0, 0] = 1
        array[1, 1:3] = 2
        array[1, 2], array[2]  # the row is a view, whose elements are not read
        cuda.atomic.add(array[1], 1, 1)

    with recorded_protocol() as runs:
        kernel[1, 1]()
    (log,) = runs[0].logs
    (touches,) = log.touches
    written, read = (
        {(t.span.start - BASE, t.span.stop - BASE) for t in touches if t.writes == writes}
        for writes in (True, False)
    )
    words = [(4 * n, 4 * n + 4) for n in range(12)]
    assert written == {words[0], words[5], words[6]}
    assert read == {words[5], words[6]}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_names_say_the_block_if_there_are_several(size):
    memory = SimpleNamespace(
        label={BASE: "full"}.get, describe=lambda start, nbytes: f"{nbytes} bytes at {start - BASE}"
    )
    run = Run(blocks=[SimpleNamespace(memory=memory, index=(rank, 5, 0)) for rank in range(size)])
    for rank in range(size):
        block = f" of block ({rank}, 5, 0)" if size > 1 else ""
        assert run.barrier_name((rank, BASE)) == f"full{block}"
        assert run.barrier_name((rank, BASE + 8)) == f"mbarrier at {BASE + 8}{block}"
        assert run.span_name(ByteSpan(rank, BASE + 4, BASE + 10)) == f"6 bytes at 4{block}"


def test_runs_differ_by_their_first_thread_that_does():
    (_, one, _), (cta, two, logs) = started(3), started(3)
    assert one.differs(two) is None
    logs[2].note("more")
    assert one.differs(two) is one.logs[2]
    logs[1].read(cta, BASE, 4)
    assert one.differs(two) is one.logs[1]
