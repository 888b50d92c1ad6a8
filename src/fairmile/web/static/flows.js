// A flow: its boxes lead to runs, and follow what the flow does.
"use strict";
const graph = document.getElementById("graph"), flow = graph.dataset.flow;
const runs = JSON.parse(graph.dataset.steps), boxes = JSON.parse(graph.dataset.boxes);
const SVG = "http://www.w3.org/2000/svg";

// A box of one step that has run is a link to its run.
function link(number) {
  const box = graph.querySelector(`g[data-box="${number}"]`), steps = boxes[number];
  const run = steps.length === 1 && runs[steps[0]];
  if (!box || !run) return;
  const anchor = document.createElementNS(SVG, "a");
  anchor.setAttribute("href", run);
  box.replaceWith(anchor);
  anchor.append(box);
}
function draw(number, svg) {
  const parsed = new DOMParser().parseFromString(`<svg xmlns="${SVG}">${svg}</svg>`, "image/svg+xml");
  const box = graph.querySelector(`g[data-box="${number}"]`);
  if (!box || parsed.querySelector("parsererror")) return;
  (box.closest("a") ?? box).replaceWith(document.importNode(parsed.documentElement.firstElementChild, true));
  link(number);
}
boxes.forEach((_, number) => link(number));

let timer;
document.addEventListener("fairmile:flow:" + flow, ({ detail }) => {
  if (detail.error) return;
  if (detail.layout !== graph.dataset.layout) { location.reload(); return; }
  for (const step of detail.steps) if (step.run) runs[step.name] = "/runs/" + encodeURIComponent(step.run);
  for (const box of detail.boxes) draw(box.id, box.svg);
  document.getElementById("counts").textContent = Object.entries(detail.counts).map(([state, number]) => number + " " + state).join(", ");
  document.getElementById("holder").textContent = detail.holder || "not running";
  const start = document.getElementById("start"), cancel = document.getElementById("cancel");
  if (start) start.hidden = !!detail.holder;
  if (cancel) cancel.hidden = !(detail.holder || detail.counts.running || detail.counts.queued);
  clearTimeout(timer);
  timer = setTimeout(() => fairmile.refresh("steps", location.pathname), 500);
});

for (const verb of ["start", "cancel"]) {
  document.getElementById(verb)?.addEventListener("click", async () => {
    const answer = document.getElementById("answer");
    try {
      await fairmile.send(`/api/flows/${flow}/${verb}`);
      answer.textContent = verb === "start" ? "Started." : "Cancelled.";
    } catch (error) { answer.textContent = error.message; }
  });
}
