# The broker in a slim image: no compiler, no root, any user id.
#   docker build -t cosmodrome . && docker run -p 8081:8081 -v cosmodrome:/data cosmodrome
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY server server
COPY sdk sdk
COPY pipeline pipeline
# A wheel of the native front, where one was built (make wheel), goes along.
COPY dis[t] dist
RUN python -m venv /opt/cosmodrome \
 && /opt/cosmodrome/bin/pip install --no-cache-dir '.[server]' \
 && for wheel in dist/cosmodrome_gate-*.whl; do \
      if [ -f "$wheel" ]; then /opt/cosmodrome/bin/pip install --no-cache-dir "$wheel"; fi; \
    done

FROM python:3.11-slim-bookworm
COPY --from=build /opt/cosmodrome /opt/cosmodrome
# The data directory takes any user id: containers of some platforms run as a random one.
RUN mkdir /data && chmod 0777 /data
ENV PATH=/opt/cosmodrome/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2 \
    COSMODROME_HOST=0.0.0.0 \
    COSMODROME_DATA=/data \
    COSMODROME_SERVER_METRICS_HOST=0.0.0.0
USER 10001
VOLUME /data
EXPOSE 8081 5557
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:5557/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["cosmodrome"]
CMD ["serve"]
