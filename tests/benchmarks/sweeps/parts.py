"""Compiling in several processes, into the kernel cache, before a sweep measures."""

from __future__ import annotations

import argparse
import subprocess
import sys


def add_options(parser):
    """Add ``--prepare J``, and the option by which a process learns its part."""
    parser.add_argument("--prepare", type=int, default=0, metavar="J")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)


def share_of(cases, given):
    """Return the cases of this process.

    A part of them in a process that compiles, whose number is ``given.part``. All of them in the
    one that measures, after ``given.prepare`` processes have compiled the parts.
    """
    if given.part is not None:
        return cases[given.part :: given.prepare]
    command = [sys.executable, *sys.argv]
    parts = [
        subprocess.Popen([*command, "--part", str(i)], stdout=subprocess.DEVNULL)
        for i in range(given.prepare)
    ]
    for part in parts:
        part.wait()
    return cases
