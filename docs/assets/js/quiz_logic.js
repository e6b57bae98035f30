// When is an answer right, and what does a whole quiz come to? No page in here.
(function (learnvllm) {
  "use strict";

  // A number as people write it: "1,626", "1 626", "57.0", ".5", "57 blocks". null when it is none.
  function parseNumber(text, unit = "") {
    let plain = text.trim().replaceAll("_", "");
    if (unit && plain.endsWith(unit)) plain = plain.slice(0, -unit.length).trim();
    if (!/^[+-]?(\d{1,3}([, \u00a0\u202f]\d{3})+|\d+)?(\.\d*)?(e[+-]?\d+)?$/i.test(plain)) return null;
    const number = Number(plain.replace(/[, \u00a0\u202f]/g, "") || NaN);
    return Number.isFinite(number) ? number : null;
  }

  // question: {type, correct: [value, …], answer, tolerance, unit}; given: [value, …], or the text of a number.
  function check(question, given) {
    if (question.type === "number") {
      const value = parseNumber(given, question.unit);
      if (value === null) return { answered: false, right: false };
      const slack = 1e-9 * Math.max(1, Math.abs(question.answer));
      return { answered: true, right: Math.abs(value - question.answer) <= question.tolerance + slack };
    }
    const chosen = new Set(given);
    const right = chosen.size === question.correct.length && question.correct.every((i) => chosen.has(i));
    return { answered: chosen.size > 0, right };
  }

  // results: id -> true, false, or undefined where nobody has answered yet.
  function score(ids, results) {
    const answered = ids.filter((id) => results[id] !== undefined);
    return { total: ids.length, answered: answered.length, right: answered.filter((id) => results[id]).length };
  }

  function describeScore({ total, answered, right }) {
    if (answered === 0) return `${total} questions`;
    if (answered < total) return `${right} of ${answered} right, ${total - answered} to go`;
    return right === total ? `All ${total} right` : `${right} of ${total} right`;
  }

  Object.assign(learnvllm, { quiz: { parseNumber, check, score, describeScore } });
})((globalThis.learnvllm ??= {}));
