"""Predictions of the train part's exchanges by models that were not trained on them.

The devices of one exchange err much alike, so that an error law of a hundred exchanges, with all their devices, is
uncertain by several percent of coverage. Training is a matter of seconds: the train part serves, part by part.
"""

from collections.abc import Sequence

from service.cost_models.communication import CommunicationModel, MeasuredExchanges
from service.domain.measurements import CommunicationMeasurement
from service.training.communication_dataset import Exchanges, Values, exchange_groups
from service.training.communication_evaluation import predict
from service.training.communication_trainer import CommunicationTraining, train_communication

FOLDS = 4
"""Parts of the train part, each predicted by a model that was trained on the others."""


def held_out_exchanges(
    train: Sequence[CommunicationMeasurement],
    validation: Sequence[Exchanges],
    known: MeasuredExchanges,
    config: CommunicationTraining,
) -> list[tuple[Exchanges, Values]]:
    """Groups of the train part's exchanges, and their predicted forward transfers and backward exchanges, [N, D, 2].

    Errors that chose an epoch are smaller than those of new exchanges: no row does that is predicted.

    Args:
        train: the train part.
        validation: what chooses each model's epoch.
        known: what was measured.
        config: what the models are trained with.
    """
    found = []
    for fold in range(FOLDS):
        rest = [row for i, row in enumerate(train) if i % FOLDS != fold]
        weights = train_communication(exchange_groups(rest), validation, config)
        model = CommunicationModel("cross-fitted", weights, known)
        found += [(group, predict(model, group)) for group in exchange_groups(train[fold::FOLDS])]
    return found
