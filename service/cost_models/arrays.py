"""Checks that a version's arrays are those that the code can evaluate."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from service.domain.errors import DamagedArtifact

Arrays = Mapping[str, NDArray[np.float32]]
Shapes = Mapping[str, tuple[int | str, ...]]


def check_arrays(version: str, arrays: Arrays, shapes: Shapes) -> None:
    """Raises DamagedArtifact unless every array of ``shapes`` is there, with these axes and finite.

    Args:
        version: named in the error.
        arrays: what was read.
        shapes: axes of each array; a number is a size, a letter an axis that has the same size in all arrays.
    """
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None or not _has_shape(array, shape, sizes):
            found = "missing" if array is None else f"of shape {array.shape}"
            raise DamagedArtifact(
                f"{version}: array {name} is {found}, expected axes {shape}: restore the version or train a new one"
            )
        if not np.isfinite(array).all():
            raise DamagedArtifact(
                f"{version}: array {name} holds values that are not finite: restore the version or train a new one"
            )


def _has_shape(array: NDArray[np.float32], shape: Sequence[int | str], sizes: dict[str, int]) -> bool:
    if array.ndim != len(shape):
        return False
    wanted = [
        axis if isinstance(axis, int) else sizes.setdefault(axis, found)
        for axis, found in zip(shape, array.shape, strict=True)
    ]
    return list(array.shape) == wanted
