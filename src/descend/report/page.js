"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const inDark = () => dark.matches && document.documentElement.dataset.printing === undefined;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const nearest = (levels, value) =>
  levels.reduce((best, level, i) => (Math.abs(level - value) < Math.abs(levels[best] - value) ? i : best), 0);
const short = (value) => String(Number(value.toPrecision(4)));

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

/** The bytes that the page holds as base 85: five letters for every four bytes. */
function unpackedBytes(text, size) {
  const digits = new Uint8Array(128);
  [...LETTERS].forEach((letter, i) => (digits[letter.charCodeAt(0)] = i));
  const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let from = 0, to = 0; from < text.length; from += 5, to += 4) {
    let number = 0;
    for (let i = 0; i < 5; i++) number = number * 85 + digits[text.charCodeAt(from + i)];
    bytes.setUint32(to, number);
  }
  return new Uint8Array(bytes.buffer, 0, size);
}

/** The text that an element of the page holds compressed. */
async function unpacked(id) {
  const packed = document.getElementById(id);
  const bytes = unpackedBytes(packed.textContent, Number(packed.dataset.size));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Run plotly.js. */
async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
}

/** Say in place of the plots that this browser can't draw them. */
function refusePlots() {
  globalThis.Plotly = { react: () => {} };
  for (const plot of document.querySelectorAll(".plot")) {
    plot.removeAttribute("role");
    plot.removeAttribute("aria-label");
    plot.classList.add("refused");
    plot.textContent = "This browser can’t draw the plot: it has no DecompressionStream. Browsers since 2023 have it.";
  }
}

const plotly = loadPlotly().catch(refusePlots);
// What is to be drawn before plotly.js runs waits for it.
globalThis.Plotly = { react: (...call) => plotly.then(() => Plotly.react(...call)) };

/** A group of runs: one state (noise, layer, clip, log) that every slider sets and every plot and picture follows. */
class Section {
  constructor(root, { train, state, plots, frames }) {
    Object.assign(this, { root, train, state, plots, frames });
    this.inputs = [...root.querySelectorAll("[data-control]")];
    for (const input of this.inputs) input.addEventListener("input", () => this.take(input));
    for (const button of root.querySelectorAll("[data-play]")) button.addEventListener("click", () => this.play(button));
  }

  /** Move a slider by itself, to its end; a second press stops it. */
  play(button) {
    const slider = this.inputs.find((input) => input.dataset.control === button.dataset.play && input.type === "range");
    const stop = () => {
      clearInterval(this.timer);
      this.timer = null;
      button.setAttribute("aria-pressed", "false");
    };
    if (this.timer) return stop();
    const go = (place) => {
      slider.value = place;
      this.take(slider);
    };
    if (slider.value === slider.max) go(0);
    button.setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => (slider.value === slider.max ? stop() : go(Number(slider.value) + 1)), 500);
  }

  take(input) {
    const control = input.dataset.control;
    if (input.type === "range") this.state[control] = JSON.parse(input.dataset.levels)[input.value];
    else if (input.type === "checkbox") this.state[control] = input.checked;
    else this.state[control] = Number(input.value);
    this.render(control);
  }

  render(control = null) {
    this.showInputs();
    for (const element of this.root.querySelectorAll("[data-plot]")) {
      const plot = this.plots[element.dataset.plot];
      if (element.closest("details:not([open])")) continue;
      if (control === null || this.follows(plot, control)) this.draw(element, plot);
    }
    if (this.frames) this.showFrames();
    const levelled = [...this.root.querySelectorAll("[data-at-noise]")];
    const shown = nearest(levelled.map((part) => Number(part.dataset.atNoise)), this.state.noise);
    levelled.forEach((part, i) => (part.hidden = i !== shown));
  }

  showInputs() {
    for (const input of this.inputs) {
      if (input.type !== "range") continue;
      const levels = JSON.parse(input.dataset.levels);
      const value = this.state[input.dataset.control];
      const index = nearest(levels, value);
      const trained = input.dataset.control === "noise" && levels[index] === this.train;
      const text = short(levels[index]) + (trained ? " (training noise)" : "");
      input.value = index;
      input.setAttribute("aria-valuetext", text);
      input.style.setProperty("--filled", levels.length > 1 ? index / (levels.length - 1) : 1);
      input.parentElement.querySelector(".value").textContent = short(levels[index]);
    }
  }

  follows(plot, control) {
    const steps = control === "noise" && plot.frames?.length > 1;
    const log = control === "log" && plot.layout.yaxis.type !== undefined;
    return steps || log || plot.layout.shapes?.some((shape) => shape.name === `cursor-${control}`);
  }

  draw(element, plot) {
    const frame = plot.frames?.[nearest(plot.frames.map((item) => Number(item.name)), this.state.noise)];
    const traces = plot.data.map((trace, i) => paintTrace(frame ? { ...trace, ...frame.data[i] } : trace));
    const layout = paintLayout(plot.layout, this.state, this.inputs, traces);
    Plotly.react(element, traces, layout, { responsive: true, displayModeBar: false });
  }

  showFrames() {
    const at = {
      noise: nearest(this.frames.noise, this.state.noise),
      layer: this.state.layer,
      clip: this.state.clip,
    };
    const gamma = short(this.frames.noise[at.noise]);
    for (const image of this.root.querySelectorAll("[data-still]")) {
      const { images } = this.frames.panels[image.dataset.still];
      image.src = JSON.parse(image.dataset.path).reduce((list, place) => list[place], images);
    }
    const pick = (lists, axes) => axes.reduce((list, axis) => list[Math.min(at[axis], list.length - 1)], lists);
    for (const element of this.root.querySelectorAll("[data-panel]")) {
      const { label, axes, images, rmse } = this.frames.panels[element.dataset.panel];
      const error = rmse && pick(rmse, axes).toFixed(1);
      const image = element.querySelector("img");
      const where = { noise: `noise γ = ${gamma}`, layer: `layer ${at.layer}`, clip: `clip ${at.clip + 1}` };
      image.src = pick(images, axes);
      image.alt = [label, ...axes.map((axis) => where[axis])].join(", ") + (rmse ? `, RMSE ${error}` : "");
      element.querySelector(".rmse").textContent = rmse ? `RMSE ${error}` : "the truth";
    }
  }
}

function paintTrace(trace) {
  const colour = trace.meta?.[inDark() ? 1 : 0];
  if (!colour) return trace;
  const painted = { ...trace, marker: { ...trace.marker, color: colour }, line: { ...trace.line, color: colour } };
  if (trace.marker?.line) painted.marker.line = { ...trace.marker.line, color: colour };
  if (trace.textfont) painted.textfont = { ...trace.textfont, color: colour };
  if (trace.error_y) painted.error_y = { ...trace.error_y, color: colour };
  if (trace.fill) painted.fillcolor = colour + "2e";
  return painted;
}

/** The ticks of a logarithmic axis: even steps within a decade; 1, 2 and 5 up to two; then powers of ten. */
function logSteps(values) {
  const known = values.filter((value) => Number.isFinite(value) && value > 0);
  const decades = Math.log10(Math.max(...known) / Math.min(...known));
  if (!(decades > 0.75)) return { nticks: 4, tickformat: "" };
  return { dtick: decades < 2 ? "D2" : Math.ceil(decades / 4) };
}

function paintLayout(layout, state, inputs, traces) {
  const [ink, grid, muted, paper] = ["--ink", "--rule", "--muted", "--paper"].map(css);
  const axis = (old) => ({ ...old, gridcolor: grid, linecolor: grid, zerolinecolor: muted });
  const shapes = (layout.shapes ?? []).map((shape) => {
    const control = shape.name?.startsWith("cursor-") && shape.name.slice("cursor-".length);
    const moved = control ? { x0: state[control], x1: state[control], visible: hasControl(inputs, control) } : {};
    const label = shape.label && { ...shape.label, font: { color: muted, size: 12 } };
    return { ...shape, ...moved, line: { ...shape.line, color: muted }, ...(label && { label }) };
  });
  const painted = {
    ...layout,
    shapes,
    font: { ...layout.font, color: ink },
    hoverlabel: { bgcolor: paper, bordercolor: grid, font: { color: ink } },
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
  if (layout.yaxis.type === "log" && !state.log) painted.yaxis.type = "linear";
  for (const key of ["x", "y"]) {
    const axis = painted[`${key}axis`];
    if (axis.type === "log") Object.assign(axis, logSteps(traces.flatMap((trace) => trace[key] ?? [])));
  }
  return painted;
}

const hasControl = (inputs, control) => inputs.some((input) => input.dataset.control === control && input.max > 0);

const data = JSON.parse(document.getElementById("data").textContent);
const sections = new Map(
  data.sections.map((section, i) => {
    const root = document.querySelector(`[data-section="${i}"]`);
    return [root, new Section(root, section)];
  }),
);

// A section is drawn when it comes near the window, so that a page with many is soon there.
const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      sections.get(target).render();
    }
    document.documentElement.dataset.ready = "";
  },
  { rootMargin: "50% 0px" },
);
// The first pictures need no plotly.js.
for (const section of [...sections.values()].slice(0, 1)) if (section.frames) section.showFrames();
const watch = () => [...sections.keys()].forEach((root) => near.observe(root));
plotly.then(watch);
dark.addEventListener("change", watch);
if (!sections.size) document.documentElement.dataset.ready = "";

// A plot in a folded part has no size, and is drawn when the part is unfolded.
for (const [root, section] of sections)
  for (const part of root.querySelectorAll("details")) part.addEventListener("toggle", () => part.open && section.render());

// On paper everything is unfolded, on a light ground.
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const part of unfolded) part.open = true;
  document.documentElement.dataset.printing = "";
  sections.forEach((section) => section.render());
});
addEventListener("afterprint", () => {
  for (const part of unfolded) part.open = false;
  delete document.documentElement.dataset.printing;
  sections.forEach((section) => section.render());
});
