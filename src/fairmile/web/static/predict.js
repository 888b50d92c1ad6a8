// Predictions: a description is answered while one types, a benchmark when asked.
"use strict";
{
  const WAIT_MS = 300; // after the last key
  const form = document.getElementById("predict"), result = document.getElementById("result");
  const say = (text, tone) => {
    const note = document.createElement("p");
    note.className = "note " + tone;
    note.textContent = text;
    result.replaceChildren(note);
  };
  const ask = async () => {
    const address = fairmile.addressOf(form);
    history.replaceState(null, "", address);
    result.setAttribute("aria-busy", "true");
    const answer = await fairmile.refresh("result", address);
    result.removeAttribute("aria-busy");
    if (answer && !answer.ok) say("No answer: " + (answer.status === 503 ? "it takes long. Ask again in a minute." : answer.statusText), "warn");
  };
  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    if (form.elements.target.value) say("Press Predict: the step is traced, which takes some seconds.", "dim");
    else timer = setTimeout(ask, WAIT_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    if (form.elements.target.value) say("Tracing the step of " + form.elements.target.value + " …", "dim");
    ask();
  });
}
