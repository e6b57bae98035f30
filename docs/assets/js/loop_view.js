// Draws a frame of loop_logic.js: three lanes over time, the queues between them, and what it adds up to.
(function (learnvllm) {
  "use strict";
  const { h, percent, titled, chip, legend } = learnvllm;
  const LANES = [["front", "Front end"], ["core", "Engine core"], ["worker", "Worker"]];

  function render(stage, frame, { scenario, frames }) {
    const span = Math.max(frames.at(-1).total, 1);
    const arrivals = frame.spans.filter((s) => s.name === "add")
      .map((s) => h("i.lv-tick", { style: { left: percent(s.start, span) }, title: `takes in ${s.requests}` }));
    // It scrolls by itself; a browser would let the Tab key stop at it, in a picture that is hidden from readers.
    const scroller = h("div.lv-timeline-box", { tabindex: -1 }, h("div.lv-timeline", { style: { "--lv-units": span } },
      LANES.map(([lane, title]) => h("div.lv-lane", {},
        h("span.lv-lane-name", {}, title),
        h("div.lv-track", {}, frame.spans.filter((s) => s.lane === lane && s.end > s.start).map((s) => bar(s, span)),
          lane === "core" ? arrivals : null))),
      axis(frame, span)));
    stage.replaceChildren(
      h("div.lv-columns.lv-narrow", {},
        box("Waits for the core", frame.queues.input.map((id) => chip(scenario, id))),
        box("Waits for the worker", frame.queues.worker.map((n) => h("span.lv-cell", {}, `step ${n + 1}`))),
        box("Waits for the front end", frame.queues.output.map((n) => h("span.lv-cell", {}, `step ${n + 1}`))),
        box("Given out", [h("b.lv-big", {}, String(frame.stats.tokens)), " tokens"]),
        box("Worker busy", workerBusy(frame.stats))),
      titled("Who is busy, and with which step", `time ${frame.now} of ${frame.total}`, scroller),
      legend(["lv-do-process", "text → ids"], ["lv-do-detokenize", "ids → text"], ["lv-do-schedule", "schedule"],
        ["lv-do-wait", "wait"], ["lv-do-update", "take in"], ["lv-do-forward", "compute"]),
      h("p.lv-note", {}, assumption(scenario.costs)));
    const x = (frame.now / span) * scroller.scrollWidth;
    scroller.scrollLeft = Math.max(0, x - scroller.clientWidth * 0.7);
  }

  function bar(s, total) {
    const label = s.step === undefined ? (s.requests ?? []).join(" ") : String(s.step + 1);
    return h(`span.lv-span.lv-do-${s.name}${s.current ? ".lv-current" : ""}${s.running ? ".lv-running" : ""}`, {
      style: { left: percent(s.start, total), width: percent(s.shownEnd - s.start, total) },
      title: `${s.name} ${label}, time ${s.start} to ${s.end}`,
    }, s.name === "idle" ? "" : label);
  }

  function axis(frame, total) {
    const marks = [];
    for (let t = 0; t <= total; t += 10) marks.push(h("span.lv-time", { style: { left: percent(t, total) } }, String(t)));
    return h("div.lv-lane.lv-axis", {}, h("span.lv-lane-name", {}, "time"),
      h("div.lv-track", {}, marks, h("i.lv-now", { style: { left: percent(frame.now, total) } })));
  }

  function box(title, content) {
    return titled(title, "", h("div.lv-queue", {}, content.length ? content : h("span.lv-note", {}, "nothing")));
  }

  // A share of which time: one can count it in the drawing.
  function workerBusy({ busy, counted, busyShare }) {
    if (!counted) return [];
    return [h("b.lv-big", {}, `${busyShare} %`), ` ${busy} of ${counted} since its first step`];
  }

  function assumption(costs) {
    return (
      `The order of events is our engine's; how long each takes is assumed: ${costs.process} for a request's text, ` +
      `${costs.schedule} to schedule, ${costs.forward} for a step and 1 more for every ${costs.tokens_per_unit} tokens, ` +
      `${costs.update} to take it in, ${costs.detokenize} for its text.`
    );
  }

  learnvllm.kinds.loop.render = render;
})((globalThis.learnvllm ??= {}));
