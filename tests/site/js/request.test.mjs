// One request's frames: its counters, its tokens, its text.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, scenario, scenarios } from "./load.mjs";

const { kinds } = load("player", "request_logic");
const frames = (id) => kinds.request.frames(scenario("request", id));

for (const story of scenarios("request")) {
  test(`${story.id}: computed never exceeds known, and tokens shown are tokens known`, () => {
    for (const frame of kinds.request.frames(story)) {
      assert.ok(frame.computed <= frame.known);
      assert.equal(frame.tokens.length, frame.known);
      assert.equal(frame.tokens.filter((t) => t.state === "chunk").length > 0, ["schedule", "forward"].includes(frame.what));
    }
  });

  test(`${story.id}: text only grows, and only in the front end`, () => {
    const all = kinds.request.frames(story);
    for (const [i, frame] of all.entries()) {
      if (!i) continue;
      assert.ok(frame.shown.startsWith(all[i - 1].shown));
      if (frame.shown !== all[i - 1].shown) assert.equal(frame.place, "front");
    }
  });
}

test("a prompt longer than the budget takes two steps, and only the last token's logits choose", () => {
  const steps = frames("length").filter((f) => f.what === "forward");
  assert.match(steps[0].caption, /positions 0 to 15 .*no token is chosen/);
  assert.match(steps[1].caption, /positions 16 to 18; the last one's logits choose token/);
});

test("what could become the stop string is held back, and never shown once it has", () => {
  const all = frames("stop");
  assert.ok(all.some((f) => f.held === "."));
  assert.ok(all.some((f) => f.what === "abort"));
  assert.equal(all.at(-1).held, "");
  assert.ok(!all.at(-1).shown.includes("."));
  assert.equal(all.at(-1).status, "FINISHED_ABORTED");
});

test("messages go from place to place", () => {
  const way = frames("length").slice(0, 9).map((f) => f.message && `${f.message.from}-${f.message.to}`);
  assert.deepEqual(way, ["client-front", null, "front-core", null, "core-worker", "worker-core", null, "core-worker", "worker-core"]);
});
