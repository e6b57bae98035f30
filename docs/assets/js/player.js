// Where a visualiser stands: position, prediction, score, and the part of it that lives in the page's address.
//
// Pure: no page, no clock. A kind's logic turns a recorded scenario into frames
//   {caption, question, row, …}; frame 0 is the beginning, before anything has happened,
// and a Player walks through them. Scripts here are classic scripts, not modules, because a browser refuses to
// load modules (and to fetch JSON) for a page that is opened from the disk.
(function (learnvllm) {
  "use strict";

  class Player {
    constructor(frames, options = {}) {
      this.frames = frames;
      this.position = 0;
      this.predict = Boolean(options.predict);
      this.asking = null; // index of the frame whose question is open
      this.verdict = null; // {right, chosen, question} of the frame just revealed
      this.answers = new Map(); // index of a frame -> whether its question was answered rightly
    }

    get last() { return this.frames.length - 1; }
    get frame() { return this.frames[this.position]; }
    get atEnd() { return this.position === this.last; }
    get question() { return this.asking === null ? null : this.frames[this.asking].question; }

    // One step on. With predict-first a frame with a question is asked for before it is shown.
    next() {
      if (this.atEnd || this.asking !== null) return;
      const target = this.position + 1;
      if (this.predict && this.frames[target].question && !this.answers.has(target)) {
        this.asking = target;
        this.verdict = null;
      } else {
        this.go(target);
      }
    }

    back() {
      this.go(this.position - 1);
    }

    go(position) {
      this.position = Math.min(Math.max(Math.trunc(position) || 0, 0), this.last);
      this.asking = null;
      this.verdict = null;
    }

    answer(choice) {
      const question = this.question;
      if (!question) return;
      const target = this.asking;
      const right = choice === question.answer;
      this.answers.set(target, right);
      this.go(target);
      this.verdict = { right, chosen: choice, question };
    }

    // Show the step without a guess; it may be asked for again later.
    skip() {
      if (this.asking !== null) this.go(this.asking);
    }

    setPredict(on) {
      this.predict = on;
      if (!on) this.skip();
    }

    get score() {
      const right = [...this.answers.values()].filter(Boolean).length;
      return { right, asked: this.answers.size };
    }
  }

  // ?scheduler=preemption&scheduler-step=7&scheduler-predict=1: several visualisers may share a page.
  function readAddress(search, kind) {
    const params = new URLSearchParams(search);
    const step = Number.parseInt(params.get(`${kind}-step`) ?? "", 10);
    return {
      scenario: params.get(kind),
      step: Number.isNaN(step) ? null : step,
      predict: params.get(`${kind}-predict`) === "1",
    };
  }

  function writeAddress(search, kind, { scenario, step, predict }) {
    const params = new URLSearchParams(search);
    params.set(kind, scenario);
    params.set(`${kind}-step`, String(step));
    if (predict) params.set(`${kind}-predict`, "1");
    else params.delete(`${kind}-predict`);
    return `?${params}`;
  }

  // ------------------------------------------------------------------------------------------------ words

  function list(words, conjunction = "and") {
    if (words.length < 2) return words.join("");
    return `${words.slice(0, -1).join(", ")} ${conjunction} ${words.at(-1)}`;
  }

  function count(number, noun, plural = `${noun}s`) {
    const other = learnvllm.words?.[`{0} ${plural}`];
    return other ? fill(other, [number]) : `${number} ${number === 1 ? noun : plural}`;
  }

  // say("Step {0}.", 3): in the language of the page, for which learnvllm.words (words_zh.js) has what it knows.
  function say(english, ...values) {
    return fill(learnvllm.words?.[english] ?? english, values);
  }

  function fill(text, values) {
    return text.replace(/\{(\d)\}/g, (_, index) => String(values[index]));
  }

  // A question with a number as its answer: the wrong choices are those of `others` that differ from it.
  function numberQuestion(prompt, answer, others, explain) {
    const values = [...new Set([answer, ...others])].filter((n) => Number.isInteger(n) && n >= 0);
    if (values.length < 2) return null;
    values.sort((a, b) => a - b);
    return { prompt, choices: values.map(String), answer: values.indexOf(answer), explain };
  }

  function choiceQuestion(prompt, answer, choices, explain) {
    const unique = [...new Set(choices)];
    if (unique.length < 2 || !unique.includes(answer)) return null;
    return { prompt, choices: unique, answer: unique.indexOf(answer), explain };
  }

  // Is it worth asking what comes after names[index - 1]? What follows what is asked for twice; then it is known.
  function isNews(names, index) {
    const follows = (i) => i > 0 && names[i] === names[index] && names[i - 1] === names[index - 1];
    return index > 0 && names.slice(0, index).filter((_, i) => follows(i)).length < 2;
  }

  Object.assign(learnvllm, {
    Player, readAddress, writeAddress, list, count, numberQuestion, choiceQuestion, isNews, say,
  });
  learnvllm.kinds ??= {};
})((globalThis.learnvllm ??= {}));
