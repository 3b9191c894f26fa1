"""A FastAPI application that asks tollgate about each request under /api/, by the synchronous client. README.md has the commands."""

import contextlib
import os

import grpc
import limit
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from tollgate.v1.tollgate_pb2_grpc import RateLimitServiceStub

tollgate: RateLimitServiceStub


@contextlib.asynccontextmanager
async def connected(_: FastAPI):
    global tollgate
    with grpc.insecure_channel(limit.ADDRESS, options=limit.CHANNEL) as channel:
        tollgate = RateLimitServiceStub(channel)
        try:
            tollgate.Peek(limit.START, timeout=limit.START_WAIT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            limit.starts_without(error)
        yield


def ask(request: Request, response: Response) -> None:
    """A dependency. FastAPI calls it in a thread, since it is not a coroutine."""
    question = limit.question(request)
    try:
        answer = tollgate.ShouldAllow(question, timeout=limit.DEADLINE_S)
    except grpc.RpcError as error:
        if limit.lets_through(error, question):
            return
        raise HTTPException(503, "the rate limit could not be checked") from error
    if not answer.allowed:
        raise HTTPException(429, "too many requests", dict(answer.http_headers))
    response.headers.update(answer.http_headers)


app = FastAPI(lifespan=connected)
api = APIRouter(prefix="/api", dependencies=[Depends(ask)])


@api.get("/hello")
def hello():
    return "hello"


@app.get("/metrics")
def metrics():
    return PlainTextResponse(generate_latest())


app.include_router(api)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
