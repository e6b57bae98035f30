// Walking through frames, being asked, and what the page's address says.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { Player, readAddress, writeAddress, list, numberQuestion, choiceQuestion } = load("player");

const question = { prompt: "?", choices: ["a", "b"], answer: 1, explain: "why" };
const frames = (...questions) => [{ question: null }, ...questions.map((q) => ({ question: q }))];

test("steps stop at both ends", () => {
  const player = new Player(frames(null, null));
  player.back();
  assert.equal(player.position, 0);
  for (let i = 0; i < 5; i++) player.next();
  assert.equal(player.position, 2);
  assert.ok(player.atEnd);
  player.go(99);
  assert.equal(player.position, 2);
  player.go(Number.NaN);
  assert.equal(player.position, 0);
});

test("predict-first asks before it shows, and counts answers", () => {
  const player = new Player(frames(question, null, question), { predict: true });
  player.next();
  assert.equal(player.position, 0);
  assert.equal(player.question, question);
  player.next(); // there is no way around an open question but an answer or a skip
  assert.equal(player.position, 0);
  player.answer(1);
  assert.equal(player.position, 1);
  assert.equal(player.verdict.right, true);
  player.next();
  assert.equal(player.verdict, null);
  player.next();
  player.answer(0);
  assert.deepEqual(player.score, { right: 1, asked: 2 });
});

test("a question is asked once, a skipped one again", () => {
  const player = new Player(frames(question, question), { predict: true });
  player.next();
  player.answer(1);
  player.back();
  player.next();
  assert.equal(player.position, 1);
  player.next();
  player.skip();
  assert.equal(player.position, 2);
  player.back();
  player.next();
  assert.equal(player.position, 1);
  assert.ok(player.question);
});

test("switching predict-first off shows the step that was asked for", () => {
  const player = new Player(frames(question), { predict: true });
  player.next();
  player.setPredict(false);
  assert.equal(player.position, 1);
});

test("scrubbing closes an open question", () => {
  const player = new Player(frames(question, null), { predict: true });
  player.next();
  player.go(2);
  assert.equal(player.question, null);
});

test("the address carries scenario, step and predict, and leaves other parameters alone", () => {
  const search = writeAddress("?q=x&blocks-step=3", "scheduler", { scenario: "prefix", step: 7, predict: true });
  assert.deepEqual(readAddress(search, "scheduler"), { scenario: "prefix", step: 7, predict: true });
  assert.equal(readAddress(search, "blocks").step, 3);
  assert.equal(new URLSearchParams(search).get("q"), "x");
  assert.deepEqual(readAddress("?scheduler-step=x", "scheduler"), { scenario: null, step: null, predict: false });
});

test("questions have distinct choices, sorted where they are numbers", () => {
  assert.deepEqual(numberQuestion("?", 16, [64, 16, -1, 2.5, 0], "").choices, ["0", "16", "64"]);
  assert.equal(numberQuestion("?", 16, [64, 0], "").answer, 1);
  assert.equal(numberQuestion("?", 16, [16], ""), null);
  assert.deepEqual(choiceQuestion("?", "b", ["a", "b", "a"], "").choices, ["a", "b"]);
  assert.equal(choiceQuestion("?", "c", ["a", "b"], ""), null);
});

test("lists read as English", () => {
  assert.equal(list([]), "");
  assert.equal(list(["a"]), "a");
  assert.equal(list(["a", "b", "c"]), "a, b and c");
});
