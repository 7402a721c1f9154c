"""Names of what lies beyond an array's edges."""

#: The boundaries that elements of the array stand for, as `numpy.pad` names them.
BOUNDARIES = ("edge", "reflect", "symmetric", "wrap")
