"""What the versions of a store were trained on, from their manifests."""

import json
from posixpath import join, relpath

from fsspec.core import url_to_fs

from service.domain.errors import DamagedArtifact
from service.domain.retention import TrainedBench

_MEASURED = ("compute", "communication")
"""Models that are trained on measurements."""


def trained_benches(root: str) -> set[TrainedBench]:
    """The benches that the versions under a root were trained on.

    Args:
        root: any fsspec location; one that is not there holds no version.

    Raises:
        DamagedArtifact: a manifest cannot be read.
    """
    files, base = url_to_fs(root)
    found = set()
    for path in files.glob(join(base, "*", "*", "*", "manifest.json")):
        hardware, model, number, _ = relpath(path, base).split("/")
        if model not in _MEASURED:
            continue
        try:
            environments = json.loads(files.cat_file(path))["environments"]
            # The first measurements were stored without their bench.
            found |= {TrainedBench(hardware, model, int(said.get("bench", "1"))) for said in environments}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            name = f"{hardware}/{model}/{number}"
            raise DamagedArtifact(f"{name}: manifest.json does not say what it was trained on: {error!r}") from error
    return found
