// The pool's frames: reference counts, hits, evictions and the tree of names.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, scenario, scenarios } from "./load.mjs";

const { kinds } = load("player", "blocks_logic");
const frames = (id) => kinds.blocks.frames(scenario("blocks", id));
const marked = (frame, mark) => frame.blocks.filter((b) => b.mark === mark).map((b) => b.id);
const names = (nodes) => nodes.flatMap((n) => [n.block.id, ...names(n.children)]);

for (const story of scenarios("blocks")) {
  test(`${story.id}: a block is held by as many tables as it counts, or it is in the free queue`, () => {
    for (const frame of kinds.blocks.frames(story)) {
      for (const b of frame.blocks) {
        assert.equal(b.refs, b.holders.length);
        assert.equal(b.refs === 0, frame.queue.includes(b.id));
      }
    }
  });

  test(`${story.id}: the tree has every block with a name once, under the one before it`, () => {
    for (const frame of kinds.blocks.frames(story)) {
      const named = frame.blocks.filter((b) => b.name).map((b) => b.id);
      assert.deepEqual(names(frame.tree).sort((a, b) => a - b), named);
      assert.ok(frame.tree.every((n) => !n.orphan), "the end of a prompt is evicted before its beginning");
    }
  });
}

test("a prompt that begins alike shares blocks, and they stay when one of the two ends", () => {
  const all = frames("sharing");
  const shared = all.find((f) => f.tables.b);
  assert.deepEqual(marked(shared, "hit"), [1, 2]);
  assert.deepEqual(shared.blocks.filter((b) => b.refs === 2).map((b) => b.id), [1, 2]);
  const end = all.find((f) => f.phase === "ended" && !f.tables.b);
  assert.deepEqual(marked(end, "released"), [1, 2]);
  assert.match(end.caption, /Blocks 1 and 2 are held by others still/);
});

test("content of free blocks is found again by a later request", () => {
  const frame = frames("sharing").find((f) => f.tables.c);
  assert.deepEqual(marked(frame, "hit"), [1, 2, 3]);
});

test("the head of the queue is evicted, and a hit saves its blocks", () => {
  const all = frames("eviction");
  const before = all[all.findIndex((f) => f.tables.d) - 1];
  const taken = all.find((f) => f.tables.d);
  assert.deepEqual(taken.tables.d, before.queue.slice(0, 4));
  assert.deepEqual(taken.blocks.filter((b) => b.evicted).map((b) => b.id), [3, 4, 5]);
  assert.match(taken.caption, /Evicted: “before 1900 Hugo of” \(block 3\)/);
  assert.deepEqual(marked(all.find((f) => f.tables.e), "hit"), [1, 2]);
});

test("another salt finds nothing, the same one all but the last token's block", () => {
  const all = frames("salt");
  assert.deepEqual(marked(all.find((f) => f.tables.b), "hit"), []);
  assert.deepEqual(marked(all.find((f) => f.tables.c), "hit"), [1, 2, 3]);
  assert.equal(all.find((f) => f.tables.b).tree.length, 2);
});

test("a flood evicts what everybody shares, unless found content is protected", () => {
  assert.deepEqual(marked(frames("flood").find((f) => f.tables.c), "hit"), []);
  assert.deepEqual(marked(frames("segmented").find((f) => f.tables.c), "hit"), [1, 2]);
});

test("a node whose beginning is gone is no part of any prompt's path", () => {
  const contents = { a: { parent: "", text: "A" }, b: { parent: "a", text: "B" } };
  const [node] = kinds.blocks.tree(contents, [{ id: 1, name: "b" }]);
  assert.equal(node.orphan, true);
});
