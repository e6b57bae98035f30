// One request's life: where it is, what it looks like there, what its counters say. No page in here.
//
// A frame is a moment that was written down when a part had done its work (study/trace_request.py).
(function (learnvllm) {
  "use strict";
  const { count, numberQuestion, choiceQuestion, isNews, say } = learnvllm;

  const PLACES = [
    { id: "client", title: "Client", parts: { arrive: "HTTP" } },
    { id: "front", title: "Front end", parts: { tokenize: "InputProcessor", send: "EngineCoreClient", detokenize: "OutputProcessor" } },
    { id: "core", title: "Engine core", parts: { queue: "Request", schedule: "Scheduler", update: "update_from_output", abort: "abort_requests" }, others: ["KVCacheManager"] },
    { id: "worker", title: "Worker", parts: { forward: "ModelRunner", forget: "ModelRunner" }, others: ["Sampler"] },
  ];
  const NEXT = {
    tokenize: "The front end turns the text into token ids.",
    send: "The front end sends a message to the core.",
    queue: "The core puts it into the waiting queue.",
    schedule: "The scheduler decides what a step computes.",
    forward: "The worker computes the step.",
    update: "The core takes in what the step gave.",
    detokenize: "The front end turns new ids into text.",
    abort: "The core is told to forget the request.",
    forget: "The worker forgets the request.",
  };

  function frames(scenario) {
    return scenario.moments.map((moment, index) => make(scenario, moment, index));
  }

  function make(scenario, moment, index) {
    const numPrompt = scenario.moments.find((m) => m.what === "tokenize").num_prompt;
    const known = moment.num_tokens ?? (moment.what === "arrive" ? 0 : numPrompt);
    const chunk = ["schedule", "forward"].includes(moment.what) ? [moment.start, moment.start + moment.count] : null;
    const computed = chunk && moment.what === "schedule" ? chunk[0] : (moment.num_computed ?? 0);
    const frame = {
      place: moment.place, part: partOf(moment), what: moment.what,
      status: moment.status ?? "", known, computed, blocks: moment.blocks ?? [],
      shown: moment.shown, held: moment.held, prompt: scenario.prompt,
      tokens: scenario.tokens.slice(0, known).map((token, i) => ({
        ...token, isPrompt: i < numPrompt,
        state: chunk && i >= chunk[0] && i < chunk[1] ? "chunk" : i < computed ? "computed" : "known",
      })),
      message: messageOf(moment),
    };
    frame.caption = describe(scenario, moment, frame);
    frame.question = isNews(scenario.moments.map((m) => m.what), index) ? ask(scenario, moment, scenario.moments[index - 1]) : null;
    frame.row = [
      String(index), say(placeOf(moment.place).title), frame.caption, frame.status, say("{0} of {1}", frame.computed, frame.known),
      frame.blocks.join(" "), frame.shown + (frame.held ? ` [${frame.held}]` : ""),
    ];
    return frame;
  }

  function placeOf(id) {
    return PLACES.find((place) => place.id === id);
  }

  function partOf(moment) {
    return placeOf(moment.place).parts[moment.what];
  }

  // What travels to the next place, and in which direction.
  function messageOf(moment) {
    switch (moment.what) {
      case "arrive": return { from: "client", to: "front", name: say("text and parameters") };
      case "send": return { from: "front", to: "core", name: say("EngineCoreRequest, {0} bytes", moment.bytes) };
      case "schedule": return { from: "core", to: "worker", name: moment.is_new ? say("SchedulerOutput: new request") : say("SchedulerOutput: what changed") };
      case "forward": return { from: "worker", to: "core", name: "ModelRunnerOutput" };
      case "update": return moment.bytes ? { from: "core", to: "front", name: say("EngineCoreOutputs, {0} bytes", moment.bytes) } : null;
      case "detokenize": return moment.new_text ? { from: "front", to: "client", name: say("text") } : null;
      case "abort": return { from: "front", to: "core", name: "ABORT" };
      default: return null;
    }
  }

  // ------------------------------------------------------------------------------------------------ words

  function quote(text) {
    return `“${text.replaceAll("\n", "⏎")}”`;
  }

  function describe(scenario, m, frame) {
    const left = frame.known - (m.start ?? 0);
    switch (m.what) {
      case "arrive":
        return say("A client sends text and parameters: {0}, temperature=0.", Object.entries(scenario.params).map(([k, v]) => `${k}=${JSON.stringify(v)}`).join(", "));
      case "tokenize":
        return say("The InputProcessor checks every field and turns the text into {0}. From here on the engine sees no text.", count(m.num_prompt, "token id"));
      case "send":
        return say("The ids travel to the engine core as an EngineCoreRequest of {0} bytes.", m.bytes);
      case "queue":
        return say("The core makes a Request of it: {0} tokens known, none computed; its {1} have names already. It waits.", frame.known, count(m.blocks_named, "full block"));
      case "schedule": return describeSchedule(scenario, m, left);
      case "forward": return describeForward(scenario, m);
      case "update":
        return m.sampled.length
          ? [say("The token joins the request: {0} known, {1} computed.", frame.known, frame.computed), m.finished && say("max_tokens is reached: the request ends and its blocks are free."), say("The outputs of the step take {0} bytes.", m.bytes)].filter(Boolean).join(say(" "))
          : say("{0} of {1} tokens are computed. There is nothing to tell anybody yet.", frame.computed, frame.known);
      case "detokenize": return describeText(m);
      case "abort": return say("The front end tells the core, which did not know of the stop string: the request is gone, its blocks are free.");
      default: return say("The next step has no tokens; it tells the worker to forget the request. Nothing of it is left but names of blocks, for the next prompt that begins alike.");
    }
  }

  function describeSchedule(scenario, m, left) {
    const budget = scenario.config.max_num_batched_tokens;
    const blocks = m.new_blocks.length ? say(" and {0} ({1})", count(m.new_blocks.length, "block"), m.new_blocks.join(", ")) : "";
    const what = m.count > 1 ? say("{0} tokens are not computed and the budget is {1}: it gets {2}", left, budget, m.count) : say("One token is known and not computed: it gets one");
    const how = m.is_new ? say("The worker is told everything about it.") : say("The worker knows it and is told what changed.");
    return say("Step {0}. {1}{2}. {3}", m.step + 1, what, blocks, how);
  }

  function describeForward(scenario, m) {
    const range = m.count > 1 ? say("positions {0} to {1}", m.start, m.start + m.count - 1) : say("position {0}", m.start);
    if (!m.sampled.length) return say("The worker computes {0} and writes their KV. The prompt is not whole, so no token is chosen.", range);
    const id = m.sampled[0];
    const text = scenario.tokens.find((t) => t.id === id)?.text ?? "";
    return say("The worker computes {0}; {1} logits choose token {2}, {3}.", range, m.count > 1 ? say("the last one's") : say("its"), id, quote(text));
  }

  function describeText(m) {
    const shown = m.new_text ? say("The client gets {0}.", quote(m.new_text)) : say("The client gets nothing new.");
    const held = m.held ? say("{0} is held back: it could become the stop string.", quote(m.held)) : "";
    const reason = m.finish_reason ? say("The request is over ({0}{1}).", m.finish_reason, m.finish_reason === "stop" ? say(": the stop string is found and cut off") : "") : "";
    return [say("The OutputProcessor turns the id into text."), shown, held, reason].filter(Boolean).join(say(" "));
  }

  // -------------------------------------------------------------------------------------------- questions

  function ask(scenario, moment, before) {
    if (moment.what === "schedule" && moment.count > 1) {
      const left = before.num_tokens - moment.start;
      return numberQuestion(
        say("{0} of the request's tokens are not computed and a step may compute {1}. How many does the next step compute?", left, scenario.config.max_num_batched_tokens),
        moment.count, [left, scenario.config.max_num_batched_tokens, 1, before.num_tokens],
        say("As many as are left, at most the budget."),
      );
    }
    const whats = [...new Set([moment.what, ...alternatives(moment.what)])].sort();
    return choiceQuestion(say("What happens next?"), say(NEXT[moment.what]), whats.map((w) => say(NEXT[w])), say(explainNext(moment)));
  }

  function alternatives(what) {
    const order = Object.keys(NEXT);
    const at = order.indexOf(what);
    return [order[(at + 1) % order.length], order[(at + 4) % order.length], order[(at + 6) % order.length]];
  }

  function explainNext(moment) {
    const why = {
      tokenize: "What needs text is done in front, before anything is queued.",
      send: "The core may be in another process: what it needs goes there as one message.",
      queue: "Every request waits first; the next step may admit it.",
      schedule: "As long as known tokens are not computed there is another step.",
      forward: "A scheduled step is always executed.",
      update: "Sampled ids go back to the scheduler: they are known now, and not computed.",
      detokenize: "New ids are text only in the front end.",
      abort: "A stop string is found in the text, and there is no text in the core.",
      forget: "The worker keeps a request until it is told that it has ended.",
    };
    return why[moment.what];
  }

  learnvllm.kinds.request = {
    title: "The life of a request",
    columns: ["Moment", "Place", "What happens", "Status", "Computed", "Blocks", "Text"],
    places: PLACES,
    frames,
  };
})((globalThis.learnvllm ??= {}));
