"""The models that choose what an active campaign measures next."""

import tempfile
from datetime import UTC, datetime

import typer

from service.cli.common import fail
from service.domain.errors import TooFewMeasurements
from service.domain.ports import CostModels, MeasurementStore
from service.profiling.active import Chooser
from service.registry.store import COMMUNICATION, COMPUTE, ModelStore, Version
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import train_compute_version


class Choosers:
    """The newest models of some hardware; the compute model is trained anew as measurements come in.

    What is trained here is never served: it is gone with the command. Where the stored measurements are too few to
    train on, the models stay as they are.

    Args:
        models: keeps the version that the first rounds are chosen by.
        hardware: what is measured.
        measurements: all that are stored, those of this campaign among them.
        retrain_every: measurements of this run after which the compute model is trained anew; 0 never does.
    """

    def __init__(self, models: ModelStore, hardware: str, measurements: MeasurementStore, retrain_every: int) -> None:
        for kind in (COMPUTE, COMMUNICATION):
            if not (models.latest if kind == COMPUTE else models.newest)(hardware, kind):
                fail(
                    f"shardwright: --active: no {kind} version of {hardware} was trained: run `shardwright profile "
                    f"--hardware {hardware}` without --active, then `shardwright train {kind} --hardware {hardware}`"
                )
        self._hardware = hardware
        self._measurements = measurements
        self._retrain_every = retrain_every
        self._trained_at = 0
        newest = models.cost_models(hardware)
        self._current = Chooser(newest, f"{newest.compute.version}, {newest.digest[:12]}")

    def __call__(self, measured: int) -> Chooser:
        """The models for the next round, after this many measurements of the run."""
        if self._retrain_every and measured - self._trained_at >= self._retrain_every:
            self._trained_at = measured
            self._retrain()
        return self._current

    def _retrain(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            scratch = ModelStore(folder, {})
            try:
                trained = train_compute_version(
                    self._hardware, self._measurements, scratch, ComputeTraining(), datetime.now(UTC)
                )
            except TooFewMeasurements as error:
                typer.echo(f"shardwright: the models go on choosing as they are: {error.detail}", err=True)
                return
            version = Version.parse(trained.version)
            manifest, _ = scratch.read(version)
            compute = scratch.compute_model(version)
        digest = str(manifest["weights_sha256"])
        models = CostModels(compute, self._current.models.communication, digest)
        self._current = Chooser(models, f"trained anew on {trained.rows['train']} combinations, {digest[:12]}")
