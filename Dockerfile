# A feeder: `streamrec serve`, as a user without rights.
#
#   docker build -t streamrec .
#   docker run -v ./deploy/feeder.toml:/etc/streamrec/feeder.toml:ro -p 127.0.0.1:7070:7070 streamrec
#
# Its steps are carried out in the tests, in a chroot of Debian with its Python; no container engine
# has built it there, and the base image was not pulled.

FROM python:3.13-slim-trixie AS build

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY streamrec ./streamrec
# Without the kernel in C all would work, many times slower: rather there is no image.
RUN STREAMREC_BUILD_KERNEL=require pip wheel --no-cache-dir --wheel-dir /wheels '.[image]'


FROM python:3.13-slim-trixie

# Mounted: what is copied would stay in the image. Versions: those that the wheels have.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'streamrec[image]'

# Numbers, because Kubernetes' runAsNonRoot and fsGroup know no names.
RUN groupadd --system --gid 10001 streamrec \
    && useradd --system --uid 10001 --gid 10001 --no-create-home streamrec
USER 10001:10001
WORKDIR /

# A feeder that cannot take the kernel in C ends, instead of being slow.
ENV PYTHONUNBUFFERED=1 STREAMREC_KERNEL=native

# The feeder, and health and metrics. Where it listens is in its configuration; beyond the container's
# loopback that takes `insecure = true`, as in deploy/feeder.toml: publish such a port with care.
EXPOSE 7070 7071
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7071/readyz', timeout=2)"]

# No shell in between: SIGTERM reaches the feeder, which then drains.
ENTRYPOINT ["streamrec"]
CMD ["serve", "/etc/streamrec/feeder.toml"]
