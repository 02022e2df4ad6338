# A worker, or a scheduler, of a Dask cluster with elasticml.
#
#   docker build --tag elasticml .
#   docker run --network host elasticml dask scheduler
#   docker run --network host --shm-size 1g elasticml dask worker tcp://127.0.0.1:8786 --no-nanny
#
# The wheel is built in the first stage, with the agent for YARN, which needs Maven and a JDK; the
# image has neither.
FROM python:3.13-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jdk-headless maven \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir build
WORKDIR /source
COPY . .
RUN python -m build --wheel --outdir /wheels

FROM python:3.13-slim
# tini passes signals on and reaps children: SIGTERM is the notice that the container ends.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home elasticml
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels
USER elasticml
WORKDIR /home/elasticml
# One thread per process for numerical libraries: elasticml has threads of its own.
ENV OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1 \
    DASK_DISTRIBUTED__WORKER__PRELOAD=elasticml.preload \
    DASK_DISTRIBUTED__SCHEDULER__PRELOAD=elasticml.preload
# Compile the kernels into the image, so that a new worker is ready at once. A processor of another
# type than the one that builds the image compiles them again.
RUN elasticml warm
ENTRYPOINT ["tini", "--"]
CMD ["dask", "worker", "--help"]
