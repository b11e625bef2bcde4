# t5xpg on NVIDIA GPUs; the driver and the NVIDIA Container Toolkit are the host's, CUDA comes with JAX:
#   docker build -f docker/cuda.Dockerfile -t t5xpg:cuda .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/work" t5xpg:cuda train configs/byt5_tiny.gin …
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 t5xpg && install --directory --owner t5xpg /work

# The libraries change seldom: a layer of their own, which a change of t5xpg's code leaves in the cache.
WORKDIR /opt/t5xpg
COPY constraints.txt pyproject.toml setup.py README.md LICENSE docker/requirements.py ./
RUN python requirements.py gcs s3 cuda > requirements.txt && pip install -c constraints.txt -r requirements.txt
COPY t5xpg t5xpg
COPY configs configs
RUN pip install --no-deps . && rm -r build *.egg-info && t5xpg --version

USER t5xpg
WORKDIR /work
ENTRYPOINT ["t5xpg"]
CMD ["--help"]
