"""The steps that a record allows: what each operation does to which component, and when it may."""

from types import SimpleNamespace

import pytest

from numba_tma.simulator.components import (
    Advance,
    Await,
    Complete,
    Fill,
    Filled,
    Hold,
    Launch,
    ReadBy,
    ReadDone,
    Rewritten,
    Seen,
)
from numba_tma.simulator.errors import BadOperand, BarrierMisuse, Deadlock, TooManyStates
from numba_tma.simulator.exploration import Report, explore_runs
from numba_tma.simulator.memory import BASE, SharedMemory
from numba_tma.simulator.programs import meetings_of, programs_of, segment_at
from numba_tma.simulator.protocol import (
    Arrive,
    ArriveAfterCopies,
    AwaitCopies,
    AwaitMeeting,
    AwaitStores,
    ByteSpan,
    CommitProducts,
    CopyAsync,
    CountBytes,
    Init,
    Inval,
    Issue,
    IssueStore,
    Meet,
    Multiply,
    Run,
    Transfer,
    Unmodelled,
    Wait,
)
from numba_tma.simulator.report import operation_in_words
from numba_tma.simulator.state_space import StateSpace

BAR, OTHER = (0, BASE + 256), (0, BASE + 264)
ONE, TWO = ByteSpan(0, BASE, BASE + 16), ByteSpan(0, BASE + 16, BASE + 32)
NAMES = {"bar": BAR, "other": OTHER}
WORKS = (1 << 32) + 2  #: the first content that a copy of the first thread brings


def recorded(*operations, warps=None):
    """Return the run of a block whose threads have these operations, each in a warp of its own."""
    run, memory = Run(), SharedMemory()
    memory.allocate("tile", "tile", 256, 16, tracked=False)
    memory.allocate("bars", "bars", 64, 8, tracked=False)
    for name, (_, address) in NAMES.items():
        memory.set_label(address, name)
    cta = SimpleNamespace(rank=0, threads=[], memory=memory)
    for row in range(len(operations)):
        warp, lane = (row, 0) if warps is None else warps[row]
        thread = SimpleNamespace(cta=cta, block=(0, 0, 0), warp=warp, lane=lane, row=row)
        cta.threads.append(thread)
    run.begin([cta])
    for log, several in zip(run.logs, operations, strict=True):
        for operation in several:
            if callable(operation):
                operation(log, cta)
            else:
                log.note(operation)
    return run


def fills(span, make):
    """Return what notes an operation with a new content."""
    return lambda log, cta: log.note(make(log.new_fill(), span))


def load(content, span, source=None):
    return Issue((Transfer(content, span, BAR, 16, source),))


def of(space, step):
    """Return the effects of a step by the name of its component."""
    short = {"tile, bytes 0 to 15": "one", "tile, bytes 16 to 31": "two"}
    return [(short.get(space.names[n], space.names[n]), table.effect) for n, table in step.effects]


def step_of(*operations, number=-1):
    """Return the space of one thread's operations, and the step of one of them."""
    space = StateSpace(recorded(operations))
    return space, space.programs[0].steps[number]


STORE, COPIES = IssueStore(1, ONE), fills(TWO, lambda n, span: CopyAsync(1, n, span))
STORES = ("store", 0, 1)


@pytest.mark.parametrize(
    ("operations", "effects"),
    [
        ([Init(BAR, 2)], [("bar", Init(BAR, 2))]), ([Inval(BAR)], [("bar", Inval(BAR))]),
        ([Arrive(BAR, 1, 8, True, False)], [("bar", Arrive(BAR, 1, 8, True, False))]),
        ([Wait(BAR, 1, False)], [("bar", Wait(BAR, 1, False))]),
        ([CountBytes(BAR, 16)], [("bar", CountBytes(BAR, 16))]),
        ([fills(ONE, load)], [("bar", Launch(16)), ("one", Fill(1, "overwritten by a load"))]),
        ([fills(ONE, lambda n, span: load(n, span, TWO))],
         [("bar", Launch(16)), ("two", ReadBy(("copy", WORKS))),
          ("one", Fill(1, "overwritten by a load"))]),
        ([STORE], [("one", ReadBy(STORES))]),
        ([COPIES], [("two", Fill(1, "overwritten by a cp.async"))]),
        ([STORE, AwaitStores(1)], [("one", Await(frozenset({STORES})))]),
        ([STORE, IssueStore(2, TWO), AwaitStores(1)], [("one", Await(frozenset({STORES})))]),
        ([STORE, IssueStore(2, ONE), AwaitStores(2)],
         [("one", Await(frozenset({STORES, ("store", 0, 2)})))]),
        ([STORE, COPIES, AwaitCopies(1)], [("two", Await(frozenset({1})))]),
        ([STORE, AwaitStores(0)], []), ([COPIES, AwaitCopies(0)], []),
        ([STORE, AwaitCopies(1)], []), ([COPIES, AwaitStores(1)], []),
        ([Multiply(1, (TWO, ONE, TWO))],
         [("one", ReadBy(("product", 0, 1))), ("two", ReadBy(("product", 0, 1)))]),
        ([COPIES, ArriveAfterCopies(BAR, 1, True)],
         [("the arrival of cp.async on bar", Advance(0, 1)), ("bar", Hold())]),
        ([COPIES, ArriveAfterCopies(BAR, 1, False)],
         [("the arrival of cp.async on bar", Advance(0, 1))]),
        ([CommitProducts(1, (BAR, OTHER))],
         [(f"the arrival of tcgen05.commit on {name}", Advance(0, 1)) for name in NAMES]),
    ],
)  # fmt: skip
def test_what_an_operation_does(operations, effects):
    spans = [IssueStore(8, span) for span in (TWO, ONE)]  # the cells are there, in any case
    run = recorded(operations, spans)
    space = StateSpace(run)
    step = space.programs[0].steps[-1]
    found = of(space, step)
    assert sorted(map(str, found)) == sorted(map(str, effects))
    assert step.moves == ((0, len(operations)),) and step.after == ()
    assert step.at_once == (not effects)
    assert step.who == "block (0, 0, 0): warp 0 lane 0"


def ends(space):
    """Return the steps of copies and of the hardware, by their text."""
    steps = [*space._of_copies.values(), *space._of_hardware.values()]
    return {step.what: (step.who, of(space, step)) for step in steps}


def test_what_the_copy_engine_does_later():
    space, _ = step_of(fills(ONE, lambda n, span: load(n, span, TWO)), STORE, COPIES)
    assert ends(space) == {
        "the load into tile, bytes 0 to 15 lands": ("the copy engine", [
            ("one", Filled(1)), ("bar", Complete(16)), ("two", ReadDone(("copy", WORKS)))]),
        "the store from tile, bytes 0 to 15 has read it": ("the copy engine", [
            ("one", ReadDone(STORES))]),
        "a cp.async lands in tile, bytes 16 to 31": ("the copy engine", [("two", Filled(2))]),
    }  # fmt: skip
    space, _ = step_of(COPIES, ArriveAfterCopies(BAR, 1, True))
    name = "the arrival of cp.async on bar"
    assert ends(space)[name] == ("the copy engine", [
        (name, Advance(1, 2)), ("two", Await(frozenset({1}))),
        ("bar", Arrive(BAR, 1, None, False, False))])  # fmt: skip


def test_what_the_tensor_cores_do_later():
    """The arrivals of commits follow each other; the first of a commit ends its reads."""
    operations = [Multiply(1, (ONE,)), CommitProducts(1, (BAR, OTHER)), Multiply(2, (TWO,)),
                  CommitProducts(2, (BAR,))]  # fmt: skip
    stores = [IssueStore(8, span) for span in (ONE, TWO)]
    space = StateSpace(recorded(operations, stores))
    bar, other = (f"the arrival of tcgen05.commit on {name}" for name in NAMES)
    steps = [of(space, step) for step in space._of_hardware.values()]
    assert {step.who for step in space._of_hardware.values()} == {"the tensor cores"}
    arrive = [(name, Arrive(place, 1, None, False, False)) for name, place in NAMES.items()]
    done = [(name, ReadDone(("product", 0, n))) for n, name in ((1, "one"), (2, "two"))]
    assert steps == [
        [(bar, Advance(1, 2)), done[0], arrive[0]],
        [(other, Advance(1, 2)), (bar, Advance(2, 2)), arrive[1]],
        [(bar, Advance(1, 2)), done[1], (other, Advance(2, 2)), arrive[0]],
    ]
    assert len({id(s) for s in space._of_hardware.values()}) == 3 == len({*space._of_hardware})


def access(writes, span=ONE):
    """Return what notes an access of a thread."""

    def note(log, cta):
        (log.wrote if writes else log.read)(cta, span.start, span.stop - span.start)

    return note


def landed(log, cta):
    log.landed(0, ONE.start, 16, WORKS)


@pytest.mark.parametrize("writes", [False, True])
def test_accesses_are_checked_before_and_after_the_operations_around_them(writes):
    """Of bytes that a copy has brought."""
    check = (Rewritten if writes else Seen)(1)
    space = StateSpace(recorded(
        [fills(ONE, load), Wait(BAR, 0, False), landed, access(writes), AwaitStores(0),
         Inval(BAR), access(writes)],
    ))  # fmt: skip
    steps = [of(space, step) for step in space.programs[0].steps]
    assert steps[1:] == [
        [("bar", Wait(BAR, 0, False)), ("one", check)], [("one", check)],
        [("bar", Inval(BAR)), ("one", check)], [("one", check)],
    ]  # fmt: skip
    assert space.programs[0].steps[-1].what == "exit" and space._ends == [5]
    assert [step.at_once for step in space.programs[0].steps] == [False] * 5


def test_a_step_that_only_begins_to_read_is_taken_at_once():
    reads = [fills(ONE, load), landed, AwaitStores(0), access(False), Inval(BAR)]
    space = StateSpace(recorded(reads))
    assert [step.at_once for step in space.programs[0].steps] == [False, True, False]
    space = StateSpace(
        recorded([Inval(BAR), AwaitStores(0), access(True)], [Inval(BAR), access(False)])
    )
    assert not any(step.at_once for step in space.programs[0].steps), "a write is no check"


def test_a_word_that_threads_pass_on_is_written_between_two_operations():
    run = recorded([Inval(BAR), access(True), Inval(OTHER)], [Inval(BAR), access(False)])
    space = StateSpace(run)
    content = next(e.content for _, e in of(space, space.programs[0].steps[0]) if e != Inval(BAR))
    assert of(space, space.programs[0].steps[0])[1] == ("one", Fill(content, "written"))
    assert of(space, space.programs[0].steps[1]) == [
        ("one", Filled(content)),
        ("other", Inval(OTHER)),
    ]
    own = recorded([Inval(BAR), access(True), access(False)], [Inval(BAR), access(False, TWO)])
    assert all(len(step.effects) == 1 for p in StateSpace(own).programs for step in p.steps)


# ------------------------------------------------------------------------------- meetings


def meet(key="block", turn=0, blocking=True, threads=None, name="sync"):
    return Meet((0, key), turn, blocking, name, threads)


def test_a_meeting_is_one_step_of_all_that_wait():
    inits = [[Init(BAR, 1)], [Init(OTHER, 1)], []]
    space = StateSpace(recorded(*([*each, meet()] for each in inits), [Inval(BAR), Inval(BAR)]))
    steps = [space.programs[n].steps[1] for n in range(2)] + [space.programs[2].steps[0]]
    assert all(step is steps[0] for step in steps) and steps[0].what == "meet: sync"
    assert steps[0].moves == ((0, 2), (1, 2), (2, 1)) and steps[0].at_once
    assert steps[0].after == ((0, 1), (1, 1), (2, 0), (3, 2)), "or they have exited"
    assert steps[0].who == "block (0, 0, 0): warps 0-2 lane 0"


def test_who_arrives_at_a_meeting_goes_on():
    arrives = meet(("barrier", 1), blocking=False, threads=2)
    waits = meet(("barrier", 1), threads=2)
    space = StateSpace(recorded([arrives, Inval(BAR)], [Inval(BAR), waits], [Inval(OTHER)]))
    first, second = space.programs[0].steps[0], space.programs[1].steps[1]
    assert first.moves == ((0, 1),) and first.effects == () and not first.at_once
    assert second.moves == ((1, 2),) and second.after == ((0, 1), (1, 1))
    cluster = Meet((0, "cluster"), 0, False, "cluster", None)
    space = StateSpace(recorded([cluster, AwaitMeeting((0, "cluster"), 0)], [cluster, Inval(BAR)]))
    waiting = space.programs[0].steps[1]
    assert waiting.after == ((0, 1), (1, 1)) and waiting.effects == () and waiting.at_once
    assert space.programs[0].not_before == {}


def test_a_thread_that_did_not_wait_may_come_too_early_again():
    turns = [meet(("barrier", 1), turn, blocking=False, threads=2) for turn in range(3)]
    waits = [meet(("barrier", 1), turn, threads=2) for turn in range(3)]
    space = StateSpace(recorded(turns, waits))
    assert space.programs[0].not_before == {1: ((0, 1), (1, 0)), 2: ((0, 2), (1, 1))}
    assert space.programs[1].not_before == {}


def test_a_named_barrier_is_for_a_number_of_threads():
    waits = meet(("barrier", 1), threads=2)
    programs = programs_of(recorded([waits, Inval(BAR)], [waits, Inval(OTHER)]))
    assert [(n, index) for n, index, _ in meetings_of(programs)[(0, ("barrier", 1)), 0]] == [
        (0, 0), (1, 0)]  # fmt: skip
    for threads in (1, 3):
        wrong = meet(("barrier", 1), threads=threads)
        programs = programs_of(recorded([wrong, Inval(BAR)], [wrong, Inval(OTHER)]))
        with pytest.raises(BadOperand, match="^sync is used by 2 threads: which of them meet may"):
            meetings_of(programs)


# ------------------------------------------------------------------------------- classes


def test_threads_of_a_warp_with_the_same_waits_are_one_class():
    waits, lanes = [Wait(BAR, 0, False), meet()], [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3)]
    others = [[*waits, Arrive(BAR, 1, None, False, False)], waits[:1]]
    programs = programs_of(recorded(waits, waits, waits, *others, warps=lanes))
    assert [[(log.warp, log.lane) for log in p.logs] for p in programs] == [
        [(0, 0), (0, 1)], [(1, 0)], [(0, 2)], [(0, 3)]]  # fmt: skip
    arrives = [meet(("barrier", 1), blocking=False)]
    assert len(programs_of(recorded(arrives, arrives, warps=lanes[:2]))) == 2
    together = [AwaitMeeting((0, "cluster"), 0)]
    assert len(programs_of(recorded(together, together, warps=lanes[:2]))) == 1
    with pytest.raises(BadOperand, match="^the interleavings of kernels with it cannot be"):
        programs_of(recorded([Wait(BAR, 0, False), Unmodelled("it")]))


def test_the_waits_up_to_a_meeting():
    wait, arrive = Wait(BAR, 0, False), Arrive(BAR, 1, None, False, False)
    operations = [wait, wait, meet(), meet(), wait, arrive, wait, meet(blocking=False), wait]
    found = [segment_at(operations, index) for index in range(len(operations))]
    assert found[:2] == [(wait, wait, meet()), (wait, meet())]
    assert found[2:] == [None] * 7
    assert segment_at([meet(), wait, meet()], 0) is None, "a meeting is no wait"


ONE_NAME, TWO_NAME = "tile, bytes 0 to 15", "tile, bytes 16 to 31"


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (Init(BAR, 2), "init bar for 2 arrivals"), (Inval(OTHER), "inval other"),
        (Arrive(BAR, 1, None, False, False), "arrive on bar"),
        (Arrive(BAR, 2, None, True, False), "arrive_drop 2 times on bar"),
        (Arrive(BAR, 1, 0, False, True), "arrive on bar, expecting 0 bytes"),
        (CountBytes(BAR, 0), "expect 0 bytes on bar"),
        (CountBytes(BAR, 8), "expect 8 bytes on bar"),
        (CountBytes(BAR, -8), "complete 8 bytes on bar"),
        (Wait(BAR, 1, False), "wait for parity 1 of bar"),
        (Wait(BAR, 3, True), "wait for phase 3 of bar"), (load(1, ONE), f"load {ONE_NAME}"),
        (Issue((*load(1, ONE).transfers, *load(2, TWO).transfers)),
         f"load {ONE_NAME} and {TWO_NAME}"),
        (IssueStore(3, TWO), f"store {TWO_NAME}"),
        (AwaitStores(3), "wait for its stores to have read"),
        (CopyAsync(3, 4, TWO), f"cp.async into {TWO_NAME}"),
        (AwaitCopies(3), "wait for its cp.async copies"),
        (ArriveAfterCopies(OTHER, 3, True), "let its cp.async copies arrive on other"),
        (Multiply(1, (TWO, ONE, TWO)), f"tcgen05 reads {TWO_NAME}, {ONE_NAME}"),
        (CommitProducts(1, (BAR, OTHER)), "tcgen05.commit on bar, other"),
        (meet(), "wait at sync"), (meet(blocking=False), "arrive at sync"),
        (AwaitMeeting((0, "cluster"), 0), "wait for the cluster"),
    ],
)  # fmt: skip
def test_an_operation_in_words(operation, text):
    assert operation_in_words(operation, recorded([])) == text


# ------------------------------------------------------------------------------ symmetry

ARRIVES = [Arrive(BAR, 1, None, False, False)] * 2
OF_ONE_WARP, OF_TWO_WARPS = [(0, 0), (0, 1), (5, 0)], [(0, 0), (1, 0), (5, 0)]
#: What two threads do first, and whether they are interchangeable then.
ALIKE = [
    ([], [], True), ([Wait(BAR, 0, False)], [Wait(BAR, 0, False)], True),
    ([Wait(BAR, 0, False)], [Wait(BAR, 1, False)], False), ([meet("block")], [meet("block")], True),
    ([STORE], [STORE], False), ([COPIES], [COPIES], False), ([fills(ONE, load)], [], False),
    ([Multiply(1, (ONE,))], [Multiply(1, (ONE,))], False),
    ([CommitProducts(1, (BAR,))], [CommitProducts(1, (BAR,))], False),
    ([ArriveAfterCopies(BAR, 0, False)], [ArriveAfterCopies(BAR, 0, False)], False),
    ([access(True)], [], False), ([access(False)], [access(False)], True),
    ([access(False)], [access(False, TWO)], False), ([Init(OTHER, 1)], [], True),
    ([meet(name="one")], [meet(name="other")], False),
]  # fmt: skip


@pytest.mark.parametrize("warps", [OF_ONE_WARP, OF_TWO_WARPS])
@pytest.mark.parametrize(("first", "second", "alike"), ALIKE)
def test_threads_that_do_the_same_are_interchangeable(first, second, alike, warps):
    others = [IssueStore(8, TWO), Inval(OTHER), access(False), access(True), Inval(OTHER)]
    if first and isinstance(first[0], Multiply):
        others.append(IssueStore(9, ONE))
    run = recorded([*first, *ARRIVES], [*second, *ARRIVES], others, warps=warps)
    space = StateSpace(run)
    begins = [sum(not callable(each) for each in several) for several in (first, second)]
    places = [
        (begins[0] + one, begins[1] + other, *space.initial[2:]) for one, other in ((1, 0), (0, 1))
    ]
    assert (space.canonical(places[0]) == space.canonical(places[1])) == alike


def test_threads_before_their_inits_are_not_interchangeable():
    space = StateSpace(recorded([Init(OTHER, 1), Init(OTHER, 2), *ARRIVES], ARRIVES))
    rest = space.initial[2:]
    for place in range(2):
        assert space.canonical((place, 1, *rest)) == (place, 1, *rest)
    assert space.canonical((3, 0, *rest)) == space.canonical((2, 1, *rest))


def test_warps_of_the_same_lanes_are_interchangeable():
    lanes = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 2)]
    wait = [Wait(BAR, 0, False)]
    space = StateSpace(recorded(*[ARRIVES, [*ARRIVES, *wait]] * 3, warps=lanes))
    rest = space.initial[6:]
    same = {
        space.canonical((*places, *rest)) for places in ((2, 1, 0, 0, 1, 0), (0, 0, 2, 1, 1, 0))
    }
    assert len(same) == 1
    assert space.canonical((0, 1, 2, 0, 0, 0, *rest)) != space.canonical((2, 1, 0, 0, 0, 0, *rest))
    assert space.canonical((0, 0, 0, 0, 2, 1, *rest)) != space.canonical((2, 1, 0, 0, 0, 0, *rest))


def first_two_are_alike(*operations, warps):
    space = StateSpace(recorded(*operations, warps=warps))
    rest = space.initial[2:]
    return space.canonical((1, 0, *rest)) == space.canonical((0, 1, *rest))


@pytest.mark.parametrize("span", [ONE, TWO])
@pytest.mark.parametrize("warps", [OF_ONE_WARP, OF_TWO_WARPS])
def test_what_threads_access_before_they_exit_distinguishes_them(warps, span):
    threads = [*ARRIVES, access(False)], [*ARRIVES, access(False, span)]
    assert first_two_are_alike(*threads, [access(True)], warps=warps) == (span == ONE)


def in_warp(warp):
    return meet(("warp", warp, 0xFFFFFFFF), name=f"syncwarp of warp {warp}")


def test_lanes_are_interchangeable_if_all_of_the_warp_meet_alike():
    """Other meetings distinguish those alone that have them."""
    lanes = [(0, 0), (0, 1), (0, 2)]
    for third, alike in [
        ([in_warp(0)], True), ([in_warp(0), meet()], True), ([], False),
        ([in_warp(0)] * 2, False), ([meet()], False),
    ]:  # fmt: skip
        threads = [in_warp(0), *ARRIVES], [in_warp(0), *ARRIVES], [*third, *ARRIVES]
        assert first_two_are_alike(*threads, warps=lanes) == alike


def test_the_names_of_meetings_in_warps_do_not_distinguish_the_warps():
    threads = [in_warp(0), *ARRIVES], [in_warp(1), *ARRIVES]
    assert first_two_are_alike(*threads, warps=[(0, 0), (1, 0)])


# ------------------------------------------------------------------------- what is counted


def test_states_and_steps_are_counted():
    own = [Init(BAR, 1), ARRIVES[0], Wait(BAR, 0, False)]
    assert explore_runs([recorded(own)]) == Report(1, 4, 3)
    other = [Init(OTHER, 1), Inval(OTHER)]
    # 4 x 3 states, and a step along each edge of the grid
    assert explore_runs([recorded(own, other)]) == Report(1, 12, 3 * 3 + 4 * 2)
    assert explore_runs([recorded(own), recorded(own, other)]) == Report(2, 16, 20)
    assert explore_runs([]) == Report(0, 0, 0)
    assert explore_runs([recorded(own, other)], limit=12).states == 12
    with pytest.raises(TooManyStates, match="^more than 11 states, and no error in those seen"):
        explore_runs([recorded(own, other)], limit=11)


@pytest.mark.parametrize("steps", [0, 1, 30, 31, 40])
def test_the_last_steps_to_an_error_are_shown(steps):
    waits = [Wait(BAR, 0, False)] * steps
    with pytest.raises(BarrierMisuse) as caught:
        explore_runs([recorded([Init(BAR, 1), ARRIVES[0], *waits, Init(BAR, 1)])])
    lines = str(caught.value).splitlines()
    taken = steps + 2
    assert lines[:2] == [
        "block (0, 0, 0): warp 0 lane 0: init bar for 1 arrivals: bar: mbarrier_init of a live "
        "mbarrier",
        "after these steps:",
    ]
    left_out = [f"  ... {taken - 30} steps before"] if taken > 30 else []
    assert lines[2 : len(lines) - min(taken, 30)] == left_out
    shown = range(max(0, taken - 30) + 1, taken + 1)
    assert [int(line.split(".")[0]) for line in lines[-len(shown) :]] == [*shown]
    assert len(caught.value.interleaving) == taken
    assert caught.value.interleaving[0].endswith("lane 0: init bar for 1 arrivals")


def test_a_deadlock_names_waits_and_barriers():
    waits = [Wait(OTHER, 0, False)]
    inits = [Init(OTHER, 2), Init(BAR, 1), *waits]
    with pytest.raises(Deadlock) as caught:
        explore_runs([recorded(inits, [Init((0, BASE + 272), 1)])])
    assert str(caught.value).splitlines()[:3] == [
        "every live thread waits and no copy is under way",
        "  block (0, 0, 0): warp 0 lane 0: wait for parity 0 of other, which is in phase 0 (parity "
        "0): 2 of 2 arrivals pending, 0 bytes missing",
        "  exited: block (0, 0, 0): warp 1 lane 0",
    ]
