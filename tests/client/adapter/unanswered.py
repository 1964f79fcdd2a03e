"""Trains, observed by a service that never answers: `python -m tests.client.adapter.unanswered URL FOLDER SECONDS`."""

import sys
from pathlib import Path

from shardwright_client import Client
from shardwright_client.torchrec import PlanObserver
from tests.client.adapter.ranks import PLAN, alone, train_alone

if __name__ == "__main__":
    url, folder, closing = sys.argv[1:]
    with alone(Path(folder)) as model:
        observer = PlanObserver(model, PLAN, client=Client(url), sample_every=1, report_every=1)
        train_alone(model, observer, 3)
        sys.stdout.write("trained\n")
        sys.stdout.flush()
        if closing:
            observer.close(float(closing))
