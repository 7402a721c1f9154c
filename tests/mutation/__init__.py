"""Mutation testing of the library: do the tests notice a small, realistic bug?

`sites` lists the bugs, `covering` records which test files reach which lines, `trial` puts one bug
into a copy of the tree and runs the tests, and `python -m tests.mutation` does it for a sample.
"""
