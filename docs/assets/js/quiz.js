// The quiz of a page: checks an answer, shows the explanation of what was chosen, keeps answers in this browser.
//
// Builds on the HTML of learnvllm/study/site/quiz_html.py, which can be read without a script: a
// fieldset.quiz-question each, answers and explanations folded away in details.quiz-answer. Needs dom.js and
// quiz_logic.js.
(function (learnvllm) {
  "use strict";
  const { h } = learnvllm;

  // One question, as it stands on the page.
  class Question {
    constructor(fieldset, words, onCheck) {
      this.words = words;
      this.fieldset = fieldset;
      this.id = fieldset.id;
      this.type = fieldset.dataset.type;
      this.inputs = [...fieldset.querySelectorAll("input")];
      this.feedback = fieldset.querySelector(".quiz-feedback");
      this.feedback.before(h("button.quiz-check", { type: "button", onclick: onCheck }, words.check));
      fieldset.addEventListener("input", () => this.clear());
      fieldset.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
        event.preventDefault();
        onCheck();
      });
    }

    get facts() {
      const [first] = this.inputs;
      return {
        type: this.type,
        correct: this.inputs.filter((i) => i.closest("[data-correct='true']")).map((i) => i.value),
        answer: Number(first?.dataset.answer),
        tolerance: Number(first?.dataset.tolerance ?? 0),
        unit: first?.dataset.unit,
      };
    }

    get given() {
      if (this.type === "number") return this.inputs[0].value;
      return this.inputs.filter((i) => i.checked).map((i) => i.value);
    }

    set given(value) {
      if (this.type === "number") this.inputs[0].value = typeof value === "string" ? value : "";
      else for (const input of this.inputs) input.checked = [].concat(value).includes(input.value);
    }

    get result() {
      return learnvllm.quiz.check(this.facts, this.given);
    }

    reveal(right) {
      this.clear();
      this.fieldset.dataset.state = right ? "right" : "wrong";
      this.feedback.textContent = this.words[right ? "right" : this.type === "multiple" ? "partly" : "wrong"];
      for (const input of this.inputs) {
        if (this.type !== "number" && !input.checked) continue;
        const where = this.type === "number" ? "" : `[data-choice="${CSS.escape(input.value)}"] `;
        const explanation = this.fieldset.querySelector(`.quiz-answer ${where}.quiz-explanation`);
        if (!explanation) continue;
        const state = this.type === "number" || input.closest("[data-correct='true']") ? "right" : "wrong";
        const shown = h("div.quiz-explain", { "data-state": state }, ...explanation.cloneNode(true).childNodes);
        input.closest("label").after(shown);
      }
    }

    remind() {
      this.feedback.textContent = this.words[this.type !== "number" ? "choose" : this.given.trim() ? "noNumber" : "type"];
    }

    // A changed answer is not checked yet.
    clear() {
      delete this.fieldset.dataset.state;
      this.feedback.textContent = "";
      for (const shown of this.fieldset.querySelectorAll(".quiz-explain")) shown.remove();
    }
  }

  class Quiz {
    constructor(root) {
      this.key = `learnvllm.quiz.${root.dataset.day}`;
      this.words = learnvllm.quiz.WORDS[root.lang] ?? learnvllm.quiz.WORDS.en;
      this.saved = this.load(); // id -> {given, right}
      this.questions = [...root.querySelectorAll(".quiz-question")].map((fieldset) => {
        const question = new Question(fieldset, this.words, () => this.check(question));
        return question;
      });
      this.scoreLine = h("strong.quiz-score", { role: "status" });
      root.append(h("div.quiz-footer", {}, this.scoreLine,
        h("button.quiz-reset", { type: "button", onclick: () => this.reset() }, this.words.again)));
      for (const question of this.questions) this.restore(question);
      this.showScore();
    }

    load() {
      try {
        const saved = JSON.parse(localStorage.getItem(this.key) ?? "{}");
        return saved && typeof saved === "object" && !Array.isArray(saved) ? saved : {};
      } catch {
        return {}; // no storage, or nothing of ours: begin anew
      }
    }

    store() {
      try {
        localStorage.setItem(this.key, JSON.stringify(this.saved));
      } catch { /* answers last as long as the page */ }
    }

    check(question) {
      const { answered, right } = question.result;
      if (!answered) {
        question.remind();
        return;
      }
      this.saved[question.id] = { given: question.given, right };
      this.store();
      question.reveal(right);
      this.showScore();
    }

    // Judged again: the question may have changed since.
    restore(question) {
      const saved = this.saved[question.id];
      if (!saved) return;
      question.given = saved.given;
      const { answered, right } = question.result;
      if (!answered) {
        delete this.saved[question.id];
        return;
      }
      saved.right = right;
      question.reveal(right);
    }

    showScore() {
      const results = Object.fromEntries(Object.entries(this.saved).map(([id, { right }]) => [id, right]));
      const { score, describeScore } = learnvllm.quiz;
      this.scoreLine.textContent = describeScore(score(this.questions.map((q) => q.id), results), this.words);
    }

    reset() {
      this.saved = {};
      this.store();
      for (const question of this.questions) {
        question.given = [];
        question.clear();
      }
      this.showScore();
    }
  }

  function startAll() {
    for (const root of document.querySelectorAll(".quiz[data-day]")) new Quiz(root);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
  else startAll();
})((globalThis.learnvllm ??= {}));
