// What became of every block of the KV cache: held, shared, free with content, free and empty. No page in here.
//
// A step gives a frame when it has been scheduled, and another when requests end with it.
(function (learnvllm) {
  "use strict";
  const { list, count, numberQuestion, choiceQuestion } = learnvllm;

  function frames(scenario) {
    const result = [beginning(scenario)];
    scenario.events.forEach((event, index) => {
      result.push(planned(scenario, event, index + 1, result.at(-1)));
      if (event.finished?.length) result.push(takenIn(scenario, event, index + 1, result.at(-1)));
    });
    return result;
  }

  function beginning(scenario) {
    const { num_blocks: number, block_size: size } = scenario.config;
    const state = {
      ref_counts: Array(number).fill(0), names: Array(number).fill(""), tables: {},
      free_queue: Array.from({ length: number - 1 }, (_, i) => i + 1),
    };
    const caption = `${number - 1} blocks of ${size} tokens, all free. (Block 0 is the null block, never handed out.)`;
    return finish(scenario, { step: 0, phase: "", caption, question: null }, state, null);
  }

  function planned(scenario, event, step, before) {
    const frame = finish(scenario, { step, phase: "scheduled" }, event.planned, before);
    frame.caption = `Step ${step} is scheduled. ${describePlan(event, frame, scenario.config.block_size)}`;
    frame.question = askPlan(scenario, event, frame, before);
    return frame;
  }

  function takenIn(scenario, event, step, before) {
    const frame = finish(scenario, { step, phase: "ended" }, event.taken_in, before);
    const freed = frame.blocks.filter((b) => b.mark === "freed");
    const released = frame.blocks.filter((b) => b.mark === "released").map((b) => b.id);
    const named = freed.filter((b) => b.name).map((b) => b.id);
    const unnamed = freed.filter((b) => !b.name).map((b) => b.id);
    const parts = [`Step ${step} is taken in and ${list(event.finished)} ${event.finished.length > 1 ? "end" : "ends"}.`];
    if (named.length) parts.push(`${blocksWord(named)} ${named.length > 1 ? "go" : "goes"} to the free queue, the last block first, and can still be found.`);
    if (unnamed.length) parts.push(`${blocksWord(unnamed)} never filled up and so ${unnamed.length > 1 ? "have no names: they are" : "has no name: it is"} handed out next.`);
    if (released.length) parts.push(`${blocksWord(released)} ${released.length > 1 ? "are" : "is"} held by others still.`);
    frame.caption = parts.join(" ");
    frame.question = askEnd(event, frame, before);
    return frame;
  }

  // Blocks of the pool with what has just happened to each, and the tree of names.
  function finish(scenario, frame, recorded, before) {
    const state = { tables: {}, free_queue: [], ...recorded }; // what is empty is left out of a recording
    frame.blocks = state.ref_counts.slice(1).map((refs, index) => {
      const id = index + 1;
      const name = state.names[id];
      const holders = Object.keys(state.tables).filter((r) => state.tables[r].flat().includes(id));
      const was = before?.blocks[index];
      return {
        id, refs, name, holders,
        text: scenario.contents[name]?.text ?? "",
        state: refs ? "held" : name ? "cached" : "empty",
        mark: was ? markOf(was, refs, name) : "",
        evicted: was && was.name && was.name !== name ? was.text : "",
      };
    });
    frame.queue = [...state.free_queue];
    frame.tables = Object.fromEntries(Object.entries(state.tables).map(([r, groups]) => [r, groups.flat()]));
    frame.tree = tree(scenario.contents, frame.blocks);
    frame.row = [
      frame.step ? `${frame.step} ${frame.phase}` : "0",
      Object.entries(frame.tables).map(([r, ids]) => `${r}: ${ids.join(" ")}`).join("; "),
      frame.queue.map((id) => (state.names[id] ? `${id} (named)` : `${id}`)).join(" "),
      frame.blocks.filter((b) => b.refs > 1).map((b) => `${b.id} ×${b.refs}`).join(", "),
      frame.blocks.filter((b) => b.evicted).map((b) => b.id).join(", "),
    ];
    return frame;
  }

  function markOf(was, refs, name) {
    if (refs > was.refs) return was.name && was.name === name ? "hit" : "taken";
    if (refs < was.refs) return refs ? "released" : "freed";
    if (refs && name && !was.name) return "named";
    return "";
  }

  // Nested nodes {name, text, block, children}; a node is a root when no block has the name before its own.
  function tree(contents, blocks) {
    const nodes = new Map();
    for (const block of blocks) {
      if (block.name) nodes.set(block.name, { name: block.name, text: block.text, block, children: [], orphan: false });
    }
    const roots = [];
    for (const node of nodes.values()) {
      const parent = contents[node.name]?.parent ?? "";
      if (nodes.has(parent)) nodes.get(parent).children.push(node);
      else {
        node.orphan = parent !== ""; // its predecessor is evicted: no prompt finds it any more
        roots.push(node);
      }
    }
    return roots;
  }

  // ------------------------------------------------------------------------------------------------ words

  function blocksWord(ids) {
    return `${ids.length > 1 ? "Blocks" : "Block"} ${list(ids.map(String))}`;
  }

  function describePlan(event, frame, size) {
    const parts = [];
    for (const s of event.scheduled) {
      const table = frame.tables[s.req_id] ?? [];
      const fresh = (s.block_ids ?? []).flat();
      const hits = Math.floor((s.num_cached_tokens ?? 0) / size);
      if (hits) {
        parts.push(`${s.req_id} finds ${count(hits, "block")} of its prompt (${table.slice(0, hits).join(", ")}) and takes ${count(fresh.length - hits, "new one")}.`);
      } else if (fresh.length) {
        parts.push(`${s.req_id} takes ${blocksWord(fresh).toLowerCase()}.`);
      }
    }
    const named = frame.blocks.filter((b) => b.mark === "named" || (b.mark === "taken" && b.name)).map((b) => b.id);
    if (named.length) parts.push(`${blocksWord(named)} ${named.length > 1 ? "are" : "is"} full and ${named.length > 1 ? "get names" : "gets a name"}.`);
    const evicted = frame.blocks.filter((b) => b.evicted);
    if (evicted.length) {
      parts.push(`Evicted: ${list(evicted.map((b) => `“${b.evicted}” (block ${b.id})`))}.`);
    }
    if (event.preempted?.length) parts.push(`${list(event.preempted)} gave way.`);
    if (!parts.length) parts.push("Every new token fits into a block that its request holds already.");
    return parts.join(" ");
  }

  // -------------------------------------------------------------------------------------------- questions

  function askPlan(scenario, event, frame, before) {
    const size = scenario.config.block_size;
    const admitted = event.scheduled.find((s) => !before.tables[s.req_id]);
    const holdsAny = before.blocks.some((b) => b.name);
    if (admitted && holdsAny) {
      const hits = Math.floor((admitted.num_cached_tokens ?? 0) / size);
      const whole = Math.floor(admitted.num_prompt / size);
      return numberQuestion(
        `${admitted.req_id} comes with ${count(admitted.num_prompt, "token")}. How many blocks of ${size} does it find in the cache?`,
        hits, [0, hits + 1, whole, Math.max(hits - 1, 0)],
        hits
          ? "Names are looked up from the left until one is missing. What is left of the prompt is computed."
          : "The very first block has a name that no block goes by.",
      );
    }
    const taken = frame.blocks.filter((b) => b.mark === "taken").map((b) => b.id);
    if (!taken.length) return null;
    const first = before.queue[0];
    if (!taken.includes(first)) return null;
    const choices = [first, before.queue.at(-1), before.queue[Math.floor(before.queue.length / 2)]];
    const lost = frame.blocks[first - 1].evicted;
    return numberQuestion(
      "A new block is needed. Which one is handed out?", first, choices,
      `The head of the free queue. ${lost ? `What it held, “${lost}”, can no longer be found.` : "It held nothing that could be found."}`,
    );
  }

  function askEnd(event, frame, before) {
    const [who] = event.finished;
    const table = before.tables[who] ?? [];
    const freed = table.filter((id) => frame.blocks[id - 1].refs === 0);
    if (freed.length < table.length) {
      return choiceQuestion(
        `${who} ends. It held blocks ${list(table.map(String))}. Which of them become free?`,
        freed.length ? freed.join(", ") : "none", [table.join(", "), freed.length ? freed.join(", ") : "none", "none"],
        "A block is free when nobody holds it any more: each table that holds it counts one.",
      );
    }
    if (event.finished.length > 1 || table.length < 2) return null;
    const order = frame.queue.filter((id) => table.includes(id));
    return choiceQuestion(
      `${who} ends and gives back blocks ${list(table.map(String))}. In which order will they be handed out again?`,
      order.join(", "), [order.join(", "), table.join(", ")].sort(),
      "The end of a prompt is less likely to be asked for again than its beginning, so it goes first; a block " +
        "without a name cannot be asked for at all.",
    );
  }

  learnvllm.kinds.blocks = {
    title: "Block pool and prefix tree",
    columns: ["Step", "Block tables", "Free queue, next out first", "Shared", "Evicted"],
    frames,
    tree,
  };
})((globalThis.learnvllm ??= {}));
