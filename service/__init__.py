"""Shardwright: plans embedding-table sharding from measured costs."""
