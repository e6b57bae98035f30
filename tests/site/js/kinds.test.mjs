// What holds of every visualiser and every recording.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, scenarios } from "./load.mjs";

const KINDS = ["scheduler", "blocks", "loop", "request"];
const learnvllm = load("player", ...KINDS.map((kind) => `${kind}_logic`));

for (const kind of KINDS) {
  for (const scenario of scenarios(kind)) {
    const { frames: makeFrames, columns } = learnvllm.kinds[kind];
    const frames = makeFrames(scenario);

    test(`${kind}/${scenario.id}: every frame has a caption in whole sentences and a row of the table`, () => {
      assert.ok(frames.length > 5);
      for (const frame of frames) {
        assert.match(frame.caption, /[.)]$/);
        assert.doesNotMatch(frame.caption, /undefined|NaN|\[object|  /);
        assert.equal(frame.row.length, columns.length);
        assert.ok(frame.row.every((cell) => typeof cell === "string" && !/undefined|NaN/.test(cell)));
      }
    });

    test(`${kind}/${scenario.id}: questions can be answered, and the first frame asks nothing`, () => {
      assert.equal(frames[0].question, null);
      const questions = frames.map((f) => f.question).filter(Boolean);
      assert.ok(questions.length >= 4, `${questions.length} questions`);
      for (const { prompt, choices, answer, explain } of questions) {
        assert.match(prompt, /\?$/);
        assert.ok(choices.length >= 2 && choices.length <= 6, choices.join());
        assert.equal(new Set(choices).size, choices.length);
        assert.ok(choices[answer] !== undefined);
        assert.match(explain, /\.$/);
      }
    });

    test(`${kind}/${scenario.id}: frames depend on nothing but the recording`, () => {
      assert.deepEqual(makeFrames(structuredClone(scenario)), frames);
    });
  }
}
