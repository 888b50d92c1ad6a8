// The job-script generator: the choices of another system, and what changed from a pasted script.
"use strict";
const form = document.getElementById("job"), old = document.getElementById("old"), changes = document.getElementById("changes");

document.getElementById("system").addEventListener("change", () => {
  for (const name of ["partition", "software"]) form.elements[name].value = ""; // those of the other system
  fairmile.refresh("choices", fairmile.addressOf(form));
});

// Lines with " ", "-" or "+" in front: what both have, only the old one, only the new one.
function differences(before, after) {
  const longest = before.map(() => new Uint16Array(after.length + 1));
  longest.push(new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) for (let j = after.length - 1; j >= 0; j--) {
    longest[i][j] = before[i] === after[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  }
  const lines = [];
  let i = 0, j = 0;
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) { lines.push([" ", before[i]]); i++; j++; }
    else if (i < before.length && (j === after.length || longest[i + 1][j] >= longest[i][j + 1])) lines.push(["-", before[i++]]);
    else lines.push(["+", after[j++]]);
  }
  return lines;
}

const MOST_LINES = 2000;
const split = (text) => text.replace(/\r\n?/g, "\n").replace(/\s+$/, "").split("\n").slice(0, MOST_LINES).map((line) => line.trimEnd());
function compare() {
  const script = document.getElementById("script");
  changes.hidden = !old.value.trim() || !script;
  if (changes.hidden) return;
  const lines = differences(split(old.value), split(script.textContent));
  const kinds = { "-": "removed", "+": "added" };
  changes.replaceChildren(...lines.map(([mark, text]) => {
    const line = document.createElement(mark === "-" ? "del" : mark === "+" ? "ins" : "span");
    line.className = kinds[mark] ?? "same";
    line.textContent = mark + " " + text + "\n";
    return line;
  }));
  if (lines.every(([mark]) => mark === " ")) changes.textContent = "The two scripts are the same.";
}
old.addEventListener("input", compare);
document.getElementById("result").addEventListener("fairmile:part", compare);
compare();
