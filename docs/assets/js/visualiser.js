// Brings every <div class="visualiser" data-kind="…" data-src="…"> of a page to life.
//
// Loads the scripts of the kinds that the page has, then the recording, and builds the frame around the picture:
// controls, keys, spoken captions, questions, a table. data-scenario and data-step choose where it begins; the
// page's address overrules them.
(function (learnvllm) {
  "use strict";
  const base = new URL(".", document.currentScript.src).href;
  const chinese = document.documentElement.lang.startsWith("zh");
  const pace = { "0.5": 3200, "1": 1700, "2": 850 };

  // Drawn, because not every font has them: a bar is a thin rectangle, an arrow a triangle.
  const icons = {
    first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M11 3v10L4 8z", play: "M4 2.5v11L13 8z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
    next: "M3 3v10l7-5zM11 3h2v10h-2z", last: "M3 3v10l4-5zM7 3v10l4-5zM11 3h2v10h-2z",
  };

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", icons[name]);
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    svg.append(path);
    return svg;
  }

  const loading = new Map();
  function loadScript(url) {
    if (!loading.has(url)) {
      loading.set(url, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url, async: false, onload: resolve, onerror: () => reject(new Error(`cannot load ${url}`)) });
        document.head.append(script);
      }));
    }
    return loading.get(url);
  }

  async function loadTrace(source) {
    const url = new URL(source, document.baseURI);
    if (url.protocol !== "file:") {
      const response = await fetch(url);
      if (!response.ok) throw new Error(`${url.pathname}: ${response.status}`);
      return response.json();
    }
    await loadScript(`${url.href}.js`); // a page from the disk may not fetch, but it may run a script
    return learnvllm.traces[url.pathname.split("/").at(-1)];
  }

  async function start(host) {
    host.dataset.state = "loading";
    try {
      const { kind, src } = host.dataset;
      if (chinese) await loadScript(`${base}words_zh.js`);
      for (const name of ["dom", "player", `${kind}_logic`, `${kind}_view`]) await loadScript(`${base}${name}.js`);
      new Visualiser(host, kind, await loadTrace(src));
      host.dataset.state = "ready";
    } catch (error) {
      host.dataset.state = "failed";
      host.textContent = chinese ? `这张图无法加载（${error.message}）。` : `This figure could not be loaded (${error.message}).`;
    }
  }

  class Visualiser {
    constructor(host, kind, trace) {
      Object.assign(this, { host, trace, what: learnvllm.kinds[kind], timer: null });
      const number = [...document.querySelectorAll(`.visualiser[data-kind="${kind}"]`)].indexOf(host) + 1;
      this.key = number > 1 ? `${kind}${number}` : kind; // its name in the page's address
      this.id = `lv-${this.key}`;
      this.build();
      const asked = learnvllm.readAddress(location.search, this.key);
      this.predictBox.checked = asked.predict;
      const known = (id) => trace.scenarios.some((s) => s.id === id);
      const id = [asked.scenario, host.dataset.scenario].find(known) ?? trace.scenarios[0].id;
      this.choose(id, asked.step ?? Number(host.dataset.step ?? 0));
    }

    // ------------------------------------------------------------------------------------------- building

    build() {
      const { h, say } = learnvllm;
      const button = (name, label, action) => h("button.lv-button", { type: "button", "aria-label": say(label), title: say(label), onclick: action }, icon(name));
      this.select = h("select", { id: `${this.id}-scenario`, onchange: () => this.choose(this.select.value, 0) },
        this.trace.scenarios.map((s) => h("option", { value: s.id }, say(s.title))));
      this.intro = h("p.lv-intro");
      this.stage = h("div.lv-stage", { "aria-hidden": "true" });
      this.caption = h("p.lv-caption", { "aria-live": "polite", "aria-atomic": "true" });
      this.panel = h("div.lv-panel", { role: "group", "aria-label": say("Your guess"), "aria-live": "polite", tabindex: -1, hidden: true });
      this.playButton = button("play", "Play", () => this.toggle());
      this.slider = h("input.lv-slider", { type: "range", min: 0, step: 1, "aria-label": say("Step"), oninput: () => this.jump(Number(this.slider.value)) });
      this.counter = h("span.lv-counter");
      this.speed = h("select", { "aria-label": say("Speed"), title: say("Speed") }, Object.keys(pace).map((p) => h("option", { value: p, selected: p === "1" }, `${p}×`)));
      this.predictBox = h("input", { type: "checkbox", onchange: () => this.setPredict(this.predictBox.checked) });
      this.table = h("div.lv-table-box", { tabindex: 0, role: "region", "aria-label": say("Steps") });
      this.details = h("details.lv-details", { ontoggle: () => this.fillTable() }, h("summary", {}, say("All steps as a table")), this.table);
      this.root = h("section.lv", { tabindex: 0, "aria-label": say("Figure: {0}", say(this.what.title)), onkeydown: (event) => this.press(event) },
        h("div.lv-top", {}, h("label", { for: this.select.id }, say(this.what.title)), this.select), this.intro,
        h("div.lv-controls", { role: "group", "aria-label": say("Player") },
          button("first", "To the beginning", () => this.jump(0)), button("back", "Back", () => this.back()), this.playButton,
          button("next", "Next step", () => this.next()), button("last", "To the end", () => this.jump(this.player.last)),
          this.slider, this.counter),
        h("div.lv-options", {}, h("label.lv-check", {}, this.predictBox, " ", say("Predict first")), h("label.lv-check", {}, say("Speed"), " ", this.speed),
          h("span.lv-note.lv-keys", {}, say("Space plays · ← → step · Home End · 1 to 9 answer"))),
        this.caption, this.panel, this.stage,
        this.details);
      this.host.replaceChildren(this.root);
    }

    choose(id, step) {
      this.scenario = this.trace.scenarios.find((s) => s.id === id);
      this.select.value = id;
      this.intro.textContent = learnvllm.say(this.scenario.intro);
      this.player = new learnvllm.Player(this.what.frames(this.scenario), { predict: this.predictBox.checked });
      this.slider.max = this.player.last;
      this.table.replaceChildren();
      this.fillTable();
      this.pause();
      this.go(step);
    }

    // --------------------------------------------------------------------------------------------- moving

    go(step) { this.player.go(step); this.show(); }
    jump(step) { this.pause(); this.go(step); }
    back() { this.pause(); this.player.back(); this.show(); }
    next() { this.pause(); this.player.next(); this.show(); }

    setPredict(on) {
      this.player.setPredict(on);
      this.fillTable();
      this.show();
    }

    // null: show it without a guess.
    answer(choice) {
      if (choice === null) this.player.skip();
      else this.player.answer(choice);
      this.show();
      this.root.focus({ preventScroll: true });
    }

    toggle() {
      if (this.timer) return this.pause();
      if (this.player.atEnd) this.player.go(0);
      this.caption.setAttribute("aria-live", "off"); // nobody wants to hear a step every other second
      this.offer("pause", "Pause");
      this.tick();
    }

    tick() {
      this.player.next();
      this.show();
      if (this.player.atEnd || this.player.question) this.pause();
      else this.timer = setTimeout(() => this.tick(), pace[this.speed.value]);
    }

    pause() {
      clearTimeout(this.timer);
      this.timer = null;
      this.caption.setAttribute("aria-live", "polite");
      this.offer("play", "Play");
    }

    // What the button in the middle does when it is pressed now.
    offer(name, label) {
      this.playButton.replaceChildren(icon(name));
      this.playButton.title = learnvllm.say(label);
      this.playButton.setAttribute("aria-label", this.playButton.title);
    }

    press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const tag = event.target.tagName;
      if (tag === "SELECT" || event.target === this.table) return; // they have keys of their own
      if (this.player.question && /^[1-9]$/.test(event.key) && event.target !== this.slider) {
        if (this.player.question.choices[event.key - 1] !== undefined) this.answer(event.key - 1);
        return;
      }
      if (event.key === " " && ["BUTTON", "SUMMARY", "INPUT"].includes(tag) && event.target !== this.slider) return;
      const action = {
        " ": () => this.toggle(), ArrowRight: () => this.next(), ArrowLeft: () => this.back(),
        Home: () => this.jump(0), End: () => this.jump(this.player.last),
      }[event.key];
      if (!action) return;
      event.preventDefault();
      event.stopPropagation(); // the site has uses for the arrow keys, too
      action();
    }

    // -------------------------------------------------------------------------------------------- showing

    show() {
      const { player } = this;
      const context = { scenario: this.scenario, frames: player.frames, player, go: (step) => this.jump(step) };
      this.what.render(this.stage, player.frame, context);
      this.caption.textContent = player.frame.caption;
      this.slider.value = player.position;
      this.slider.setAttribute("aria-valuetext", learnvllm.say("{0} of {1}", player.position, player.last));
      this.counter.textContent = `${player.position} / ${player.last}`;
      this.showPanel();
      this.markTable();
      this.remember();
    }

    showPanel() {
      const { h, say } = learnvllm;
      const { question, verdict, score } = this.player;
      this.panel.hidden = !question && !verdict;
      if (question) {
        this.panel.replaceChildren(
          h("p.lv-question", {}, question.prompt),
          h("div.lv-choices", {}, question.choices.map((text, index) => h("button.lv-choice", { type: "button", onclick: () => this.answer(index) }, h("kbd.lv-kbd", { "aria-hidden": "true" }, String(index + 1)), text)),
            h("button.lv-choice.lv-skip", { type: "button", onclick: () => this.answer(null) }, say("Just show me"))));
        if (this.root.contains(document.activeElement)) this.panel.focus({ preventScroll: true }); // so that it is read out
      } else if (verdict) {
        const said = verdict.question.choices[verdict.question.answer].replace(/[.。]?$/, say("."));
        this.panel.replaceChildren(h(`p.${verdict.right ? "lv-right" : "lv-wrong"}`, {},
          h("b", {}, verdict.right ? say("Right: ") : say("Not so. It is: ")), said, " ", verdict.question.explain, " ",
          h("span.lv-note", {}, say("{0} of {1} right", score.right, score.asked))));
      }
    }

    fillTable() {
      if (!this.details.open) return;
      const { h, say } = learnvllm;
      const rows = this.player.frames.map((f, index) => h("tr", { "data-step": index }, f.row.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, cell))));
      this.table.replaceChildren(h("table.lv-steps", {}, h("thead", {}, h("tr", {}, this.what.columns.map((c) => h("th", { scope: "col" }, say(c))))), h("tbody", {}, rows)));
      this.markTable();
    }

    markTable() {
      for (const row of this.table.querySelectorAll("tbody tr")) {
        const step = Number(row.dataset.step);
        if (step === this.player.position) row.setAttribute("aria-current", "step");
        else row.removeAttribute("aria-current");
        row.hidden = this.player.predict && step > this.player.position;
      }
    }

    remember() {
      const state = { scenario: this.scenario.id, step: this.player.position, predict: this.player.predict };
      if (!this.moved) { this.moved = true; return; } // a page just opened keeps its address
      try {
        history.replaceState(history.state, "", learnvllm.writeAddress(location.search, this.key, state) + location.hash);
      } catch { /* a page from the disk may not change its address */ }
    }
  }

  function startAll() {
    for (const host of document.querySelectorAll(".visualiser[data-kind]")) start(host);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
  else startAll();
})((globalThis.learnvllm ??= {}));
