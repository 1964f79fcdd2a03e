"""Versions of models on a file system: manifests, integrity, loading."""
