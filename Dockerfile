# One image for every service; compose.yaml says which one a container runs.
FROM python:3.12-slim

RUN useradd --create-home --uid 10001 loom
WORKDIR /app

COPY pyproject.toml README.md LICENSE ./
COPY loom_mq ./loom_mq
COPY services ./services
RUN pip install --no-cache-dir ".[uvloop]"

# The example's flows; mount or copy your own package here and name it in LOOM_APP.
COPY examples ./examples
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 LOOM_HTTP_HOST=0.0.0.0 LOOM_HTTP_PORT=8700

USER loom
EXPOSE 8700
# The slowest honest answer of a healthy process is a few milliseconds.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD \
    python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8700/livez', timeout=2)"
# exec form: SIGTERM reaches the service itself, which drains
ENTRYPOINT ["python", "-m"]
CMD ["services.worker"]
