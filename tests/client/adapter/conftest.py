"""These tests need torchrec; `make test-torchrec` installs it and runs them."""

import warnings
from importlib.util import find_spec

if find_spec("torchrec") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import shardwright_client.torchrec  # noqa: F401
