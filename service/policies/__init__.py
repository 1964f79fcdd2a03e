"""Policies that place tables one by one, evaluated with numpy."""
