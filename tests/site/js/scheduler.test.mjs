// The scheduler's frames: they add up, and say what the recording says.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, scenario, scenarios } from "./load.mjs";

const { kinds } = load("player", "scheduler_logic");
const frames = (id) => kinds.scheduler.frames(scenario("scheduler", id));
const find = (frame, id) => frame.requests.find((r) => r.id === id);

for (const story of scenarios("scheduler")) {
  test(`${story.id}: no step exceeds its budget, and every request's tokens are all accounted for`, () => {
    const all = kinds.scheduler.frames(story);
    for (const frame of all) assert.ok(frame.used <= frame.budget);
    for (const frame of all.slice(1)) {
      for (const r of frame.requests) assert.ok(r.computed + r.chunk <= r.known, `${r.id} in step ${frame.step}`);
      const shown = frame.requests.reduce((sum, r) => sum + r.chunk, 0);
      assert.equal(shown, frame.used);
    }
    for (const request of story.requests) {
      const last = find(all.at(-1), request.id);
      assert.ok(["finished", "ending"].includes(last.status));
      // The last token is sampled and never computed.
      assert.equal(last.known + last.sampled, request.num_prompt + request.num_output);
    }
  });
}

test("a chunk is what the others leave of the budget", () => {
  const frame = frames("chunked").find((f) => f.shares.some((s) => s.id === "long"));
  const decodes = frame.shares.filter((s) => s.kind === "decode").length;
  assert.equal(frame.shares.find((s) => s.id === "long").tokens, 64 - decodes);
  assert.match(frame.caption, /long computes tokens 0 to 60 of 150\./);
});

test("beside n decodes prompts take their share and no more", () => {
  const limited = frames("protected").filter((f) => f.promptShare !== null && f.shares.some((s) => s.kind === "prefill"));
  assert.ok(limited.length > 3);
  for (const frame of limited) {
    const prefill = frame.shares.filter((s) => s.kind === "prefill").reduce((sum, s) => sum + s.tokens, 0);
    assert.ok(prefill <= frame.promptShare, frame.caption);
    assert.equal(frame.promptShare, Math.max(16, 8 * frame.shares.filter((s) => s.kind === "decode").length));
  }
});

test("who is preempted loses what was computed, waits, and computes it again", () => {
  const all = frames("preemption");
  const at = all.findIndex((f) => f.preempted.includes("c"));
  assert.ok(find(all[at - 1], "c").computed > 0);
  assert.equal(find(all[at], "c").computed, 0);
  assert.equal(find(all[at], "c").status, "preempted");
  assert.equal(all[at].waiting[0], "c");
  assert.equal(all[at].question.choices[all[at].question.answer], "c");
  const back = all.slice(at).find((f) => f.shares.some((s) => s.id === "c"));
  assert.match(back.caption, /c .* again/);
  assert.ok(find(back, "c").known > scenario("scheduler", "preemption").requests.find((r) => r.id === "c").num_prompt);
});

test("a hit counts as computed and is named", () => {
  const frame = frames("prefix").find((f) => f.shares.some((s) => s.id === "b"));
  assert.equal(find(frame, "b").cached, 32);
  assert.equal(find(frame, "b").computed, 32);
  assert.match(frame.caption, /b finds 32 tokens in the cache/);
});

test("the urgent request goes to the head of the queue", () => {
  const frame = frames("priority").find((f) => f.waiting.includes("urgent"));
  assert.equal(frame.waiting[0], "urgent");
});
