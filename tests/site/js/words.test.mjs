// On a Chinese page the frame of a figure and the life of a request are told in Chinese, all of it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { load, scenarios } from "./load.mjs";

const learnvllm = load("player", "request_logic", "words_zh");
const { words, kinds } = learnvllm;
const { columns, title, places, frames } = kinds.request;

function source(name) {
  return readFileSync(new URL(`../../../docs/assets/js/${name}.js`, import.meta.url), "utf8");
}

test("every text that is said has a translation", () => {
  const said = ["visualiser", "request_logic", "request_view"].flatMap((name) =>
    [...source(name).matchAll(/\bsay\(\s*"((?:[^"\\]|\\.)*)"/g)].map((found) => JSON.parse(`"${found[1]}"`)));
  assert.ok(said.length > 50);
  const shown = scenarios("request").flatMap((s) => [s.title, s.intro]);
  const missing = [...said, ...columns, ...shown, title, ...places.map((p) => p.title)].filter((text) => !(text in words));
  assert.deepEqual(missing, []);
});

test("a translation has the same gaps", () => {
  const gaps = (text) => (text.match(/\{\d\}/g) ?? []).sort().join();
  for (const [english, chinese] of Object.entries(words)) assert.equal(gaps(chinese), gaps(english), english);
});

for (const scenario of scenarios("request")) {
  test(`${scenario.id}: nothing of the story is left in English`, () => {
    for (const { caption, question, message } of frames(scenario)) {
      const told = [caption, message?.name, question?.prompt, question?.explain, ...(question?.choices ?? [])].filter(Boolean);
      for (const text of told) assert.doesNotMatch(text.replace(/“.*?”/g, ""), /[a-z]+ [a-z]+ |undefined|[\u4e00-\u9fff][,:] /, text);
      assert.match(caption, /[\u4e00-\u9fff].*。$/);
    }
  });
}
