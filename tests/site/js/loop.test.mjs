// The loop's frames: the queues are never negative or lost, and one step ahead keeps the worker busy.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, scenario, scenarios } from "./load.mjs";

const { kinds } = load("player", "loop_logic");
const frames = (id) => kinds.loop.frames(scenario("loop", id));

for (const story of scenarios("loop")) {
  test(`${story.id}: time only goes on, and in the end every queue is empty`, () => {
    const all = kinds.loop.frames(story);
    for (const [i, frame] of all.entries()) if (i) assert.ok(frame.now >= all[i - 1].now);
    assert.deepEqual(all.at(-1).queues, { input: [], worker: [], output: [] });
    assert.equal(all.at(-1).stats.tokens, story.requests.reduce((sum, r) => sum + r.num_output, 0));
  });

  test(`${story.id}: nobody does two things at once`, () => {
    for (const lane of ["front", "core", "worker"]) {
      const spans = story.spans.filter((s) => s.lane === lane).sort((a, b) => a.start - b.start || a.end - b.end);
      for (const [i, span] of spans.entries()) if (i) assert.ok(span.start >= spans[i - 1].end);
    }
  });
}

for (const story of scenarios("loop")) {
  test(`${story.id}: how busy the worker was can be counted in the drawing`, () => {
    for (const { spans, now, stats } of kinds.loop.frames(story)) {
      const drawn = spans.filter((s) => s.lane === "worker");
      const sum = drawn.reduce((all, s) => all + s.shownEnd - s.start, 0);
      assert.equal(stats.busy, sum);
      const since = drawn.length ? now - drawn[0].start : 0;
      assert.deepEqual([stats.counted, stats.busyShare], [since, since && Math.round((100 * sum) / since)]);
    }
  });
}

test("a request waits for the core while it waits for the worker", () => {
  const frame = frames("sync").find((f) => f.span?.name === "wait");
  assert.deepEqual(frame.queues.input, ["b"]);
  const after = frames("sync").find((f) => f.span?.name === "add" && f.span.requests.includes("b"));
  assert.deepEqual(after.queues.input, []);
});

test("one step ahead: a step waits for the worker, which idles less and is done sooner", () => {
  const [sync, ahead] = [frames("sync"), frames("async")];
  assert.ok(sync.every((f) => f.queues.worker.length === 0));
  assert.ok(ahead.some((f) => f.queues.worker.length === 1));
  assert.ok(ahead.at(-1).stats.busyShare > sync.at(-1).stats.busyShare + 20);
  assert.ok(ahead.at(-1).now < sync.at(-1).now);
});

test("one step ahead: whoever ends by itself has a token computed in vain", () => {
  const story = scenario("loop", "async");
  const computed = story.spans.filter((s) => s.name === "forward" && s.requests.includes("b")).length;
  const b = story.requests.find((r) => r.id === "b");
  assert.equal(computed, b.num_output + 1);
});
