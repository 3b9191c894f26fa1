# Build: a static binary. Run: that binary and nothing else, as nobody in particular.
#   docker build -t tollgate .
#   docker run --rm -p 127.0.0.1:50051:50051 tollgate --listen 0.0.0.0:50051 --plaintext
FROM docker.io/library/rust:1.95-alpine AS build
# The image's tag fixes what its package index offers.
# hadolint ignore=DL3018
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY proto proto
COPY src src
# The program serves it.
COPY docs/openapi.json docs/
# tests/ and benches/ are named in Cargo.toml and not built here.
COPY tests tests
COPY benches benches
RUN cargo build --release --locked --bin tollgate

FROM scratch
COPY --from=build /src/target/release/tollgate /tollgate
# The allocator would take 8 MiB more before it needs them.
ENV MIMALLOC_ARENA_EAGER_COMMIT=0
USER 65532:65532
EXPOSE 50051
# For gRPC at the usual port without TLS. For another address or TLS: docs/cli.md, `tollgate health`.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/tollgate", "health", "--timeout", "2s"]
ENTRYPOINT ["/tollgate"]
