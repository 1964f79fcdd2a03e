"""What the measurements behind a compute model cover."""

from dataclasses import dataclass

from service.domain.tables import DataType, Optimizer


@dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """What the measurements behind a model cover.

    Attributes:
        batch_sizes: smallest and largest global batch.
        dims: narrowest and widest table.
        rows: fewest and most rows.
        pooling_factors: smallest and largest pooling factor.
        optimizers: optimizers measured.
        data_types: precisions measured.
        pooling_modes: ways of combining rows measured.
        pairs: optimizers and precisions that were measured together.
    """

    batch_sizes: tuple[int, int]
    dims: tuple[int, int]
    rows: tuple[int, int]
    pooling_factors: tuple[float, float]
    optimizers: tuple[str, ...]
    data_types: tuple[str, ...]
    pooling_modes: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]

    def only_apart(self, optimizer: Optimizer, data_type: DataType) -> bool:
        """Whether both were measured, but never together."""
        known = optimizer.value in self.optimizers and data_type.value in self.data_types
        return known and (optimizer.value, data_type.value) not in self.pairs
