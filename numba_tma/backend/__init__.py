"""The border between the library and a compiler.

- `interface`: the kinds of primitive that the library is written in; imports no compiler;
- `compiler`: the names that lowerings are written in, taken from the chosen backend;
- `lowering`: the lowerings of natives, under the name of the module that declares them;
- `numba_cuda`: the backend of numba-cuda, the one package that imports its insides.
"""
