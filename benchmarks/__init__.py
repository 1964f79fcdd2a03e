"""Commands behind every number that the project states."""
