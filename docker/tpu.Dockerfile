# t5xpg on a TPU VM, each of whose machines runs it:
#   docker build -f docker/tpu.Dockerfile -t t5xpg:tpu .
#   docker run --rm --privileged --net host -v "$PWD:/work" t5xpg:tpu train configs/byt5_tiny.gin … --multiprocess
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 t5xpg && install --directory --owner t5xpg /work

# The libraries change seldom: a layer of their own, which a change of t5xpg's code leaves in the cache.
WORKDIR /opt/t5xpg
COPY constraints.txt pyproject.toml setup.py README.md LICENSE docker/requirements.py ./
RUN python requirements.py gcs s3 tpu > requirements.txt && pip install -c constraints.txt -r requirements.txt
COPY t5xpg t5xpg
COPY configs configs
RUN pip install --no-deps . && rm -r build *.egg-info && t5xpg --version

USER t5xpg
WORKDIR /work
ENTRYPOINT ["t5xpg"]
CMD ["--help"]
