// Draws a frame of scheduler_logic.js: the budget of the step, the queue, every request's progress, the history.
(function (learnvllm) {
  "use strict";
  const { h, hue, percent, titled, chip, legend } = learnvllm;
  const STATUS = {
    absent: "not here yet", waiting: "waits", running: "runs", preempted: "preempted", ending: "ends", finished: "done",
  };

  function render(stage, frame, context) {
    const { scenario } = context;
    stage.replaceChildren(
      budget(scenario, frame),
      h("div.lv-columns", {}, queue(scenario, frame), memory(frame)),
      h("div.lv-requests", {}, frame.requests.map((r) => request(scenario, r))),
      history(context),
      legend(
        ["lv-is-computed", "computed before"], ["lv-is-cached", "found in the cache"], ["lv-is-chunk", "this step"],
        ["lv-is-known", "known, not computed"],
      ),
    );
  }

  function budget(scenario, frame) {
    const bar = h("div.lv-budget", {}, frame.shares.map((s) =>
      h(
        "span.lv-share",
        { style: { width: percent(s.tokens, frame.budget), "--lv-hue": hue(scenario, s.id) }, title: `${s.id}: ${s.tokens}` },
        s.tokens * 12 >= frame.budget ? `${s.id} ${s.tokens}` : "",
      ),
    ));
    if (frame.promptShare !== null) {
      const decodes = frame.shares.filter((s) => s.kind === "decode").length;
      const at = Math.min(decodes + frame.promptShare, frame.budget);
      bar.append(h("span.lv-limit", { style: { left: percent(at, frame.budget) }, title: "limit for prompts" }));
    }
    return titled("Token budget of the step", `${frame.used} of ${frame.budget}`, bar);
  }

  function queue(scenario, frame) {
    const waiting = frame.waiting.map((id) => {
      const r = frame.requests.find((x) => x.id === id);
      return chip(scenario, id, [r.preemptions ? "preempted" : "", r.priority ? `priority ${r.priority}` : ""].filter(Boolean).join(", "));
    });
    return titled("Queue", "next first",
      h("div.lv-queue", {}, waiting.length ? waiting : h("span.lv-note", {}, "nobody waits")));
  }

  function memory(frame) {
    const used = frame.total - frame.free;
    return titled("KV blocks held", `${used} of ${frame.total}`,
      h("div.lv-meter", {}, h(`span${frame.free === 0 ? ".lv-is-full" : ""}`, { style: { width: percent(used, frame.total) } })));
  }

  function request(scenario, r) {
    const most = Math.max(...scenario.requests.map((x) => x.num_prompt + x.num_output));
    const own = scenario.requests.find((x) => x.id === r.id);
    const done = r.status === "finished";
    const computed = done ? r.known : r.computed;
    const part = (className, tokens) => (tokens > 0 ? h(`span.${className}`, { style: { width: percent(tokens, most) } }) : null);
    const bar = h("div.lv-progress", { style: { "--lv-hue": hue(scenario, r.id) } },
      part("lv-is-cached", r.cached),
      part("lv-is-computed", computed - r.cached),
      part("lv-is-chunk", r.chunk),
      r.status === "absent" ? null : part("lv-is-known", r.known - computed - r.chunk),
      h("i.lv-prompt-end", { style: { left: percent(own.num_prompt, most) }, title: "end of the prompt" }));
    const numbers = r.status === "absent" ? `prompt ${own.num_prompt}` : `${computed + r.chunk} of ${r.known + (done ? 0 : r.sampled)}`;
    return h(`div.lv-request.lv-status-${r.status}`, {},
      h("span", {}, chip(scenario, r.id)), bar,
      h("span.lv-numbers", {}, numbers), h("span.lv-status", {}, STATUS[r.status]));
  }

  // A column for each step; a click goes there. With predict-first the future stays hidden.
  function history({ scenario, frames, player, go }) {
    const columns = frames.slice(1).map((f, index) => {
      const step = index + 1;
      const hidden = player.predict && step > player.position;
      const current = step === player.position ? ".lv-current" : step > player.position ? ".lv-future" : "";
      return h(`span.lv-column${current}`, { onclick: () => go(step), title: `step ${step}` },
        hidden ? null : f.shares.toReversed().map((s) =>
          h("span", { style: { height: percent(s.tokens, f.budget), "--lv-hue": hue(scenario, s.id) } })),
        !hidden && f.preempted.length ? h("b.lv-flag", {}, "↩") : null);
    });
    return titled("Tokens of every step", "↩ somebody is preempted", h("div.lv-history", {}, columns));
  }

  learnvllm.kinds.scheduler.render = render;
})((globalThis.learnvllm ??= {}));
