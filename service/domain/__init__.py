"""Pure values and rules of embedding-table sharding; imports only the standard library and numpy."""
