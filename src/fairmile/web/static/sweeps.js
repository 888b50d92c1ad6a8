// A sweep that has not ended: how many runs have, and a link to newer results when there are any.
"use strict";
{
  const topic = document.body.dataset.live;
  if (topic) document.addEventListener("fairmile:" + topic, ({ detail }) => {
    if (detail.error) return;
    document.getElementById("states").textContent = detail.progress;
    document.getElementById("newer").hidden = false;
  });
}
