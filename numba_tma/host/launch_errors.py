"""What the errors of a launch usually mean."""

from __future__ import annotations

#: By the driver's name of the error.
HINTS = {
    "CUDA_ERROR_INVALID_HANDLE": "is its stream alive, and one of this device?",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "is its stream alive?",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "it was compiled on another kind of GPU: make a launcher there",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "no group of SMs has room for such a cluster: use fewer "
    "blocks in one, fewer threads, or less shared memory",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use fewer threads, or fewer stages",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel failed, and the context is lost",
    "CUDA_ERROR_LAUNCH_FAILED": "an earlier kernel failed, and the context is lost",
}
