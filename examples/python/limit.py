"""What both applications share: the connection, who is counted, and what happens when tollgate does not decide."""

import logging
import os
import time

import grpc
from fastapi import Request
from prometheus_client import Counter
from tollgate.v1.tollgate_pb2 import PeekRequest, ShouldAllowRequest

ADDRESS = os.environ.get("TOLLGATE_ADDRESS", "127.0.0.1:50051")
DEFAULT_PLAN = "free"
# Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
DEADLINE_S = 0.05
# Peek charges nothing. It also finds a default plan that is misspelt.
START = PeekRequest(key="start", plan=DEFAULT_PLAN)
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
logged_at = 0


def question(request: Request) -> ShouldAllowRequest:
    """Who is counted. Check the API key before this: each one that is made up has a quota of its own."""
    api_key = request.headers.get("x-api-key")
    key = f"api-key:{api_key}" if api_key else f"address:{request.client.host}"
    return ShouldAllowRequest(key=key, plan=request.headers.get("x-plan", DEFAULT_PLAN), http_headers=True)


def starts_without(error: grpc.RpcError) -> None:
    if error.code() not in UNDECIDED:
        raise error
    log.warning("tollgate at %s does not answer, starting without: %s", ADDRESS, error.details())


def lets_through(error: grpc.RpcError, asked: ShouldAllowRequest) -> bool:
    """Counts each request that it lets through, and logs one a second at most."""
    global logged_at
    if error.code() not in UNDECIDED:
        log.error("rate limit of plan %s: %s: %s", asked.plan, error.code(), error.details())
        return False
    FAIL_OPEN.inc()
    if (now := int(time.monotonic())) != logged_at:
        logged_at = now
        log.warning("tollgate did not decide, request let through: %s: %s", error.code(), error.details())
    return True
