// Making elements (the quiz does, too), and the little that all views share.
(function (learnvllm) {
  "use strict";

  // h("p.name", {title: "…"}, "text", child, …). null, undefined and false are left out.
  function h(selector, attributes = {}, ...children) {
    const [tag, ...classes] = selector.split(".");
    const element = document.createElement(tag || "div");
    if (classes.length) element.className = classes.join(" ");
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
    return element;
  }

  // A colour per request, by its place in the scenario; styles give --lv-c0 to --lv-c5 for light and dark.
  function hue(scenario, id) {
    const index = scenario.requests.findIndex((r) => r.id === id);
    return `var(--lv-c${Math.max(index, 0) % 6})`;
  }

  function percent(part, whole) {
    return `${((100 * part) / whole).toFixed(3)}%`;
  }

  function chip(scenario, id, note) {
    return h("span.lv-chip", { style: { "--lv-hue": hue(scenario, id) } }, id, note ? h("small", {}, ` ${note}`) : null);
  }

  function legend(...items) {
    return h(
      "div.lv-legend", {},
      items.map(([className, text]) => h("span.lv-key", {}, h(`span.lv-swatch.${className}`), text)),
    );
  }

  // A heading and what it is about.
  function titled(text, note, ...content) {
    const heading = h("div.lv-heading", {}, h("span", {}, text), note ? h("span.lv-note", {}, note) : null);
    return h("div", {}, heading, ...content);
  }

  Object.assign(learnvllm, { h, hue, percent, chip, legend, titled });
})((globalThis.learnvllm ??= {}));
