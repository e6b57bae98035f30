// Numbers as people write them, and what makes an answer right.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { parseNumber, check, score, describeScore } = load("quiz_logic").quiz;

test("numbers are read as people write them", () => {
  for (const [text, value] of [["57", 57], [" 57.0 ", 57], ["1,626", 1626], ["1 048 576", 1048576], ["-.5", -0.5], ["2e3", 2000]]) {
    assert.equal(parseNumber(text), value, text);
  }
  for (const text of ["", "x", "5 7", "1,62", "0x10", "5 blocks", "Infinity"]) assert.equal(parseNumber(text), null, text);
});

test("a number is right within its tolerance", () => {
  const question = { type: "number", answer: 22.5, tolerance: 0.5, correct: [] };
  assert.deepEqual(check(question, "23"), { answered: true, right: true });
  assert.deepEqual(check(question, "23.1"), { answered: true, right: false });
  assert.deepEqual(check(question, ""), { answered: false, right: false });
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
