"""Stages that are acquired and never released, found in a function's control flow.

After type inference, the stages that a handle holds are counted along the control-flow graph. Each
point of the function has a least number of held stages, over all paths to it, and a largest number
of stages that can still be released, over all paths from it. If more stages are held than can be
released, every run through the point ends with a held stage, whatever the conditions are. Such a
point is an error. The simulator finds all other cases. The analysis reports no path that might not
be taken: a release under the same condition as its wait, or an iteration later, is never reported.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.typed_passes import NopythonTypeInference

from numba_tma.backend.numba_cuda.handles import Handle, handles_of
from numba_tma.backend.numba_cuda.object_types import ObjectType
from numba_tma.backend.numba_cuda.passes import runs_after

#: The effect of a statement on the number of held stages: a number to add, or None for the end.
Effect = int | None


@runs_after(NopythonTypeInference, "looking for stages that are never released")
def check_releases(state: Any) -> None:
    """Raise a TypingError for a stage that is never released."""
    for watched, handle in _opened(state.typemap):
        flow = _Flow(state, watched, handle)
        # The stages of a handle that the caller passed may be released by the caller.
        if not any(map(flow.concerns, state.args)):
            flow.check()


def _opened(typemap: dict[str, types.Type]) -> list[tuple[ObjectType, Handle]]:
    """Return the types of the handles on which stages are acquired, and the kinds of stages."""
    found: dict[tuple[ObjectType, Handle], None] = {}
    for typ in typemap.values():
        if isinstance(typ, types.BoundFunction) and isinstance(typ.this, ObjectType):
            for handle in handles_of(typ.this.cls):
                if typ.typing_key[-1] in handle.opens:
                    found[typ.this, handle] = None
    return list(found)


def _reaches(typ: Any, watched: set[types.Type]) -> bool:
    """Return whether an object of type `typ` is, or holds, one of a type in `watched`."""
    if typ in watched:
        return True
    parts = (*getattr(typ, "field_types", ()), *getattr(typ, "types", ()))
    return any(_reaches(part, watched) for part in parts)


def _fields(typ: Any) -> tuple[Any, ...]:
    return tuple(getattr(typ, "field_types", ()))


def _is_released_apart(part: Any) -> bool:
    """Return whether a handle's field has methods that release the handle's stages."""
    return isinstance(part, ObjectType) and part.cls.__qualname__ == "StagedPipeline"


class _Flow:
    """The control flow of a function, and its effects on one kind of stages of a type of handle."""

    def __init__(self, state: Any, watched: ObjectType, handle: Handle) -> None:
        self.typemap, self.calltypes = state.typemap, state.calltypes
        self.watched, self.handle = watched, handle
        self.blocks = state.func_ir.blocks
        self.entry = min(self.blocks)
        self.next = {b: _successors(block) for b, block in self.blocks.items()}
        self.related = self.related_types()
        self.effects: dict[int, list[tuple[Any, Effect]]] = {
            b: [
                (statement, effect)
                for statement in block.body
                if (effect := self.effect(statement)) != 0
            ]
            for b, block in self.blocks.items()
        }
        self.limit = sum(e == 1 for block in self.effects.values() for _, e in block)

    # -------------------------------------------------------------- what a statement does

    def related_types(self) -> set[types.Type]:
        """Return the types of the handle, of the objects that return it, and of its stages."""
        found: set[types.Type] = {self.watched, *filter(_is_released_apart, _fields(self.watched))}
        methods = [
            (called, self.calltypes[call].return_type)
            for block in self.blocks.values()
            for call in _calls(block)
            if (called := self.method(call)) is not None
        ]
        before = 0
        while before != len(found):
            before = len(found)
            found |= {owner for (owner, _), result in methods if _reaches(result, found)}
        stages = {r for called, r in methods if called == (self.watched, "opens")}
        return found | {s for s in stages if isinstance(s, ObjectType)}

    def method(self, call: Any) -> tuple[types.Type, str] | None:
        """Return the object's type and the method's name, for a call of the library's methods."""
        function = self.typemap.get(call.func.name)
        if not isinstance(function, types.BoundFunction):
            return None
        if not isinstance(function.this, ObjectType):
            return None
        name = function.typing_key[-1]
        if function.this == self.watched:
            kinds = [k for k in ("opens", "closes", "keeps") if name in getattr(self.handle, k)]
            return function.this, kinds[0] if kinds else ""
        keeps = all(name in handle.keeps for handle in handles_of(function.this.cls))
        return function.this, "keeps" if keeps else ""

    def effect(self, statement: Any) -> Effect:
        value = getattr(statement, "value", None)
        if not isinstance(statement, ir.assign_types) or not isinstance(value, ir.expr_types):
            return 0
        if value.op in ("iternext", "getiter"):
            return None if self.concerns(self.typemap[value.value.name]) else 0
        if value.op != "call":
            return 0
        given = [*value.args, *(v for _, v in value.kws), *filter(None, [value.vararg])]
        if any(self.concerns(self.typemap[v.name]) for v in given):
            return None  # the callee may release the stages of its arguments
        called = self.method(value)
        if called is None or not self.concerns(called[0]):
            return 0
        owner, kind = called
        if owner != self.watched:
            return 0 if kind == "keeps" else None
        return {"opens": 1, "closes": -1, "keeps": 0, "": None}[kind]

    def concerns(self, typ: types.Type) -> bool:
        return _reaches(typ, self.related)

    # ------------------------------------------------------------------------- counting

    def check(self) -> None:
        """Raise a TypingError if there is a point from which a stage is never released."""
        before, after = self.held(), self.owed()
        never: list[Any] = []
        somewhere: list[Any] = []
        decisive: list[tuple[int, int]] = []
        for b in sorted(before):
            held, left = before[b], self.exit(b, after)
            for i, (statement, effect) in enumerate(self.effects[b]):
                held = self.apply(held, effect)
                rest = self.rest([e for _, e in self.effects[b][i + 1 :]], left)
                if effect == 1 and rest is not None and held + rest > 0:
                    (somewhere if self.closes_after(b, i) else never).append(statement)
            for target in self.next[b]:
                rest = after.get(target)
                if rest is not None and left is not None and min(held, held + rest) > 0:
                    if held + left <= 0:
                        decisive.append((b, target))
        if never:
            self.report(never[0], "a stage that no {release} follows", "after its use")
        if decisive:
            way = f"a stage that is not released {self.path(*decisive[0])}"
            self.report(self.last_opened(decisive[0][0]), way, "on that way too")
        if somewhere:
            lost = "one stage more than {release} releases after it"
            self.report(somewhere[-1], lost, "once for each")

    def closes_after(self, block: int, place: int) -> bool:
        """Return whether anything after an effect of `block` may release a stage."""
        seen: set[int] = set()
        effects, todo = self.effects[block][place + 1 :], list(self.next[block])
        while not any(effect != 1 for _, effect in effects):
            todo = [b for b in todo if b not in seen]
            if not todo:
                return False
            seen.add(b := todo.pop())
            effects = self.effects[b]
            todo += self.next[b]
        return True

    def held(self) -> dict[int, int]:
        """Return the least number of stages held before each block, over all paths to it."""
        before, todo = {self.entry: 0}, [self.entry]
        while todo:
            block = todo.pop()
            held = before[block]
            for _, effect in self.effects[block]:
                held = self.apply(held, effect)
            for target in self.next[block]:
                if target not in before or held < before[target]:
                    before[target] = held
                    todo.append(target)
        return before

    def owed(self) -> dict[int, int]:
        """Return the best effect of the rest of the function, from each block that can return."""
        after: dict[int, int] = {}
        changed = True
        while changed:
            changed = False
            for b in self.blocks:
                rest = self.rest([e for _, e in self.effects[b]], self.exit(b, after))
                if rest is not None and rest != after.get(b):
                    after[b] = rest
                    changed = True
        return after

    def apply(self, held: int, effect: Effect) -> int:
        """Return the stages held after an effect."""
        if effect is None:
            return 0
        held = max(held + effect, 0)
        return min(held, 1) if self.handle.at_most_one else held

    def exit(self, block: int, after: dict[int, int]) -> int | None:
        """Return the best effect after a block; None if the function does not return."""
        terminator = self.blocks[block].terminator
        if isinstance(terminator, ir.return_types):
            return 0
        if not self.next[block]:
            return -self.limit  # the block raises: its held stages do not matter
        return min((after[t] for t in self.next[block] if t in after), default=None)

    def rest(self, effects: list[Effect], rest: int | None) -> int | None:
        """Return the total of `effects`, followed by `rest`."""
        if rest is None:
            return None
        for effect in reversed(effects):
            if effect == 1 and self.handle.at_most_one:
                continue  # it does not change what the rest releases of the stage before
            rest = -self.limit if effect is None else max(rest + effect, -self.limit)
        return rest

    # ------------------------------------------------------------------------ reporting

    def last_opened(self, block: int) -> Any:
        """Return the last wait before the end of `block`."""
        before: dict[int, list[int]] = {}
        for b, targets in self.next.items():
            for target in targets:
                before.setdefault(target, []).append(b)
        seen, todo = {block}, [block]
        while todo:
            b = todo.pop(0)
            for statement, effect in reversed(self.effects[b]):
                if effect == 1:
                    return statement
            todo += [p for p in before.get(b, ()) if p not in seen]
            seen.update(todo)
        raise AssertionError("nothing is held that was not waited for")

    def report(self, statement: Any, lost: str, where: str) -> None:
        method = self.typemap[statement.value.func.name].typing_key[-1]
        name = _receiver(statement.loc, method) or self.watched.cls.__name__.lower()
        release = f"{name}.{self.handle.closes[0]}()"
        loop = f", or let {self.handle.loop} do it" if self.handle.loop else ""
        raise TypingError(
            f"line {statement.loc.line}: {name}.{method}() acquires "
            f"{lost.format(release=release)}; {self.handle.hangs}. Call {release} {where}{loop}",
            loc=statement.loc,
        )

    def path(self, block: int, target: int) -> str:
        """Return the text of the path from a branch of the function to `target`."""
        branch, there = self.blocks[block].terminator, self.blocks[target].body[0].loc
        text = _source(branch.loc)
        ends = re.match(r"(break|continue|return)\b", _source(there))
        leave = f" (the `{ends[1]}` at line {there.line})" if ends else ""
        if not isinstance(branch, ir.branch_types):
            return f"after line {branch.loc.line}"
        found = re.match(r"(if|elif|while|for)\b(.*)", text)
        if not found:
            return f"on the way from line {branch.loc.line} to line {there.line}{leave}"
        word, condition = found.groups()
        taken = target == branch.truebr
        if condition.startswith(" not ") and not re.search(r"\b(and|or)\b", condition):
            taken = not taken
        where = f"the `{word}` at line {branch.loc.line}"
        if word in ("while", "for"):
            return f"when {where} goes on{leave}" if taken else f"when {where} ends{leave}"
        return f"when {where} is {'taken' if taken else 'not taken'}{leave}"


def _successors(block: Any) -> list[int]:
    return list(dict.fromkeys(block.terminator.get_targets()))


def _calls(block: Any) -> list[Any]:
    values = [s.value for s in block.body if isinstance(s, ir.assign_types)]
    return [v for v in values if isinstance(v, ir.expr_types) and v.op == "call"]


def _source(loc: Any) -> str:
    return linecache.getline(loc.filename, loc.line).strip()


def _receiver(loc: Any, method: str) -> str | None:
    """Return the source text before ``.method(``, if it is simple."""
    found = re.search(rf"([\w.]+(?:\(\))?)\.{method}\(", _source(loc))
    return found[1] if found else None
