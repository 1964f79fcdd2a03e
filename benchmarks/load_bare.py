"""What the service is compared with: routes as FastAPI has them, which read the same bodies and return the same ones.

Run: python -m benchmarks.load_bare FOLDER, which has ``plan.json`` and ``estimate.json``, answers of the service.
"""

import logging
import socket
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from service.api.answers import EstimateAnswer, PlanAnswer
from service.api.schemas import PlanRequest, ShardsEstimateRequest


def bare_app(folder: Path) -> FastAPI:
    """Two routes that parse the body, check it against the schema, and serialize an answer."""
    app = FastAPI()
    plan = PlanAnswer.model_validate_json((folder / "plan.json").read_bytes())
    estimate = EstimateAnswer.model_validate_json((folder / "estimate.json").read_bytes())

    @app.post("/plan")
    async def post_plan(body: PlanRequest) -> PlanAnswer:
        return plan

    @app.post("/estimate")
    async def post_estimate(body: ShardsEstimateRequest) -> EstimateAnswer:
        return estimate

    @app.get("/healthz")
    async def get_health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def main() -> None:
    """Serves on a port that the system gives, and prints it."""
    logging.disable()
    # The protocol by name, as the service has it: asyncio switches Nagle's algorithm off only then.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2_048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(bare_app(Path(sys.argv[1])), log_config=None, access_log=False, server_header=False)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
