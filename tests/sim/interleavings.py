"""The interleavings of a recorded run once more, as plainly as they can be put: the measure.

Every thread, every access and every arrival at a meeting takes a step of its own. What loads do to
bytes is looked at granule by granule.
"""

from collections import deque
from functools import partial

from numba_tma.simulator.mbarrier import Mbarrier
from numba_tma.simulator.protocol import (
    Arrive,
    AwaitStores,
    CountBytes,
    Init,
    Issue,
    IssueStore,
    Meet,
    Wait,
)

GRANULE = 16


class Wrong(Exception):
    pass


def granules(span):
    rank, start, stop = span
    return [(rank, g) for g in range(start // GRANULE, -(-stop // GRANULE))]


def goes_wrong(run, limit=400_000):
    """Return what goes wrong in some order, None if nothing does."""
    threads, names = [], []
    for log in run.logs:
        if len(log.operations) > 1:  # the others only take part in the first syncthreads
            names.append(log)
            threads.append([])
            for slot, touches in enumerate(log.touches):
                threads[-1] += sorted(touches)
                threads[-1] += log.operations[slot : slot + 1]
    meetings = {}
    for t, steps in enumerate(threads):
        for at, step in enumerate(steps):
            if isinstance(step, Meet):
                meetings.setdefault((step.place, step.turn), []).append((t, at))
    initial = (0,) * len(threads), (), (), frozenset(), frozenset()
    seen, queue = {initial}, deque([initial])
    while queue:
        state = queue.popleft()
        try:
            following = list(steps_from(state, threads, names, meetings))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if not following and any(at < len(steps) for at, steps in zip(state[0], threads)):
            return "deadlock"
        fresh = set(following) - seen
        seen |= fresh
        queue.extend(fresh)
        assert len(seen) < limit
    return None


def steps_from(state, threads, names, meetings):
    ats, barriers, memory, copies, stores = state
    for t, steps in enumerate(threads):
        if ats[t] == len(steps):
            continue
        changed = act(t, steps[ats[t]], state, names, meetings)
        if changed is not None:
            yield (ats[:t] + (ats[t] + 1,) + ats[t + 1 :], *changed)
    for copy in copies:
        content, into, barrier, nbytes = copy
        filled = dict(memory) | dict.fromkeys(granules(into), content)
        change = partial(Mbarrier.complete_tx, nbytes=nbytes)
        changed = on_barrier(barriers, barrier, change, copies - {copy})
        yield ats, changed, frozen(filled), copies - {copy}, stores
    for store in stores:
        yield ats, barriers, memory, copies, stores - {store}


def act(t, step, state, names, meetings):
    """Return the state but for the threads' places after a step; None if it has to wait."""
    ats, barriers, memory, copies, stores = state
    if isinstance(step, Wait):
        count, pending, tx, phase = dict(barriers)[step.barrier]
        return (barriers, memory, copies, stores) if phase & 1 != step.wanted else None
    if isinstance(step, Meet):
        there = all(ats[other] >= at for other, at in meetings[step.place, step.turn])
        return (barriers, memory, copies, stores) if there else None
    if isinstance(step, AwaitStores):
        mine = (store for store in stores if store[0] == names[t].row and store[1] <= step.number)
        return None if any(mine) else (barriers, memory, copies, stores)
    if isinstance(step, Init):
        if step.barrier in dict(barriers):
            raise Wrong("a second init")
        barriers = frozen(dict(barriers) | {step.barrier: (step.count, step.count, 0, 0)})
    elif isinstance(step, Arrive | CountBytes):

        def change(model):
            if step.nbytes is not None:
                model.expect_tx(step.nbytes)
            if isinstance(step, Arrive):
                model.arrive(step.count)

        barriers = on_barrier(barriers, step.barrier, change, copies)
    elif isinstance(step, Issue):
        for transfer in step.transfers:
            free = set(granules(transfer.into))
            if any(free & set(granules(into)) for _, into, *_ in copies):
                raise Wrong("a load over a load")
            if any(free & set(granules(source)) for *_, source in stores):
                raise Wrong("a load over a store")
            copies |= {(transfer.content, transfer.into, transfer.barrier, transfer.nbytes)}
    elif isinstance(step, IssueStore):
        stores |= {(names[t].row, step.number, step.source)}
    else:
        touched = set(granules(step.span))
        if any(touched & set(granules(into)) for _, into, *_ in copies):
            raise Wrong("an access while a load is under way")
        if any(dict(memory).get(g, 0) != step.filled_by for g in touched):
            raise Wrong("an access to other contents")
        if step.writes and any(touched & set(granules(source)) for *_, source in stores):
            raise Wrong("a write under a store")
    return barriers, memory, copies, stores


def on_barrier(barriers, place, change, copies):
    count, pending, tx, phase = dict(barriers)[place]
    model = Mbarrier(count)
    model.pending, model.tx, model.phase = pending, tx, phase
    change(model)
    if model.pending == 0 and model.tx < 0:
        raise Wrong("too many bytes")
    if model.phase != phase and any(copy[2] == place for copy in copies):
        raise Wrong("a phase completes before its loads")
    changed = model.count, model.pending, model.tx, model.phase
    return frozen(dict(barriers) | {place: changed})


def frozen(mapping):
    return tuple(sorted(mapping.items()))
