
/** The runs of a cell of the grid, in a dialog: curves over training by layer, and the spread of ratios. */
class Runs {
  constructor(dialog) {
    this.dialog = dialog;
    this.arm = dialog.querySelector("#cell-arm");
    this.seed = dialog.querySelector("#cell-seed");
    this.arm.addEventListener("change", () => this.chooseArm());
    this.seed.addEventListener("change", () => this.draw());
    for (const button of document.querySelectorAll("[data-cell]"))
      button.addEventListener("click", () => this.open(button.dataset.cell, button.dataset.arm));
  }

  async open(place, name) {
    this.all ??= JSON.parse(await unpacked("more"));
    const cell = (this.cell = this.all.cells[place]);
    this.dialog.querySelector("#cell-title").textContent = cell.title;
    this.dialog.querySelector("#cell-words").textContent = cell.words;
    fill(this.arm, cell.arms.map((arm) => arm.name));
    this.arm.value = Math.max(0, cell.arms.findIndex((arm) => arm.name === name));
    this.dialog.showModal();
    this.chooseArm();
  }

  chooseArm() {
    const { runs, left } = this.cell.arms[this.arm.value];
    fill(this.seed, runs.map((run) => run.seed + (left ? ` (of ${left + runs.length})` : "")));
    this.draw();
  }

  draw() {
    if (!this.dialog.open) return;
    const run = this.cell.arms[this.arm.value].runs[this.seed.value];
    this.dialog.querySelector("#cell-verdict").textContent = run.verdict;
    for (const element of this.dialog.querySelectorAll("[data-curve]")) {
      const name = element.dataset.curve;
      const shown = name === "ratios" ? this.violins(run.ratios) : this.lines(name, run.curves[name]);
      element.parentElement.hidden = !shown;
      if (!shown) continue;
      const layout = paintLayout(merged(this.all.layout, shown.layout), { log: true }, [], shown.traces);
      Plotly.react(element, shown.traces.map(paintTrace), layout, { responsive: true, displayModeBar: false });
    }
  }

  /** One line for each layer, coloured by its depth. */
  lines(name, curve) {
    if (!curve) return null;
    const traces = curve.values.map((values, i) => {
      const layer = curve.first + i;
      const label = name === "multiplier" && layer === 0 ? "cap" : `layer ${layer}`;
      return {
        x: curve.steps,
        y: values,
        name: label,
        mode: "lines",
        line: { width: 2, dash: label === "cap" ? "dot" : "solid" },
        meta: this.all.ramps[this.cell.depth][layer],
        hovertemplate: `${label}, step %{x}: %{y:.3g}<extra></extra>`,
      };
    });
    const positive = curve.values.every((values) => values.every((value) => value === null || value > 0));
    const scale = name === "loss" && positive ? LOG_AXIS : { type: "linear" };
    const yaxis = { ...scale, zeroline: true, zerolinewidth: 2 };
    return { traces, layout: { xaxis: { title: { text: "training step" } }, yaxis } };
  }

  /** The share of samples by ratio, mirrored, at each layer. */
  violins(ratios) {
    if (!ratios) return null;
    const { edges, shares } = ratios;
    const step = edges[1] / edges[0];
    const colours = this.cell.arms[this.arm.value].colours;
    const traces = shares.map((row, i) => {
      const bins = row.map((share, bin) => ({ share, middle: edges[0] * step ** (bin + 0.5) }));
      let sum = 0;
      const median = bins.find(({ share }) => (sum += share) >= 0.5)?.middle ?? NaN;
      const shown = bins.filter(({ share }) => share > 0);
      const most = Math.max(...row) || 1;
      const middles = shown.map(({ middle }) => middle);
      const right = shown.map(({ share }) => i + 1 + (0.44 * share) / most);
      const left = shown.map(({ share }) => i + 1 - (0.44 * share) / most);
      return {
        x: [...right, ...left.reverse()],
        y: [...middles, ...[...middles].reverse()],
        name: `layer ${i + 1}`,
        mode: "lines",
        fill: "toself",
        line: { width: 1 },
        meta: colours,
        hoveron: "fills",
        text: `layer ${i + 1}: median about ${short(median)}`,
        hoverinfo: "text",
      };
    });
    const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { width: 1.5, dash: "dash" } };
    const xaxis = { title: { text: "layer" }, dtick: Math.max(1, Math.round(shares.length / 8)), tick0: 1 };
    const yaxis = { ...LOG_AXIS, title: { text: "f<sub>l</sub> / f<sub>l−1</sub>" } };
    return { traces, layout: { xaxis, yaxis, shapes: [one] } };
  }
}

const LOG_AXIS = { type: "log", tickformat: ".3~g" };
const fill = (select, words) => select.replaceChildren(...words.map((word, i) => new Option(word, i)));
const merged = (layout, { xaxis, yaxis, ...rest }) => ({
  ...layout,
  ...rest,
  showlegend: false,
  hovermode: "closest",
  margin: { ...layout.margin, t: 8 },
  xaxis: { ...layout.xaxis, ...xaxis, title: { ...layout.xaxis.title, ...xaxis.title } },
  yaxis: { ...layout.yaxis, ...yaxis, title: { ...layout.yaxis.title, ...yaxis.title } },
});

const runs = new Runs(document.getElementById("cell"));
dark.addEventListener("change", () => runs.draw());
