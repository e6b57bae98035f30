// Runs the site's scripts, which are classic scripts, in node: they put everything into globalThis.learnvllm.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import vm from "node:vm";

const assets = new URL("../../../docs/assets/", import.meta.url);

export function load(...names) {
  for (const name of names) {
    const file = fileURLToPath(new URL(`js/${name}.js`, assets));
    vm.runInThisContext(readFileSync(file, "utf8"), { filename: file });
  }
  return globalThis.learnvllm;
}

export function scenario(kind, id) {
  const trace = JSON.parse(readFileSync(new URL(`traces/${kind}.json`, assets), "utf8"));
  return trace.scenarios.find((s) => s.id === id);
}

export function scenarios(kind) {
  return JSON.parse(readFileSync(new URL(`traces/${kind}.json`, assets), "utf8")).scenarios;
}
