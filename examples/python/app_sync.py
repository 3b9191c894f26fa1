"""A FastAPI application that asks tollgate about each request under /api/, by the synchronous client. README.md has the commands."""

import contextlib
import logging
import os
import time

import grpc
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import Counter, generate_latest
from tollgate.v1.tollgate_pb2 import PeekRequest, ShouldAllowRequest
from tollgate.v1.tollgate_pb2_grpc import RateLimitServiceStub

ADDRESS = os.environ.get("TOLLGATE_ADDRESS", "127.0.0.1:50051")
DEFAULT_PLAN = "free"
# Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
DEADLINE_S = 0.05
# The start waits so long for tollgate: a request that has to connect first would miss its deadline.
START_WAIT_S = 10
CHANNEL = [
    ("grpc.enable_retries", 0),  # ShouldAllow charges: what is sent again may be charged twice.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),  # The connection is kept while there are no requests.
    # Finds a tollgate that is back within a second, and one that is gone without a word within 12.
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 2000),
]
# No tollgate decided in time. Any other error means a wrong call, such as a misspelt plan, and must be seen.
UNDECIDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
FAIL_OPEN = Counter("rate_limit_fail_open", "Requests let through because tollgate did not decide in time.")
log = logging.getLogger("uvicorn.error")
tollgate: RateLimitServiceStub
logged_at = 0


@contextlib.asynccontextmanager
async def connected(_: FastAPI):
    global tollgate
    with grpc.insecure_channel(ADDRESS, options=CHANNEL) as channel:
        tollgate = RateLimitServiceStub(channel)
        try:
            # Peek charges nothing. It also finds a default plan that is misspelt.
            tollgate.Peek(PeekRequest(key="start", plan=DEFAULT_PLAN), timeout=START_WAIT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() not in UNDECIDED:
                raise
            log.warning("tollgate at %s does not answer, starting without: %s", ADDRESS, error.details())
        yield


def limit(request: Request, response: Response) -> None:
    """A dependency. FastAPI calls it in a thread, since it is no coroutine."""
    plan = request.headers.get("x-plan", DEFAULT_PLAN)
    question = ShouldAllowRequest(key=key(request), plan=plan, http_headers=True)
    try:
        answer = tollgate.ShouldAllow(question, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        if error.code() in UNDECIDED:
            return let_through(error)
        log.error("rate limit of plan %s: %s: %s", plan, error.code(), error.details())
        raise HTTPException(503, "the rate limit could not be checked") from error
    if not answer.allowed:
        raise HTTPException(429, "too many requests", dict(answer.http_headers))
    response.headers.update(answer.http_headers)


def key(request: Request) -> str:
    """Who is counted. Check the API key before this: each one that is made up has a quota of its own."""
    api_key = request.headers.get("x-api-key")
    return f"api-key:{api_key}" if api_key else f"address:{request.client.host}"


def let_through(error: grpc.RpcError) -> None:
    """Counts each request, and logs one a second at most."""
    global logged_at
    FAIL_OPEN.inc()
    if (now := int(time.monotonic())) != logged_at:
        logged_at = now
        log.warning("tollgate did not decide, request let through: %s: %s", error.code(), error.details())


app = FastAPI(lifespan=connected)
api = APIRouter(prefix="/api", dependencies=[Depends(limit)])


@api.get("/hello")
def hello():
    return "hello"


@app.get("/metrics")
def metrics():
    return PlainTextResponse(generate_latest())


app.include_router(api)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
