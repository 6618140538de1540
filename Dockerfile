# A feeder: `streamrec serve`, as a user without rights.
#
# Not built where this was written: there was no container engine. The base image was not pulled.
#
#   docker build -t streamrec .
#   docker run -v ./deploy/feeder.toml:/etc/streamrec/feeder.toml:ro -p 127.0.0.1:7070:7070 streamrec

FROM python:3.12-slim AS build

RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev

WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY streamrec ./streamrec
# Without the kernel in C all would work, many times slower: rather there is no image.
RUN STREAMREC_BUILD_KERNEL=require pip wheel --no-cache-dir --wheel-dir /wheels .


FROM python:3.12-slim

# Mounted: what is copied would stay in the image.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels streamrec

RUN useradd --system --uid 10001 --no-create-home streamrec
USER 10001
WORKDIR /

# The feeder, and health and metrics. Where it listens is in its configuration; beyond the container's
# loopback that takes `insecure = true`, as in deploy/feeder.toml: publish such a port with care.
EXPOSE 7070 7071
ENV PYTHONUNBUFFERED=1
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7071/readyz', timeout=2)"]

# No shell in between: SIGTERM reaches the feeder, which then drains.
ENTRYPOINT ["streamrec"]
CMD ["serve", "/etc/streamrec/feeder.toml"]
