"""``python -m shardwright_client``."""

import sys

from shardwright_client.command import main

sys.exit(main())
