// What pages of the server do: send forms while one types, copy, follow live topics. No page needs it to be read.
"use strict";
const WAIT_MS = 120; // after the last key

const fairmile = {
  // Replace an element by the same block of the page at an address; return the answer unless a later one is on its way.
  async refresh(id, address) {
    const target = document.getElementById(id);
    const turn = (target.dataset.turn = String(Number(target.dataset.turn ?? 0) + 1));
    const answer = await fetch(address, { headers: { "Fairmile-Part": id, Accept: "text/html" } });
    if (target.dataset.turn !== turn) return null;
    if (answer.ok) {
      target.innerHTML = await answer.text();
      target.dispatchEvent(new CustomEvent("fairmile:part", { bubbles: true }));
    }
    return answer;
  },
  // Send JSON, and return what the server answers; an error has the sentence to show.
  async send(address, body, method = "POST") {
    const answer = await fetch(address, {
      method, headers: { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body),
    });
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.error ? [data.error.message, data.error.hint].filter(Boolean).join(". ") : answer.statusText);
    return data;
  },
  addressOf(form) {
    const values = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") values.append(name, value);
    const text = values.toString();
    return form.getAttribute("action") + (text ? "?" + text : "");
  },
};
globalThis.fairmile = fairmile;

for (const form of document.querySelectorAll("form[data-instant]")) {
  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const address = fairmile.addressOf(form);
      // The address is that of the results that are shown, whose links go on from there.
      if (await fairmile.refresh(form.dataset.instant, address)) history.replaceState(null, "", address);
    }, WAIT_MS);
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
});

document.addEventListener("keydown", (event) => {
  const field = document.querySelector("input[type=search]");
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && field && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    field.focus();
  }
});

// From the search field, the arrows lead through the results and back; Enter opens the one that has the focus.
document.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const field = document.querySelector("main input[type=search]"), results = document.getElementById("results");
  if (!step || !field || !results || event.altKey || event.ctrlKey || event.metaKey) return;
  const stops = [field, ...results.querySelectorAll(".hits h2 a, tbody a")];
  const at = stops.indexOf(document.activeElement);
  if (at < 0 || !stops[at + step]) return;
  event.preventDefault();
  stops[at + step].focus();
});

// Only once the scripts of the page listen: what comes before would be lost, and a page that is slow to load stay empty.
document.addEventListener("DOMContentLoaded", () => {
  if (!document.body.dataset.live) return;
  const stream = new EventSource("/api/live?topics=" + encodeURIComponent(document.body.dataset.live));
  for (const topic of document.body.dataset.live.split(" ")) {
    stream.addEventListener(topic, (event) => {
      document.dispatchEvent(new CustomEvent("fairmile:" + topic, { detail: JSON.parse(event.data) }));
    });
  }
  addEventListener("pagehide", () => stream.close());
});
