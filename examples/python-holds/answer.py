"""Answers a prompt word by word, as a model would, and charges for the words that were made. README.md has the commands."""

import itertools
import os
import queue
import sys
import time
import uuid

import grpc
from tollgate.v1.holds_pb2 import HoldRequest, ReserveRequest, SettleRequest
from tollgate.v1.holds_pb2_grpc import HoldServiceStub

ADDRESS = os.environ.get("TOLLGATE_ADDRESS", "127.0.0.1:50051")
# Who pays, and by which plan.
SUBJECT = {"key": os.environ.get("CUSTOMER", "acme"), "plan": "tokens"}
# The longest answer. What is not used of it comes back.
ANSWER_MAX = 50
WORD_SECONDS = float(os.environ.get("WORD_SECONDS", "0"))


class Holds:
    """One stream. What it holds is renewed while it lasts, and ends with it, also when this process is killed."""

    def __init__(self, stub: HoldServiceStub):
        self.asked = queue.SimpleQueue()
        self.ids = itertools.count(1)
        self.answers = stub.Hold(iter(self.asked.get, None), wait_for_ready=True)

    def call(self, **call):
        asked = HoldRequest(id=next(self.ids), **call)
        self.asked.put(asked)
        for answer in self.answers:
            if answer.HasField("lost"):
                print(f"lost {answer.lost.request_id}: what is settled is charged beyond", file=sys.stderr)
            elif answer.HasField("error"):
                raise SystemExit(answer.error.message)
            else:
                return answer
        raise SystemExit("tollgate has ended the stream")

    def close(self):
        self.asked.put(None)


def words(prompt: str):
    """The model."""
    for word in f"You asked {prompt} and I say hello".split():
        time.sleep(WORD_SECONDS)
        yield word


def main(prompt: str) -> int:
    stub = HoldServiceStub(grpc.insecure_channel(ADDRESS))
    holds, request_id = Holds(stub), str(uuid.uuid4())
    cost = len(prompt.split()) + ANSWER_MAX
    reserved = holds.call(reserve=ReserveRequest(**SUBJECT, cost=cost, request_id=request_id)).reserve
    if not reserved.answer.allowed:
        print(f"denied, come back in {reserved.answer.retry_after.seconds + 1} s", file=sys.stderr)
        return 1
    used = len(prompt.split())
    for word in words(prompt):
        print(word, end=" ", flush=True)
        used += 1
    settle = SettleRequest(**SUBJECT, request_id=request_id, actual=used)
    try:
        settled = holds.call(settle=settle).settle
    except grpc.RpcError:
        # The server goes away and the hold stays until its lease ends. With its id, a settle is safe to send again.
        settled = stub.Settle(settle, wait_for_ready=True, timeout=10)
    holds.close()
    print(f"\nheld {cost}, used {used}, {settled.returned} came back, {settled.answer.remaining} remain")
    return 0


sys.exit(main(" ".join(sys.argv[1:]) or "nothing"))
