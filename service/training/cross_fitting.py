"""Predictions of exchanges by models that were not trained on them, for more of them than the validation part has.

The devices of one exchange err much alike, so that an error law of a hundred exchanges, with all their devices, is
uncertain by several percent of coverage. Training is a matter of seconds: the train part serves too, part by part.
"""

from collections.abc import Sequence

from service.cost_models.communication import CommunicationModel, MeasuredExchanges
from service.domain.measurements import CommunicationMeasurement
from service.training.communication_dataset import Exchanges, Values, exchange_groups
from service.training.communication_evaluation import predict
from service.training.communication_trainer import CommunicationTraining, train_communication

FOLDS = 4
"""Parts of the train part, each predicted by a model that was trained on the others and on the validation part."""


def held_out_exchanges(
    model: CommunicationModel,
    train: Sequence[CommunicationMeasurement],
    validation: Sequence[CommunicationMeasurement],
    known: MeasuredExchanges,
    config: CommunicationTraining,
) -> list[tuple[Exchanges, Values]]:
    """Groups of exchanges, and their predicted forward transfers and backward exchanges, [N, D, 2] each.

    Args:
        model: trained on the train part; it predicts the validation part.
        train: the train part.
        validation: what chose the model's epoch, as each fold chooses its own model's.
        known: what was measured.
        config: what the model was trained with.
    """
    found = [(group, predict(model, group)) for group in exchange_groups(validation)]
    for fold in range(FOLDS):
        out = exchange_groups(train[fold::FOLDS])
        rest = [row for i, row in enumerate(train) if i % FOLDS != fold]
        weights = train_communication(exchange_groups([*rest, *validation]), out, config)
        other = CommunicationModel(model.version, weights, known)
        found += [(group, predict(other, group)) for group in out]
    return found
