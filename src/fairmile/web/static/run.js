// One run while it runs: curves, power, output and time as they come.
"use strict";
{
  const HEIGHT = 180, LONGEST_OUTPUT = 200_000, MOST_POINTS = 2000;
  const byId = (id) => document.getElementById(id);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = new Map();

  const draw = (name, place, label, at) => {
    const figure = document.createElement("figure"), head = document.createElement("h3");
    const last = document.createElement("b"), box = document.createElement("div");
    head.append(name + " ", last);
    figure.append(head, box);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", name + " over " + label);
    byId(place).append(figure);
    const axis = { stroke: style("--muted"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid") } };
    const data = [[], []];
    const plot = new uPlot({
      width: Math.max(220, figure.clientWidth), height: HEIGHT, legend: { show: false }, scales: { x: { time: false } },
      axes: [{ ...axis, label, labelSize: 18, size: 34 }, { ...axis, size: 62 }],
      series: [{}, { stroke: style("--c" + at % 8), width: 2, points: { show: true, size: 4 } }],
    }, data, box);
    const chart = { plot, data, last, figure };
    charts.set(place + "/" + name, chart);
    return chart;
  };
  const add = (place, label, parts) => {
    for (const [name, part] of Object.entries(parts)) {
      const chart = charts.get(place + "/" + name) ?? draw(name, place, label, charts.size);
      for (const [x, y] of part.points) {
        const [xs, ys] = chart.data, end = xs.length - 1;
        if (end >= 0 && x <= xs[end]) { // a step that is logged again counts as it was last
          const same = xs.indexOf(x);
          if (same >= 0) ys[same] = y;
          continue;
        }
        xs.push(x);
        ys.push(y);
      }
      if (chart.data[0].length > MOST_POINTS) {
        const keep = (_, at, all) => at % 2 === 0 || at === all.length - 1;
        chart.data = chart.data.map((values) => values.filter(keep));
      }
      chart.last.textContent = part.last;
      chart.plot.setData(chart.data);
    }
  };
  const print = (text) => {
    const box = byId("output"), code = box.firstElementChild;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    code.textContent = (code.textContent + text).slice(-LONGEST_OUTPUT);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  };
  const topic = document.body.dataset.live;
  document.addEventListener("fairmile:" + topic, ({ detail }) => {
    if (detail.error) return;
    byId("state").textContent = detail.state;
    if (detail.elapsed) byId("elapsed").textContent = detail.elapsed;
    if (detail.progress !== undefined) {
      byId("progress").hidden = false;
      byId("progress").value = detail.progress;
    }
    if (detail.done) byId("done").textContent = detail.done;
    if (detail.metrics) {
      byId("no-metrics").hidden = true;
      add("metrics", "step", detail.metrics);
    }
    if (detail.power) {
      byId("no-power").hidden = true;
      add("power", "seconds", detail.power);
    }
    if (detail.output) print(detail.output);
    if (detail.is_end) location.reload(); // now there is a report
  });
  addEventListener("resize", () => {
    for (const { plot, figure } of charts.values()) plot.setSize({ width: Math.max(220, figure.clientWidth), height: HEIGHT });
  });
  byId("cancel")?.addEventListener("click", async (event) => {
    event.target.disabled = true;
    try {
      await fairmile.send("/api/runs/" + encodeURIComponent(event.target.dataset.run) + "/cancel");
      byId("cancelled").textContent = "Cancelled. It ends within seconds.";
    } catch (error) {
      byId("cancelled").textContent = error.message;
      event.target.disabled = false;
    }
  });
}
