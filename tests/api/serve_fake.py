"""A service with fake cost models as a process of its own: ``python -m tests.api.serve_fake``."""

from service.settings import Settings
from service.wiring import serve
from tests.api.support import FACTORY

if __name__ == "__main__":
    serve(Settings(), FACTORY)
