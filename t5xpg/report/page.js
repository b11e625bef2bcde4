"use strict";
// The page can be read without this. It shows the curves' values at a step, and predictions step by step.
const charts = JSON.parse(document.getElementById("curve-data").textContent);

for (const figure of document.querySelectorAll("[data-chart]")) {
  const lines = charts[figure.dataset.chart];
  const plot = figure.querySelector(".plot");
  const cursor = figure.querySelector(".cursor");
  const when = figure.querySelector(".when span");
  const values = figure.querySelectorAll(".key b");
  const steps = [...new Set(lines.flatMap(line => line.x))].sort((a, b) => a - b);
  const first = Number(figure.dataset.first), last = Number(figure.dataset.last);
  let at = steps.length - 1;

  const show = (index, seen) => {
    at = Math.max(0, Math.min(steps.length - 1, index));
    const x = 1000 * (steps[at] - first) / (last - first);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = seen ? "visible" : "hidden";
    when.textContent = steps[at].toLocaleString("en");
    lines.forEach((line, i) => {
      const before = line.x.filter(step => step <= steps[at]).length - 1;
      values[i].textContent = before < 0 ? "" : line.y[before];
    });
  };
  const nearest = event => {
    const box = plot.getBoundingClientRect();
    const step = first + (last - first) * (event.clientX - box.left) / box.width;
    return steps.reduce((best, s, i) => Math.abs(s - step) < Math.abs(steps[best] - step) ? i : best, 0);
  };
  plot.addEventListener("pointermove", event => show(nearest(event), true));
  plot.addEventListener("pointerleave", () => show(steps.length - 1, false));
  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", figure.querySelector("h3").textContent + "; arrow keys go from step to step");
  figure.querySelector(".key").setAttribute("aria-live", "polite");
  plot.addEventListener("keydown", event => {
    const move = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1}[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(move, true);
  });
  plot.addEventListener("blur", () => show(steps.length - 1, false));
}

for (const task of document.querySelectorAll("[data-steps]")) {
  const steps = JSON.parse(task.dataset.steps);  // [[step, what is said of it]]
  const slider = task.querySelector(".slider");
  const input = slider.querySelector("input"), output = slider.querySelector("output"), all = slider.querySelector("button");
  const show = () => {
    const everything = all.getAttribute("aria-pressed") === "true";
    const [step, words] = steps[input.value];
    for (const table of task.querySelectorAll("table")) {
      const latest = {};  // of each run the row of this step, or of its last evaluation before
      for (const row of table.querySelectorAll("tr[data-step]")) {
        row.hidden = !everything;
        if (Number(row.dataset.step) <= step) latest[row.dataset.run] = row;
      }
      for (const row of Object.values(latest)) row.hidden = false;
    }
    input.disabled = everything;
    output.textContent = everything ? "all steps" : words;
    input.setAttribute("aria-valuetext", words);
  };
  input.addEventListener("input", show);
  all.addEventListener("click", () => {
    all.setAttribute("aria-pressed", all.getAttribute("aria-pressed") !== "true");
    show();
  });
  slider.hidden = false;
  show();
}
