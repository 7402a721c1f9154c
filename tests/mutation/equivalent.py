"""Mutations that change nothing which anyone can observe, each with the reason."""

from __future__ import annotations

from tests.mutation.sites import Mutation

#: (path, the line with the mutation) to the reason.
EQUIVALENT: dict[tuple[str, str], str] = {}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    line = mutation.apply(source).splitlines()[mutation.line - 1].strip()
    return EQUIVALENT.get((mutation.path, line), "")
