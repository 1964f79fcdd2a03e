"""Files of versions at ``<root>/<hardware>/<model>/<version>/{manifest.json, weights.safetensors}``.

The root is any fsspec location. Weights are safetensors with their sha256 in the manifest, and the manifest carries
a hash of itself: no pickle is ever loaded, and a damaged file is refused by name. A version is there while its
manifest is: that is written last and deleted first.
"""

import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from service.domain.errors import DamagedArtifact, ModelStoreUnwritable, ModelsUnavailable
from service.domain.plan import content_hash
from service.domain.topology import HARDWARE_PATTERN
from service.domain.versions import ModelName, Version

FORMAT = 1
"""Layout of a manifest; raised when it changes."""

RETRY_AFTER_S = 10
"""Seconds after which a store that was away is worth another look."""

_MANIFEST, _WEIGHTS = "manifest.json", "weights.safetensors"
_MEASUREMENTS, _MEASUREMENT_FILE = "measurements", "measurements.json.gz"


class Artifacts:
    """Reads, writes and deletes the files under one root."""

    def __init__(self, root: str) -> None:
        """Reads nothing yet."""
        self._fs: fsspec.AbstractFileSystem
        self._fs, self._root = url_to_fs(root)

    @property
    def root(self) -> str:
        """Where they are, for people."""
        return str(self._fs.unstrip_protocol(self._root))

    def hardware(self) -> list[str]:
        """Names of hardware that there are folders of; sorted."""
        # A volume's own folders are none: lost+found, which nobody may read.
        return [name for name in self._children(self._root) if re.fullmatch(HARDWARE_PATTERN, name)]

    def models(self, hardware: str) -> list[str]:
        """Names of models of a hardware that there are folders of; sorted."""
        return [name for name in self._children(self._path(hardware)) if name != _MEASUREMENTS]

    def numbers(self, model: ModelName) -> list[int]:
        """Numbers of a model that are taken, by versions and by what is unfinished; sorted."""
        return sorted(int(name) for name in self._children(self._path(*model)) if name.isdecimal())

    def has(self, model: ModelName, number: int) -> bool:
        """Whether a version is there."""
        return bool(self._fs.exists(self._path(*model, str(number), _MANIFEST)))

    def manifest(self, version: Version) -> dict[str, Any]:
        """What a version says of itself, integrity checked.

        Raises:
            DamagedArtifact: it is missing, altered or of another format.
        """
        try:
            manifest = json.loads(self._bytes(version, _MANIFEST), parse_constant=_refuse_constant)
        except ValueError as error:
            raise DamagedArtifact(f"{version}: {_MANIFEST} is not JSON: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise DamagedArtifact(f"{version}: {_MANIFEST} is not of format {FORMAT}, which this code reads")
        stated = manifest.pop("manifest_hash", None)
        if stated != content_hash(manifest) or manifest.get("version") != str(version):
            raise DamagedArtifact(f"{version}: {_MANIFEST} was altered: restore it or train a new version")
        return manifest

    def read(self, version: Version) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Manifest and arrays of a version, integrity checked.

        Raises:
            DamagedArtifact: a file is missing, altered or of another format.
        """
        manifest = self.manifest(version)
        raw = self._bytes(version, _WEIGHTS)
        if hashlib.sha256(raw).hexdigest() != manifest["weights_sha256"]:
            raise DamagedArtifact(f"{version}: {_WEIGHTS} does not match its sha256: restore it or train a new version")
        try:
            return manifest, load(raw)
        except SafetensorError as error:
            raise DamagedArtifact(f"{version}: {_WEIGHTS} is not a safetensors file: {error}") from error

    def refuse_unwritable(self) -> None:
        """Writes a file and deletes it; raises ModelStoreUnwritable where that fails."""
        trial = posixpath.join(self._root, f".{uuid.uuid4().hex}")
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(trial, b"")
            self._fs.rm(trial)
        except OSError as error:
            raise ModelStoreUnwritable(
                f"the model store {self.root} cannot be written to: {error}; make it writable, or set "
                "SHARDWRIGHT_MODEL_STORE to one that is"
            ) from error

    def write(self, model: ModelName, weights: Mapping[str, NDArray[np.float32]], facts: Mapping[str, Any]) -> Version:
        """Writes the next version, whole or not at all.

        Args:
            model: what it is a version of.
            weights: arrays by name.
            facts: what the manifest says besides format, name and hashes; JSON-like.
        """
        raw = save({name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()})
        facts = {**facts, "weights_sha256": hashlib.sha256(raw).hexdigest()}
        content_hash(facts)  # What JSON cannot hold is refused before anything is written.
        version = self._claimed(model, raw)
        folder = self._folder(version)
        try:
            manifest = {"format": FORMAT, "version": str(version), **facts}
            manifest["manifest_hash"] = content_hash(manifest)
            # The manifest comes last and in one step: a version without one is none.
            unfinished = posixpath.join(folder, f".{_MANIFEST}")
            self._fs.pipe_file(unfinished, json.dumps(manifest, indent=1).encode() + b"\n")
            self._fs.mv(unfinished, posixpath.join(folder, _MANIFEST))
        except BaseException:
            self._fs.rm(folder, recursive=True)
            raise
        return version

    def delete(self, model: ModelName, number: int) -> None:
        """Deletes a version, or what is left of one; from its first step on it is no version any more."""
        folder = self._path(*model, str(number))
        if self.has(model, number):
            self._fs.rm(posixpath.join(folder, _MANIFEST))
        if self._fs.exists(folder):
            self._fs.rm(folder, recursive=True)

    def measurement_file(self, hardware: str) -> str:
        """Where the measurements behind a hardware's versions are kept; a path for fsspec."""
        return str(self._fs.unstrip_protocol(self._path(hardware, _MEASUREMENTS, _MEASUREMENT_FILE)))

    def measurement_files(self) -> dict[str, str]:
        """The measurement files that are there, by hardware."""
        found = {name: self._path(name, _MEASUREMENTS, _MEASUREMENT_FILE) for name in self.hardware()}
        return {name: self.measurement_file(name) for name, path in found.items() if self._fs.exists(path)}

    def _claimed(self, model: ModelName, raw: bytes) -> Version:
        """The next number, its weights written: two writers never share one."""
        while True:
            version = Version(*model, max(self.numbers(model), default=0) + 1)
            folder = self._folder(version)
            # The second of two writers is refused either step: the first where folders are things of their own, the
            # second on object stores, which have none.
            with suppress(FileExistsError):
                self._fs.makedirs(folder, exist_ok=False)
                try:
                    self._fs.pipe_file(posixpath.join(folder, _WEIGHTS), raw, mode="create")
                except FileExistsError:
                    raise
                except BaseException:
                    self._fs.rm(folder, recursive=True)
                    raise
                return version

    def _bytes(self, version: Version, name: str) -> bytes:
        try:
            return bytes(self._fs.cat_file(posixpath.join(self._folder(version), name)))
        except OSError as error:
            raise DamagedArtifact(f"{version}: {name} cannot be read: {error}") from error

    def _children(self, path: str) -> list[str]:
        # Object stores remember what they listed, and others write too.
        self._fs.invalidate_cache(path)
        try:
            children = self._fs.ls(path, detail=False) if self._fs.isdir(path) else []
        except OSError as error:
            raise ModelsUnavailable(
                f"the model store cannot be read; whoever runs the service must make it readable: {error}",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        return sorted(posixpath.basename(child.rstrip("/")) for child in children)

    def _folder(self, version: Version) -> str:
        return self._path(version.hardware, version.model, str(version.number))

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._root, *parts)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
