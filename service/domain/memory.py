"""What a table, or a slice of one, costs in device memory."""

from dataclasses import dataclass

from service.domain.tables import Optimizer, Table

_FLOAT_BYTES = 4
_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on a device, by purpose; adds up part by part."""

    weights: int = 0
    optimizer: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.weights + self.optimizer + self.buffers

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.weights + other.weights, self.optimizer + other.optimizer, self.buffers + other.buffers)


def optimizer_bytes(table: Table, optimizer: Optimizer) -> int:
    """Bytes of optimizer state of one table or slice; row-wise state exists once for each slice."""
    per_row = {
        Optimizer.SGD: 0,
        Optimizer.ROWWISE_ADAGRAD: _FLOAT_BYTES,
        Optimizer.ADAGRAD: _FLOAT_BYTES * table.embedding_dim,
        Optimizer.ADAM: 2 * _FLOAT_BYTES * table.embedding_dim,
    }
    return table.num_embeddings * per_row[optimizer]


def buffer_bytes(table: Table, batch_size: int) -> int:
    """Bytes of one step's buffers: fp32 pooled output and its gradient, int64 indices and offsets."""
    pooled = 2 * batch_size * table.output_width * _FLOAT_BYTES
    indices = (table.lookups(batch_size) + batch_size * table.num_features + 1) * _INDEX_BYTES
    return pooled + indices


def table_memory(table: Table, batch_size: int, optimizer: Optimizer, count_buffers: bool) -> Memory:
    """Memory of one table or slice on the device that holds it.

    Args:
        table: the table, or the slice as a table of its width.
        batch_size: the global batch; every device looks up all of it for the tables that it holds.
        optimizer: the fused optimizer.
        count_buffers: False leaves buffers out.
    """
    buffers = buffer_bytes(table, batch_size) if count_buffers else 0
    return Memory(table.weight_bytes, optimizer_bytes(table, optimizer), buffers)
