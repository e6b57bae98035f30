// When is an answer right, and what does a whole quiz come to? No page in here.
(function (learnvllm) {
  "use strict";

  // A number as people write it: "1,626", "1 626", "57.0", ".5", "57 blocks". null when it is none.
  function parseNumber(text, unit = "") {
    // ５７ and ， of a Chinese keyboard
    let plain = text.replace(/[\uFF01-\uFF5E]/g, (wide) => String.fromCharCode(wide.charCodeAt(0) - 0xfee0));
    plain = plain.trim().replaceAll("_", "");
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

  const WORDS = {
    en: {
      check: "Check",
      again: "Start again",
      right: "Right.",
      wrong: "Not so.",
      partly: "Not quite: some are missing or too many.",
      choose: "Choose an answer first.",
      type: "Type a number first.",
      noNumber: "That is no number. Type one, like 1,626 or 1.5.",
      questions: (total) => `${total} questions`,
      toGo: (right, answered, left) => `${right} of ${answered} right, ${left} to go`,
      allRight: (total) => `All ${total} right`,
      result: (right, total) => `${right} of ${total} right`,
    },
    zh: {
      check: "检查",
      again: "重新开始",
      right: "正确。",
      wrong: "不对。",
      partly: "不完全对：有的漏选了，或者多选了。",
      choose: "请先选择一个答案。",
      type: "请先输入一个数字。",
      noNumber: "这不是数字。请输入数字，例如 1,626 或 1.5。",
      questions: (total) => `共 ${total} 题`,
      toGo: (right, answered, left) => `已答 ${answered} 题，答对 ${right} 题，还剩 ${left} 题`,
      allRight: (total) => `${total} 题全部答对`,
      result: (right, total) => `${total} 题中答对 ${right} 题`,
    },
  };

  function describeScore({ total, answered, right }, words = WORDS.en) {
    if (answered === 0) return words.questions(total);
    if (answered < total) return words.toGo(right, answered, total - answered);
    return right === total ? words.allRight(total) : words.result(right, total);
  }

  Object.assign(learnvllm, { quiz: { WORDS, parseNumber, check, score, describeScore } });
})((globalThis.learnvllm ??= {}));
