"""Algorithms that place tables on devices, priced through the cost-model ports; numpy only."""
