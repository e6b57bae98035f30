// The engine's loop in time: what front end, core and worker do at once, and what waits between them.
//
// A frame is one thing that the core does; the others are shown as far as they have come by then.
(function (learnvllm) {
  "use strict";
  const { list, count, choiceQuestion, isNews } = learnvllm;

  const ACTIONS = {
    idle: "waits for a request",
    add: "takes in what has arrived",
    schedule: "schedules a step",
    wait: "waits for the worker",
    update: "takes in a step's output",
  };

  function frames(scenario) {
    const spans = scenario.spans;
    const total = Math.max(...spans.map((s) => s.end));
    const core = spans.filter((s) => s.lane === "core");
    const names = core.map((s) => s.name);
    const result = [make(spans, null, 0, total)];
    for (const [index, span] of core.entries()) {
      const frame = make(spans, span, span.end, total);
      frame.question = isNews(names, index) ? ask(span) : null;
      result.push(frame);
    }
    if (total > core.at(-1).end) result.push(make(spans, null, total, total));
    return result;
  }

  function make(spans, span, now, total) {
    const frame = { now, total, span, question: null };
    frame.spans = spans
      .filter((s) => s.lane === "core" ? reached(s, span, now) : s.start < now)
      .map((s) => ({ ...s, running: s.end > now, current: s === span, shownEnd: Math.min(s.end, now) }));
    frame.queues = queues(spans, span, now);
    frame.stats = statistics(spans, now);
    frame.caption = describe(frame);
    frame.row = [
      `${span ? span.start : now}–${now}`, span ? ACTIONS[span.name] + stepWord(span) : "",
      frame.queues.input.join(", "), frame.queues.worker.map((n) => `step ${n + 1}`).join(", "),
      frame.queues.output.map((n) => `step ${n + 1}`).join(", "), `${frame.stats.busyShare} %`,
    ];
    return frame;
  }

  // Of two things that the core does at one time only those up to the frame's own have happened.
  function reached(s, span, now) {
    if (s === span) return true;
    return span && s.end === now ? s.start < span.start || (s.start === span.start && s.end < span.end) : s.end <= now;
  }

  function queues(spans, span, now) {
    const done = (s) => (s.lane === "core" ? reached(s, span, now) : s.end <= now);
    const added = new Set(spans.filter((s) => s.name === "add" && done(s)).flatMap((s) => s.requests));
    const sent = spans.filter((s) => s.name === "process" && s.end <= now).flatMap((s) => s.requests);
    const scheduled = spans.filter((s) => s.name === "schedule" && s.tokens && done(s)).map((s) => s.step);
    const begun = new Set(spans.filter((s) => s.name === "forward" && s.start <= now).map((s) => s.step));
    const updated = spans.filter((s) => s.name === "update" && s.requests && done(s)).map((s) => s.step);
    const given = new Set(spans.filter((s) => s.name === "detokenize" && s.start <= now).map((s) => s.step));
    return {
      input: sent.filter((r) => !added.has(r)),
      worker: scheduled.filter((n) => !begun.has(n)),
      output: updated.filter((n) => !given.has(n)),
    };
  }

  // Before its first step the worker could not be busy: that does not count, and the words say so.
  function statistics(spans, now) {
    const forwards = spans.filter((s) => s.name === "forward");
    const counted = Math.max(now - forwards[0].start, 0);
    const busy = forwards.reduce((sum, s) => sum + Math.max(Math.min(s.end, now) - s.start, 0), 0);
    const tokens = spans
      .filter((s) => s.name === "detokenize" && s.end <= now)
      .reduce((sum, s) => sum + s.requests.length, 0);
    return { busy, counted, busyShare: counted ? Math.round((100 * busy) / counted) : 0, tokens };
  }

  // ------------------------------------------------------------------------------------------------ words

  function stepWord(span) {
    return span.step === undefined ? "" : ` ${span.step + 1}`;
  }

  function describe(frame) {
    const { span, now } = frame;
    if (!span) {
      return now === 0
        ? "Time 0. The first request arrives at the front end; the core has nothing to do."
        : `Time ${now}. All is given out. Since its first step began, the worker was busy ${frame.stats.busyShare} % of the time.`;
    }
    const until = `Time ${span.start}${span.end > span.start ? ` to ${span.end}` : ""}.`;
    return `${until} ${sentence(span)} ${meanwhile(frame)}`.trim();
  }

  function sentence(span) {
    const who = list(span.requests ?? []);
    const n = span.step === undefined ? "" : span.step + 1;
    switch (span.name) {
      case "idle": return "The core is idle: it waits for the front end to send a request.";
      case "add": return `The core takes ${who} from its input queue; the scheduler queues it.`;
      case "schedule":
        if (!span.tokens) return "The core schedules a step without tokens: it only tells the worker whom to forget.";
        return `The core schedules step ${n}: ${count(span.tokens, "token")} for ${who}.`;
      case "wait": return `The core waits for step ${n}.`;
      default:
        return span.requests
          ? `The core takes in step ${n} and sends ${count(span.requests.length, "output")} to the front end: ${who}.`
          : `The core takes in step ${n}: whoever it was for has ended meanwhile, so nothing is given out.`;
    }
  }

  function meanwhile(frame) {
    const { start, end } = frame.span;
    const during = (lane) => frame.spans.filter((s) => s.lane === lane && s.start < end && s.end > start);
    const worker = during("worker").map((s) => `step ${s.step + 1}`);
    const parts = [];
    if (worker.length) parts.push(`Meanwhile the worker computes ${list(worker)}.`);
    else if (end > start && frame.span.name !== "idle") parts.push("Meanwhile the worker has nothing to do.");
    const front = during("front").map((s) =>
      s.name === "process" ? `tokenizes ${list(s.requests)}` : `detokenizes step ${s.step + 1}`,
    );
    if (front.length) parts.push(`The front end ${list(front)}.`);
    return parts.join(" ");
  }

  function ask(span) {
    const why = {
      idle: "There is no work at all.",
      add: "Before each step the core takes in everything that has arrived.",
      schedule: "There are requests to serve, and fewer steps are in flight than may be.",
      wait: "As many steps are in flight as may be; the oldest of them is not computed yet.",
      update: "The step it waited for is computed.",
    };
    return choiceQuestion(
      "What does the core do next?", `It ${ACTIONS[span.name]}.`,
      ["schedule", "wait", "update", "add"].map((name) => `It ${ACTIONS[name]}.`), why[span.name],
    );
  }

  learnvllm.kinds.loop = {
    title: "The engine's loop in time",
    columns: ["Time", "The core", "Waits for the core", "Waits for the worker", "Waits for the front end", "Worker busy since its first step"],
    frames,
  };
})((globalThis.learnvllm ??= {}));
