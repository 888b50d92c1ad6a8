document.addEventListener("click", (event) => { // also in tables that come later
  const button = event.target.closest("th button");
  if (!button) return;
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending", at = head.cellIndex;
  const key = (row) => row.cells[at].dataset.sort ?? row.cells[at].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b), difference = x - y;
    return (Number.isNaN(difference) ? x.localeCompare(y, undefined, { numeric: true }) : difference) * (up ? 1 : -1);
  });
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows);
});
const REACH = 40; // of the pointer, in pixels
function followPointer(view) {
  const svg = view.querySelector("svg"), tip = document.createElement("output");
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  mark.setAttribute("r", 4.5);
  mark.setAttribute("class", "mark");
  let series;
  const hide = () => { tip.hidden = true; mark.remove(); };
  const read = (event) => {
    series ??= JSON.parse(view.dataset.read);
    const matrix = svg.getScreenCTM(), reach = REACH / matrix.a;
    const x = (event.clientX - matrix.e) / matrix.a, y = (event.clientY - matrix.f) / matrix.d;
    let best = reach * reach, of, at;
    for (const line of series) for (const point of line.points) {
      const distance = (point[0] - x) ** 2 + (point[1] - y) ** 2;
      if (distance < best) [best, of, at] = [distance, line, point];
    }
    if (!at) return hide();
    const name = at[4] || of.name;
    tip.textContent = (name ? name + "\n" : "") + of.x + ": " + at[2] + "\n" + of.y + ": " + at[3];
    tip.hidden = false;
    view.append(tip);
    mark.setAttribute("cx", at[0]);
    mark.setAttribute("cy", at[1]);
    svg.append(mark);
    const left = at[0] * matrix.a, box = svg.getBoundingClientRect();
    const room = box.width - left > tip.offsetWidth + 14;
    tip.style.left = Math.max(0, room ? left + 12 : left - tip.offsetWidth - 12) + "px";
    tip.style.top = box.top - view.getBoundingClientRect().top + at[1] * matrix.d + 8 + "px";
  };
  svg.addEventListener("pointermove", read);
  svg.addEventListener("pointerdown", read);
  svg.addEventListener("pointerleave", hide);
}
for (const view of document.querySelectorAll("[data-read]")) followPointer(view);
// A figure with an address is drawn when it comes into sight, for the width that the screen has.
const inSight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) { inSight.unobserve(target); showFigure(target); }
}, { rootMargin: "400px" });
async function showFigure(figure) {
  const kind = matchMedia("screen and (max-width: 560px)").matches ? "?narrow=true" : "";
  const answer = await fetch(figure.dataset.figure + kind);
  const place = figure.querySelector("div");
  if (!answer.ok) { place.textContent = "This figure no longer exists: load the page again."; return; }
  place.innerHTML = await answer.text();
  for (const view of place.querySelectorAll("[data-read]")) followPointer(view);
}
for (const figure of document.querySelectorAll("[data-figure]")) inSight.observe(figure);
document.addEventListener("fairmile:part", (event) => {
  for (const figure of event.target.querySelectorAll("[data-figure]")) inSight.observe(figure);
});
