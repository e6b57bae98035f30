// What the scheduler's StepEvents mean: who was where, who got how many tokens, and why. No page in here.
//
// A frame shows the moment at which a step has been scheduled (`planned`), and tells how it ended.
(function (learnvllm) {
  "use strict";
  const { list, count, numberQuestion, choiceQuestion } = learnvllm;

  function frames(scenario) {
    const result = [beginning(scenario)];
    scenario.events.forEach((event, index) => {
      result.push(afterStep(scenario, event, index, result.at(-1)));
    });
    return result;
  }

  function beginning(scenario) {
    const { token_budget: budget, num_blocks: blocks, block_size: size } = scenario.config;
    const caption =
      `Before the first step. A step computes at most ${budget} tokens; ` +
      `the KV cache has ${blocks - 1} blocks of ${size} tokens.`;
    const frame = {
      step: 0, caption, question: null, shares: [], used: 0, budget, promptShare: null,
      free: blocks - 1, total: blocks - 1, running: [], waiting: [], preempted: [], finished: [],
      requests: scenario.requests.map((r) => ({
        id: r.id, status: "absent", prompt: r.num_prompt, known: r.num_prompt, computed: 0,
        chunk: 0, cached: 0, sampled: 0, preemptions: 0, priority: r.priority ?? 0,
      })),
    };
    return { ...frame, row: row(frame) };
  }

  function afterStep(scenario, event, index, before) {
    const { running = [], waiting = [] } = event.planned ?? {};
    const shares = event.scheduled.map((s) => describeShare(s));
    const preempted = event.preempted ?? [];
    const finished = event.finished ?? [];
    const frame = {
      step: index + 1, shares, preempted, finished, running, waiting,
      used: shares.reduce((sum, s) => sum + s.tokens, 0),
      budget: scenario.config.token_budget,
      promptShare: promptShare(scenario.config, before),
      free: event.free_blocks ?? 0,
      total: event.total_blocks,
    };
    frame.requests = before.requests.map((request) => advance(request, frame));
    frame.caption = describe(frame, before);
    frame.question = ask(scenario, frame, before);
    frame.row = row(frame);
    return frame;
  }

  function describeShare(s) {
    const computed = s.num_computed_before ?? 0;
    const left = s.num_known - computed;
    // Under async scheduling the token to compute is in flight and not known yet: left is 0.
    const kind = s.num_tokens === 1 && left <= 1 ? "decode" : "prefill";
    return {
      id: s.req_id, tokens: s.num_tokens, computed, known: s.num_known, kind, left,
      cached: s.num_cached_tokens ?? 0, sampled: (s.sampled ?? []).length,
    };
  }

  // What prompts may take beside those who decode (SchedulerConfig.prefill_tokens_per_decode), as
  // Scheduler._get_prefill_budget: 16 at least, as far as the decodes leave them.
  function promptShare(config, before) {
    if (!config.prefill_tokens_per_decode) return null;
    const decodes = before.requests.filter(
      (r) => r.status === "running" && r.computed + r.chunk === r.known + r.sampled - 1,
    ).length;
    if (!decodes) return null;
    const share = Math.max(decodes * config.prefill_tokens_per_decode, 16);
    return Math.max(Math.min(share, config.token_budget - decodes), 1);
  }

  function advance(before, frame) {
    const request = { ...before, chunk: 0, sampled: 0, cached: 0, known: before.known + before.sampled };
    request.computed = before.computed + before.chunk;
    const share = frame.shares.find((s) => s.id === request.id);
    if (frame.preempted.includes(request.id)) {
      request.computed = 0;
      request.preemptions += 1;
    }
    if (share) {
      Object.assign(request, {
        computed: share.computed, known: share.known, chunk: share.tokens, cached: share.cached,
        sampled: share.sampled,
      });
    }
    request.status = statusOf(request, frame, before.status);
    return request;
  }

  function statusOf(request, frame, before) {
    if (before === "finished" || before === "ending") return "finished";
    if (frame.finished.includes(request.id)) return "ending";
    if (frame.running.includes(request.id)) return "running";
    if (frame.waiting.includes(request.id)) return request.preemptions ? "preempted" : "waiting";
    return before;
  }

  // ------------------------------------------------------------------------------------------------ words

  function describe(frame, before) {
    const parts = [`Step ${frame.step}: ${frame.used} of ${count(frame.budget, "token")}.`];
    if (frame.preempted.length) {
      const [who] = frame.preempted;
      const plural = frame.preempted.length > 1;
      parts.push(
        `No block is left: ${list(frame.preempted)} ${plural ? "give" : "gives"} way, ` +
          `${plural ? "lose" : "loses"} all blocks and ${plural ? "wait" : "waits"} at the head of the queue` +
          `${plural ? "" : ` (${who} will compute its tokens again)`}.`,
      );
    }
    const decodes = frame.shares.filter((s) => s.kind === "decode").map((s) => s.id);
    if (decodes.length) parts.push(decodes.length > 1 ? `${list(decodes)} decode, one token each.` : `${decodes[0]} decodes: one token.`);
    for (const share of frame.shares) if (share.kind === "prefill") parts.push(describePrefill(share, before));
    if (frame.promptShare !== null && frame.shares.some((s) => s.kind === "prefill")) {
      parts.push(`Prompts may take ${frame.promptShare} tokens beside those who decode.`);
    }
    const waiting = frame.waiting.filter((id) => !frame.preempted.includes(id));
    if (waiting.length) parts.push(`${list(waiting)} ${waiting.length > 1 ? "wait" : "waits"}.`);
    if (frame.finished.length) parts.push(`${list(frame.finished)} ${frame.finished.length > 1 ? "end" : "ends"} with it.`);
    return parts.join(" ");
  }

  function describePrefill(share, before) {
    const again = before.requests.find((r) => r.id === share.id)?.preemptions ? " again" : "";
    const hit = share.cached ? ` finds ${count(share.cached, "token")} in the cache and` : "";
    const end = share.computed + share.tokens;
    const whole = end === share.known;
    if (share.cached === 0 && share.computed === 0 && whole) {
      return `${share.id} computes all ${count(share.tokens, "token")} it knows${again}.`;
    }
    return (
      `${share.id}${hit} computes tokens ${share.computed} to ${end - 1} of ${share.known}${again}` +
      `${whole ? ", the last of them" : ""}.`
    );
  }

  function row(frame) {
    const shares = frame.shares.map((s) => `${s.id}: ${s.tokens} (${s.computed} → ${s.computed + s.tokens} of ${s.known})`);
    return [
      String(frame.step), shares.join("; "), `${frame.used} of ${frame.budget}`, frame.waiting.join(", "),
      frame.preempted.join(", "), frame.finished.join(", "), `${frame.free} of ${frame.total}`,
    ];
  }

  // -------------------------------------------------------------------------------------------- questions

  function ask(scenario, frame, before) {
    return (
      askPreempted(frame, before) ?? askHit(scenario, frame) ?? askChunk(frame) ??
      askAdmitted(scenario, frame, before) ?? askTotal(frame, before)
    );
  }

  function askPreempted(frame, before) {
    if (!frame.preempted.length) return null;
    const running = before.running.filter((id) => !before.finished.includes(id));
    return choiceQuestion(
      "A request needs a block and none is free. Who gives way first?",
      frame.preempted[0], running,
      "Running requests stand in order, best first. The last in line is preempted, even if it came a step ago.",
    );
  }

  function askHit(scenario, frame) {
    const share = frame.shares.find((s) => s.cached);
    if (!share) return null;
    const size = scenario.config.block_size;
    return numberQuestion(
      `${share.id} is admitted with ${count(share.known, "token")}. How many of them does it find in the cache?`,
      share.cached, [0, share.known, share.cached + size, share.cached - size],
      `Only whole blocks of ${size} tokens are found, and at least the last token is left to compute: ` +
        "its logits choose the next one.",
    );
  }

  function askChunk(frame) {
    const share = frame.shares.findLast((s) => s.kind === "prefill");
    if (!share) return null;
    const others = frame.used - share.tokens;
    const why =
      share.tokens === share.left
        ? "All that is left of it fits."
        : frame.promptShare !== null && frame.used < frame.budget
          ? `Beside those who decode, prompts may take ${frame.promptShare} tokens in this step.`
          : others
            ? `The others take ${count(others, "token")}; it gets what is left of the budget.`
            : "It has more to compute than a step may.";
    return numberQuestion(
      `${share.id} has ${count(share.left, "token")} left to compute and the budget is ${frame.budget}. ` +
        "How many does it get in the next step?",
      share.tokens, [share.left, frame.budget, frame.budget - others, 1], why,
    );
  }

  function askAdmitted(scenario, frame, before) {
    // Whoever is admitted or, if nobody is, the head of the queue; once, until the answer changes.
    const admitted = frame.shares.find((s) => !before.running.includes(s.id));
    const first = admitted?.id ?? frame.waiting[0];
    const answer = `${first} ${admitted ? "in" : "out"}`;
    frame.admission = first === undefined ? null : answer;
    if (first === undefined || before.admission === answer) return null;
    const isIn = Boolean(admitted);
    const { max_num_seqs: places } = scenario.config;
    const why = isIn
      ? "There is budget, a place and memory for it."
      : frame.running.length >= places
        ? `${count(places, "request")} may run at once, and as many do.`
        : frame.used >= frame.budget
          ? "The budget is used up."
          : "Too few blocks are free: all its tokens must fit, and room is left for those who run.";
    return choiceQuestion(
      `${first} is at the head of the queue. Is it admitted in the next step?`,
      isIn ? "yes" : "no", ["yes", "no"], why,
    );
  }

  function askTotal(frame, before) {
    const unchanged = before.shares.every((s) => s.kind === "decode") && before.used === frame.used;
    if (unchanged && before.step > 0) return null;
    const known = frame.shares.reduce((sum, s) => sum + s.known, 0);
    return numberQuestion(
      "How many tokens does the next step compute in all?",
      frame.used, [frame.budget, known, frame.used + 1],
      "Everybody who decodes has one token that is known and not computed.",
    );
  }

  learnvllm.kinds.scheduler = {
    title: "The scheduler's token budget",
    columns: ["Step", "Tokens per request", "In all", "Waiting", "Preempted", "Ended", "Free blocks"],
    frames,
  };
})((globalThis.learnvllm ??= {}));
