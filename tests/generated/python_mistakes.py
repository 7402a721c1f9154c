"""Python that no kernel has: the compiler refuses it, and so does the simulator."""

from __future__ import annotations

import functools

from tests.generated import mistakes

#: Globals for these mistakes.
OBJECTS = """
import time

WORDS, MIXED, TABLE, SET, GLOBAL = [1, 2], [1, 2.0], {"a": 1}, {1, 2}, np.zeros(4)


def plain(value):
    return value


class Plain:
    value = 1


OBJECT = Plain()
"""
wrong = functools.partial(mistakes.wrong, objects=OBJECTS)

wrong("a set", "start", "q = {{1, 2}}")
wrong("a dictionary", "start", "q = {{1: 2}}")
wrong("an f-string", "start", "q = f'{{cuda.threadIdx.x}}'")
wrong("a try", "start", "try: q = 1\n    except ValueError: q = 2")
wrong("a yield", "start", "yield 1")
wrong("a list comprehension", "start", "q = [i * i for i in range(4)]")
wrong("a dict comprehension", "start", "q = {{i: i for i in range(4)}}")
wrong("a generator", "start", "q = sum(i for i in range(4))")
wrong("an empty list that grows", "start", "q = []; q.append(1)")
wrong("a class", "start", "class A: pass")
wrong("a with", "start", "with open('x') as q: pass")
wrong("an import", "start", "import math; q = math.sin(1.0)")
wrong("a global statement", "start", "global Q; Q = 1")
wrong("del of a variable", "start", "q = 1; del q")
wrong("a print of a format", "start", "print('%d' % 1)")
wrong("a call with double stars", "start", "q = dict(a=1); r = max(**q)")
wrong("a starred assignment", "start", "q, *r = (1, 2, 3)")
wrong("a string method", "start", "q = 'a'.upper()")
wrong("a bytes object", "start", "q = bytes(3)")
wrong("getattr", "start", "q = getattr(cuda, 'threadIdx')")
wrong("open", "start", "q = open('/dev/null')")
wrong("a NumPy array", "start", "q = np.zeros(4)")
wrong("a matrix product", "start", "q = y @ y")
wrong("an array attribute", "start", "q = y.base", "attribute 'base'")
wrong("a method of an array", "start", "q = y.tolist()", "attribute 'tolist'")
wrong("an unknown name", "start", "q = unknown_name")
wrong("an unknown name of cuda", "start", "q = cuda.thread_index()")
wrong("cuda.to_device in a kernel", "start", "q = cuda.to_device(y)")
wrong("a plain function", "start", "q = plain(1)")
wrong("a plain function with a tile", "start", "q = plain(TILE)")
wrong("a global list that is written", "start", "WORDS[0] = 1")
wrong("a global list of mixed types", "start", "q = MIXED[0]")
wrong("a global dictionary", "start", "q = TABLE['a']")
wrong("a global set", "start", "q = 1 in SET")
wrong("a global object", "start", "q = OBJECT.value")
wrong("a global array that is written", "start", "GLOBAL[0] = 1")
wrong("time", "start", "q = time.time()")
wrong("a random number", "start", "q = np.random.random()")
wrong(
    "a shared array of a variable size",
    "start",
    "q = cuda.shared.array(cuda.threadIdx.x + 1, types.float32)",
)
wrong("a shared array without a type", "start", "q = cuda.shared.array(4)")
wrong(
    "a local array of a variable size",
    "start",
    "q = cuda.local.array(cuda.threadIdx.x + 1, types.float32)",
)
wrong("a store to a float index of an array", "start", "y[0.0, 0] = 1")
wrong("three indices of an array", "start", "y[0, 0, 0] = 1")
wrong("a string into an array", "start", "y[0, 0] = 'a'")
wrong("a complex into an array", "start", "y[0, 0] = 1j")
wrong("sorted", "start", "q = sorted((2, 1))")
wrong("return of a value", "start", "if cuda.threadIdx.x > 2000: return 1")
