"""The border between the library and a compiler.

- `interface`: the kinds of primitive that everything else is written in; imports no compiler;
- `compiler`: the names that lowerings are written in, from the backend that is chosen there;
- `lowering`: what cannot be a Python body, under the name of the module that declares it;
- `numba_cuda`: the backend of numba-cuda, which alone imports its insides.
"""
