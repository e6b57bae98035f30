// Draws a frame of request_logic.js: where the request is, what travels, its tokens, its counters, its text.
(function (learnvllm) {
  "use strict";
  const { h, titled, legend, say } = learnvllm;

  function render(stage, frame) {
    const { places } = learnvllm.kinds.request;
    stage.replaceChildren(
      h("div.lv-places", {}, places.flatMap((place, index) => [
        index ? wire(frame, places[index - 1].id) : null,
        h(`div.lv-place${place.id === frame.place ? ".lv-current" : ""}`, {},
          h("b", {}, say(place.title)),
          [...new Set([...Object.values(place.parts), ...(place.others ?? [])])].map((part) =>
            h(`span.lv-part${place.id === frame.place && part === frame.part ? ".lv-current" : ""}`, {}, part))),
      ])),
      h("p.lv-message", {}, frame.message ? h("span", {}, h("b", {}, frame.message.name)) : h("span.lv-note", {}, say("nothing travels"))),
      titled(say("Tokens"), frame.known ? say("{0} computed of {1} known", frame.computed, frame.known) : say("none yet: it is text"),
        h("div.lv-tokens", {}, frame.tokens.length ? frame.tokens.map(token) : h("span.lv-note", {}, "–"))),
      h("div.lv-columns.lv-narrow", {},
        fact(say("Status"), frame.status || say("not in the core")),
        fact("num_tokens", String(frame.known)),
        fact("num_computed_tokens", String(frame.computed)),
        fact(say("Block table"), frame.blocks.length ? `[${frame.blocks.join(", ")}]` : say("none"))),
      titled(say("What the client has"), frame.held ? say("underlined: held back") : "",
        h("p.lv-text", {}, h("span.lv-note", {}, frame.prompt), h("b", {}, frame.shown),
          frame.held ? h("span.lv-held", {}, frame.held) : null)),
      legend(["lv-is-computed", say("computed")], ["lv-is-chunk", say("this step")], ["lv-is-known", say("known, not computed")]));
  }

  // What travels now between a place and the next one; further places are passed through.
  function wire(frame, left) {
    const m = frame.message;
    const order = learnvllm.kinds.request.places.map((p) => p.id);
    const at = order.indexOf(left);
    let arrow = "";
    if (m) {
      const [from, to] = [order.indexOf(m.from), order.indexOf(m.to)];
      if (Math.min(from, to) <= at && at < Math.max(from, to)) arrow = from < to ? "→" : "←";
    }
    return h(`span.lv-wire${arrow ? ".lv-current" : ""}`, {}, arrow || "·");
  }

  function token(t) {
    return h(`span.lv-token.lv-is-${t.state}${t.isPrompt ? "" : ".lv-output"}`, { title: `id ${t.id}` },
      h("span", {}, t.text.replaceAll("\n", "⏎")), h("small", {}, String(t.id)));
  }

  function fact(title, value) {
    return titled(title, "", h("b.lv-fact", {}, value));
  }

  learnvllm.kinds.request.render = render;
})((globalThis.learnvllm ??= {}));
