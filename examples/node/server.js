// An Express application that asks tollgate about each request under /api. README.md has the commands.
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import express from "express";

const ADDRESS = process.env.TOLLGATE_ADDRESS ?? "127.0.0.1:50051";
const DEFAULT_PLAN = "free";
const ORGANISATION_PLAN = "organisation";
// Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
const DEADLINE_MS = 50;
// The start waits so long for tollgate: a request that has to connect first would miss its deadline.
const START_WAIT_MS = 10_000;
// No tollgate decided in time. Any other error means a wrong call, such as a misspelt plan, and must be seen.
const UNDECIDED = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED];

const proto = fileURLToPath(new URL("../../proto/tollgate/v1/tollgate.proto", import.meta.url));
const { RateLimitService } = grpc.loadPackageDefinition(loadSync(proto, { defaults: true })).tollgate.v1;
const tollgate = new RateLimitService(ADDRESS, grpc.credentials.createInsecure(), {
  "grpc.enable_retries": 0, // A decision charges: what is sent again may be charged twice.
  "grpc.client_idle_timeout_ms": 2 ** 31 - 1, // The connection is kept while there are no requests.
  // Finds a tollgate that is back within a second, and one that is gone without a word within 12.
  "grpc.max_reconnect_backoff_ms": 1000,
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2000,
});

// The answer of a method, or the error, which says in `code` what is wrong.
function call(method, question, milliseconds, metadata = new grpc.Metadata()) {
  const options = { deadline: Date.now() + milliseconds };
  return new Promise((resolve, reject) => {
    tollgate[method](question, metadata, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function limit(request, response, next) {
  const plan = request.get("x-plan") ?? DEFAULT_PLAN;
  try {
    const question = { requests: requests(request, plan), httpHeaders: true };
    const answer = await call("ShouldAllowJoint", question, DEADLINE_MS);
    response.set(answer.httpHeaders);
    if (!answer.allowed) return response.status(429).send("too many requests\n");
  } catch (error) {
    if (!UNDECIDED.includes(error.code)) {
      console.error(`rate limit of plan ${plan}: ${error.message}`);
      return response.status(503).send("the rate limit could not be checked\n");
    }
    letThrough(error);
  }
  next();
}

// The user, and its organisation if it has one: both pass and are charged, or neither is. The fields of the answer speak of the
// one that binds. The same shard keeps both counts on one node of a Redis Cluster, so the two are one call there, too.
function requests(request, plan) {
  const organisation = request.get("x-organisation");
  const user = { key: key(request), plan, shard: organisation };
  return organisation ? [user, { key: organisation, plan: ORGANISATION_PLAN, shard: organisation }] : [user];
}

// Who is counted. Check the API key before this: each one that is made up has a quota of its own.
function key(request) {
  const apiKey = request.get("x-api-key");
  return apiKey ? `api-key:${apiKey}` : `address:${request.ip}`;
}

let failOpen = 0;
let loggedAt = 0;
// Counts each request, and logs one a second at most.
function letThrough(error) {
  failOpen += 1;
  const now = Math.floor(Date.now() / 1000);
  if (now !== loggedAt) console.warn(`tollgate did not decide, request let through (${failOpen} so far): ${error.message}`);
  loggedAt = now;
}

try {
  // Peek charges nothing. It also finds a default plan that is misspelt.
  await call("Peek", { key: "start", plan: DEFAULT_PLAN }, START_WAIT_MS, new grpc.Metadata({ waitForReady: true }));
} catch (error) {
  if (!UNDECIDED.includes(error.code)) throw error;
  console.warn(`tollgate at ${ADDRESS} does not answer, starting without: ${error.message}`);
}
const app = express();
app.use("/api", limit);
app.get("/api/hello", (_, response) => response.send("hello\n"));
app.get("/metrics", (_, response) =>
  response.type("text/plain").send(`# TYPE rate_limit_fail_open_total counter\nrate_limit_fail_open_total ${failOpen}\n`),
);
const server = app.listen(process.env.PORT ?? 8000, "127.0.0.1", (error) => {
  if (error) throw error;
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
