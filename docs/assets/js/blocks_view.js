// Draws a frame of blocks_logic.js: the pool, the free queue, the block tables and the tree of names.
(function (learnvllm) {
  "use strict";
  const { h, hue, titled, chip, legend } = learnvllm;
  const MARKS = { taken: "taken", hit: "hit", freed: "freed", released: "one less", named: "named" };

  function render(stage, frame, { scenario }) {
    stage.replaceChildren(
      titled("Pool", "ref count and content of every block", h("div.lv-pool", {}, frame.blocks.map((b) => block(scenario, b)))),
      titled("Free queue", "next out first; a block with a name can still be found", queue(frame)),
      h("div.lv-columns", {},
        titled("Block tables", "", tables(scenario, frame)),
        titled("Prefix tree", "what a new prompt can find", tree(scenario, frame)),
      ),
      legend(["lv-block-held", "held"], ["lv-block-cached", "free, content kept"], ["lv-block-empty", "free, no content"]),
    );
  }

  function block(scenario, b) {
    const colours = b.holders.map((id) => hue(scenario, id));
    const mark = b.evicted ? "evicted" : MARKS[b.mark];
    return h(`div.lv-block.lv-block-${b.state}${mark ? ".lv-new" : ""}`, { title: b.evicted ? `was: ${b.evicted}` : b.text },
      h("span.lv-block-head", {}, h("b", {}, String(b.id)), h("span.lv-refs", {}, b.refs ? `ref ${b.refs}` : "free")),
      h("span.lv-block-text", {}, b.text || (b.refs ? "…" : "")),
      h("span.lv-block-foot", {},
        h("span.lv-holders", {}, colours.map((c) => h("i", { style: { background: c } }))),
        mark ? h(`span.lv-mark-${b.evicted ? "evicted" : b.mark}`, {}, mark) : null));
  }

  function queue(frame) {
    const cells = frame.queue.map((id) => {
      const b = frame.blocks[id - 1];
      return h(`span.lv-cell${b.name ? ".lv-block-cached" : ".lv-block-empty"}`, { title: b.text || "no content" }, String(id));
    });
    return h("div.lv-queue", {}, cells.length ? cells : h("span.lv-note", {}, "empty: nothing is free"));
  }

  function tables(scenario, frame) {
    const rows = Object.entries(frame.tables).map(([id, ids]) =>
      h("div.lv-table-row", {}, chip(scenario, id), ids.map((b) =>
        h("span.lv-cell.lv-block-held", { style: { "--lv-hue": hue(scenario, id) } }, String(b)))));
    return h("div", {}, rows.length ? rows : h("span.lv-note", {}, "no request runs"));
  }

  function tree(scenario, frame) {
    if (!frame.tree.length) return h("span.lv-note", {}, "no block has a name yet");
    const branch = (nodes) => h("ul.lv-tree", {}, nodes.map((node) =>
      h("li", {},
        h(`span.lv-node.lv-block-${node.block.state}${node.block.mark || node.block.evicted ? ".lv-new" : ""}`, {},
          h("b", {}, String(node.block.id)), ` ${node.text} `,
          h("span.lv-holders", {}, node.block.holders.map((id) => h("i", { style: { background: hue(scenario, id) } }))),
          node.orphan ? h("small", {}, " its beginning is gone") : null),
        node.children.length ? branch(node.children) : null)));
    return branch(frame.tree);
  }

  learnvllm.kinds.blocks.render = render;
})((globalThis.learnvllm ??= {}));
