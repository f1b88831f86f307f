// What an agent in TypeScript does with the generated types and openapi-fetch: see test_clients.py.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const client = createClient<paths>({
  baseUrl: process.env.STATEROOM_URL ?? "",
  headers: { Authorization: `Bearer ${process.env.STATEROOM_API_KEY ?? ""}`, "Stateroom-Subject": "user-42" },
});
const thread_id = "client-ts";
const path = { thread_id };

const saved = await client.POST("/v1/threads/{thread_id}/checkpoints", {
  params: { path, header: { "If-None-Match": "*" } },
  body: { state: { plan: ["flight"], done: [] }, agent: "client", metadata: { tier: "gold" } },
});
assert.equal(saved.response.status, 201);
assert.ok(saved.data);
const first = saved.data.checkpoint_id;

const loaded = await client.GET("/v1/threads/{thread_id}/checkpoints/{checkpoint_id}", {
  params: { path: { thread_id, checkpoint_id: "latest" } },
});
assert.ok(loaded.data);
assert.equal(loaded.data.checkpoint_id, first);
assert.deepEqual(loaded.data.state, { plan: ["flight"], done: [] });
assert.equal(loaded.data.metadata.tier, "gold");

const change = { body: { changes: { append: { done: ["flight"] } } }, params: { path, header: { "If-Match": `"${first}"` } } };
assert.equal((await client.POST("/v1/threads/{thread_id}/checkpoints", change)).response.status, 201);
const stale = await client.POST("/v1/threads/{thread_id}/checkpoints", change);
assert.equal(stale.response.status, 412);
assert.ok(stale.error);
assert.equal(stale.error.code, "head-moved");
assert.equal(stale.error.retryable, false);

const file = await client.POST("/v1/threads/{thread_id}/artifacts", {
  params: { path, header: { "Stateroom-Artifact-Name": "pass.txt" } },
  body: "boarding pass",
  bodySerializer: (body) => body,
  headers: { "Content-Type": "application/octet-stream" },
});
assert.equal(file.response.status, 201);
assert.equal(file.data?.size_bytes, 13);

const begun = await client.POST("/v1/threads/{thread_id}/archive", { params: { path } });
assert.equal(begun.response.status, 202);
assert.ok(begun.data && "job_id" in begun.data);
for (;;) {
  const job = await client.GET("/v1/jobs/{job_id}", { params: { path: { job_id: begun.data.job_id } } });
  assert.ok(job.data);
  if (job.data.state === "done") break;
  assert.notEqual(job.data.state, "failed");
  await new Promise((resolve) => setTimeout(resolve, 200));
}
console.log("held");
