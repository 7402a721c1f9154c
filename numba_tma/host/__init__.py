"""What happens before a launch: element types, layouts, tensor maps, launchers. No Numba."""
