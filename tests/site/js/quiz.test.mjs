// Numbers as people write them, and what makes an answer right.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { load } from "./load.mjs";

const { parseNumber, check, score, describeScore } = load("quiz_logic").quiz;

test("numbers are read as people write them, and as the terminal reads them", () => {
  const cases = JSON.parse(readFileSync(new URL("numbers.json", import.meta.url), "utf8")); // test_quiz.py has them, too
  for (const [text, value] of cases) assert.equal(parseNumber(text, "blocks"), value, text);
  assert.equal(parseNumber("5 blocks"), null);
});

test("a number is right within its tolerance", () => {
  const question = { type: "number", answer: 22.5, tolerance: 0.5, correct: [] };
  assert.deepEqual(check(question, "23"), { answered: true, right: true });
  assert.deepEqual(check(question, "23.1"), { answered: true, right: false });
  assert.deepEqual(check(question, ""), { answered: false, right: false });
  assert.ok(check({ ...question, tolerance: 0.1 }, "22.6").right);
  assert.ok(check({ ...question, answer: 0.3, tolerance: 0 }, String(0.1 + 0.2)).right);
});

test("of several all and only the right ones must be chosen", () => {
  const question = { type: "multiple", correct: ["1", "3"] };
  assert.ok(check(question, ["3", "1"]).right);
  assert.ok(!check(question, ["1"]).right);
  assert.ok(!check(question, ["1", "2", "3"]).right);
  assert.ok(!check(question, []).answered);
});

test("the score says what is still to do", () => {
  const ids = ["a", "b", "c"];
  assert.equal(describeScore(score(ids, {})), "3 questions");
  assert.equal(describeScore(score(ids, { a: true, gone: true })), "1 of 1 right, 2 to go");
  assert.equal(describeScore(score(ids, { a: true, b: false, c: true })), "2 of 3 right");
  assert.equal(describeScore(score(ids, { a: true, b: true, c: true })), "All 3 right");
});
