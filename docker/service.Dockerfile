# The API and the control worker: no torch, no compiler, no root.
# build it from the repository's root:  docker build -f docker/service.Dockerfile -t firstbad-service .
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
# The locks first: a change of our own code does not install every dependency again.
COPY docker/service.lock docker/build.lock docker/
RUN python -m venv /opt/firstbad \
 && /opt/firstbad/bin/pip install --no-cache-dir --require-hashes --no-deps -r docker/service.lock \
 && python -m venv /opt/building \
 && /opt/building/bin/pip install --no-cache-dir --require-hashes --no-deps -r docker/build.lock
COPY . .
RUN /opt/building/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/firstbad/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${PYTHON_IMAGE}
# git: the control worker reads repositories. Debian's minor versions move, so apt's packages are not pinned here;
# the base image's digest is what fixes them (PYTHON_IMAGE=python@sha256:…).
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends git ca-certificates openssh-client tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 firstbad \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/firstbad --shell /usr/sbin/nologin firstbad \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/firstbad
COPY --from=build /opt/firstbad /opt/firstbad
ENV PATH=/opt/firstbad/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FIRSTBAD_HOME=/var/lib/firstbad \
    FIRSTBAD_CATALOGUE=/etc/firstbad \
    FIRSTBAD_LOG_FORMAT=json \
    FIRSTBAD_PORT=8321
USER 10001:10001
WORKDIR /var/lib/firstbad
VOLUME /var/lib/firstbad
EXPOSE 8321
ENTRYPOINT ["tini", "--", "firstbad"]
CMD ["api", "--host", "0.0.0.0"]
