# A worker of a GPU pool, on an image that trains: NeMo's brings Megatron Bridge, PyTorch's only torch and CUDA.
# build it from the repository's root:
#   docker build -f docker/worker.Dockerfile -t firstbad-worker .
#   docker build -f docker/worker.Dockerfile --build-arg BASE_IMAGE=nvcr.io/nvidia/pytorch:25.09-py3 -t firstbad-worker .
# Fix the base by its digest once you chose one: BASE_IMAGE=nvcr.io/nvidia/nemo@sha256:…
ARG BASE_IMAGE=nvcr.io/nvidia/nemo:25.09
FROM ${BASE_IMAGE}

USER 0:0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /source
COPY docker/worker.lock docker/build.lock docker/
# An environment of its own: what the base trains with is left as it is, and a profile names the base's Python. The base
# may lack the venv module, and uv, which firstbad needs anyway, makes one without it.
RUN python3 -m pip install --no-cache-dir --target /opt/uv --require-hashes --no-deps \
      -r <(sed -n '/^uv==/,/^[^ ]*$/{/^uv==/p;/^ *--hash/p}' docker/worker.lock) \
 && /opt/uv/bin/uv venv --no-cache /opt/firstbad --python python3 \
 && /opt/uv/bin/uv pip install --no-cache --python /opt/firstbad/bin/python --require-hashes -r docker/worker.lock \
 && /opt/uv/bin/uv venv --no-cache /opt/building --python python3 \
 && /opt/uv/bin/uv pip install --no-cache --python /opt/building/bin/python --require-hashes -r docker/build.lock
COPY . .
RUN /opt/uv/bin/uv build --no-cache --wheel --no-build-isolation --python /opt/building/bin/python --out-dir /wheels . \
 && /opt/uv/bin/uv pip install --no-cache --python /opt/firstbad/bin/python --no-deps --offline /wheels/*.whl \
 && groupadd --gid 10001 firstbad \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/firstbad --shell /usr/sbin/nologin firstbad \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/firstbad \
 && rm -rf /source /opt/building /wheels

# Only firstbad goes in front on the PATH, not its whole environment: `python` stays the base's.
RUN ln -s /opt/firstbad/bin/firstbad /opt/firstbad/bin/uv /usr/local/bin/
ENV PYTHONUNBUFFERED=1 \
    FIRSTBAD_HOME=/var/lib/firstbad \
    FIRSTBAD_CATALOGUE=/etc/firstbad \
    FIRSTBAD_LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/firstbad
VOLUME /var/lib/firstbad
# The base's entrypoint prints a banner and starts a shell. Compose gives the container an init process.
ENTRYPOINT ["firstbad"]
CMD ["worker", "--help"]
