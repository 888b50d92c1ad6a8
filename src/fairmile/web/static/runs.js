// The list of runs: a selection that outlives sorting and paging, and rows that follow what happens.
"use strict";
{
  const KEPT = "fairmile.selected-runs";
  const selected = new Set(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
  const results = document.getElementById("results");

  const show = () => {
    const form = results.querySelector("form[data-select]");
    if (!form) return;
    const boxes = [...form.querySelectorAll("input[name=run]")];
    for (const box of boxes) box.checked = selected.has(box.value);
    form.querySelector("[data-count]").textContent = selected.size ? String(selected.size) : "";
    form.querySelector("[type=submit]").disabled = selected.size < 1;
    form.querySelector("[data-clear]").hidden = !selected.size;
  };
  const keep = () => {
    sessionStorage.setItem(KEPT, JSON.stringify([...selected]));
    show();
  };
  results.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    if (event.target.checked) selected.add(event.target.value);
    else selected.delete(event.target.value);
    keep();
  });
  results.addEventListener("click", (event) => {
    if (!event.target.closest("[data-clear]")) return;
    selected.clear();
    keep();
  });
  results.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-select]")) return;
    event.preventDefault(); // those on other pages of the list count as well
    const values = new URLSearchParams([...selected].map((id) => ["run", id]));
    location.assign("/runs/compare?" + values);
  });
  results.addEventListener("fairmile:part", show);
  document.addEventListener("fairmile:runs", () => {
    const isBusy = results.contains(document.activeElement) && document.activeElement !== results;
    if (!isBusy) fairmile.refresh("results", location.pathname + location.search);
  });
  addEventListener("pageshow", show);
  show();
}
