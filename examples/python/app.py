"""A FastAPI application that asks tollgate about each request under /api/, by the asyncio client. README.md has the commands."""

import contextlib
import os

import grpc
import limit
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from tollgate.v1.tollgate_pb2_grpc import RateLimitServiceStub

tollgate: RateLimitServiceStub


@contextlib.asynccontextmanager
async def connected(_: FastAPI):
    global tollgate
    async with grpc.aio.insecure_channel(limit.ADDRESS, options=limit.CHANNEL) as channel:
        tollgate = RateLimitServiceStub(channel)
        try:
            await tollgate.Peek(limit.START, timeout=limit.START_WAIT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            limit.starts_without(error)
        yield


app = FastAPI(lifespan=connected)


@app.middleware("http")
async def ask(request: Request, call_next):
    if not request.url.path.startswith("/api/"):
        return await call_next(request)
    question = limit.question(request)
    try:
        answer = await tollgate.ShouldAllow(question, timeout=limit.DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        if limit.lets_through(error, question):
            return await call_next(request)
        return PlainTextResponse("the rate limit could not be checked\n", 503)
    response = await call_next(request) if answer.allowed else PlainTextResponse("too many requests\n", 429)
    response.headers.update(answer.http_headers)
    return response


@app.get("/api/hello")
async def hello():
    return "hello"


@app.get("/metrics")
async def metrics():
    return PlainTextResponse(generate_latest())


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
