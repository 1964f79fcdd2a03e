"""A service with fake cost models as a process of its own: ``python -m tests.api.serve_fake``."""

if __name__ == "__main__":
    # Planning processes import this module again: it is their parent's main module.
    from service.settings import Settings
    from service.wiring import serve
    from tests.api.support import FACTORY

    serve(Settings(), FACTORY)
