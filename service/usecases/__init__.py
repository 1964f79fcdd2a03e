"""What the service does for its callers, free of HTTP, storage and processes."""
