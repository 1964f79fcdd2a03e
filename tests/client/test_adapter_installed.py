"""The adapter's tests are in a folder of their own, which is left out where TorchRec is not installed."""

from importlib import import_module
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torchrec") is None, reason="torchrec is not installed: see `make test-torchrec`")
@pytest.mark.filterwarnings("ignore")
def test_the_adapter_has_what_it_names() -> None:
    adapter = import_module("shardwright_client.torchrec")
    assert all(hasattr(adapter, name) for name in adapter.__all__)
